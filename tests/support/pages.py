"""The examples of a page, and what stands in for the models that they would download.

A page is one program: its blocks run in their order, in one folder, and Python's share their names. A block
is ```` ```python ```` or ```` ```sh ````; ```` ```output ```` right behind it is what it prints, with `...`
for what may differ. Comments, which no reader sees, say more about the block that they stand above:

    <!-- not run: why -->
    <!-- newcomers: why -->         tests/newcomers alone runs it: it installs, downloads or stays
    <!-- in a clone: why -->        tests/newcomers does not run it
    <!-- before
    code that the reader need not see, in the block's language, and that a newcomer does without
    -->
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import io
import os
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from support.paths import MODEL, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]
FENCE = re.compile(r"(?:<!--((?:(?!-->).)*)-->\s*\n)?^( *)```([^\n]*)\n(.*?)^\2```$", re.M | re.S)
RUN, PRINTED = ("python", "sh"), "output"
SHOWN = ("", "text", "json", "cpp", "toml")
KINDS = ("not run", "newcomers", "in a clone")
# where a page's server listens; another may do so when the page is run
ADDRESS = "localhost:8000"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Block:
    language: str
    code: str
    line: int
    before: str = ""
    kind: str = ""
    why: str = ""
    printed: str | None = None

    @property
    def not_run(self) -> str:
        """Why this process does not run it."""
        return self.why if self.kind in ("not run", "newcomers") else ""

    @property
    def not_for_newcomers(self) -> str:
        """Why a newcomer does not run it."""
        return self.why if self.kind in ("not run", "in a clone") else ""

    def check(self, printed: str, place: object) -> None:
        """Compare what it has printed with its output, if the page has one."""
        if self.printed is not None:
            right = doctest.OutputChecker().check_output(self.printed, printed, FLAGS)
            assert right, f"{place}:{self.line} prints\n{printed}\nand not\n{self.printed}"


def blocks_of(page: Path) -> list[Block]:
    """The examples of a page; raises ValueError where a fence or a comment is none of those above."""
    text = page.read_text("utf-8")
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        comment, _, language, code = match.groups()
        code, line = textwrap.dedent(code), text.count("\n", 0, match.start(4))
        if language == PRINTED:
            if not found or text[end : match.start()].strip():
                raise ValueError(f"{page}:{line}: an output must stand right behind what prints it")
            found[-1].printed = code
        elif language in RUN:
            found.append(Block(language, code, line, **_said(comment or "", f"{page}:{line}")))
        elif language not in SHOWN and not language.startswith("{"):
            raise ValueError(f"{page}:{line}: {language!r} is none of {(*RUN, PRINTED, *SHOWN)}")
        elif language == "" and re.search(r"^(pybeam|pip|make|python|echo) ", code, re.M):
            raise ValueError(f"{page}:{line}: this looks like a shell's; begin it with ```sh")
        end = match.end()
    return found


def _said(comment: str, place: str) -> dict[str, str]:
    kind, colon, reason = comment.strip().partition(":")
    if colon and kind in KINDS:
        return {"kind": kind, "why": reason.strip()}
    if comment.strip().startswith("before\n"):
        return {"before": comment.strip().removeprefix("before\n")}
    if re.match(r"not.run|before", comment.strip()):
        kinds = ", ".join(f"`{kind}: why`" for kind in KINDS)
        raise ValueError(f"{place}: the comment is neither of {kinds} nor `before` and lines")
    return {}


@contextlib.contextmanager
def serving(page: Path) -> Iterator[dict[str, str]]:
    """Run the server that a page asks; yields what its address on the page must be replaced by."""
    if ADDRESS not in page.read_text("utf-8"):
        yield {}
        return
    from support.server_process import running

    with running(models=[MODEL]) as server:
        yield {ADDRESS: "{}:{}".format(*server.address)}


def run(page: Path, folder: Path, replaced: Mapping[str, str] = MappingProxyType({})) -> int:
    """Run a page's examples in the current folder and return their number; AssertionError names the line.

    `replaced` are names in the examples, and what stands for them here.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for block in blocks_of(page):
        if block.not_run:
            continue
        for name, here in replaced.items():
            block = dataclasses.replace(block, code=block.code.replace(name, here))
        if block.language == "python":
            exec(block.before, names)
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                # lines as the page counts them
                exec(compile("\n" * block.line + block.code, page, "exec"), names)
            printed = stdout.getvalue()
        else:
            printed = _shell(block, page, folder)
        block.check(printed, page)
        count += 1
    return count


def _shell(block: Block, page: Path, folder: Path) -> str:
    process = subprocess.run(
        ["sh", "-e", "-c", f"{block.before}\n{block.code}"],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "packages" / "examples"))),
        },
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, f"{page}:{block.line}: {process.stderr}"
    return process.stdout


def fill(folder: Path) -> None:
    """Put into a folder what the examples read, and the commands `pybeam` and `python`."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "DIR").symlink_to(MODEL)
    runpy.run_path(str(ROOT / "packages/examples/pybeam_examples/__main__.py"))["save"](folder)
    (folder / "bin").mkdir()
    for name, module in (("pybeam", "-m pybeam"), ("python", "")):
        shim = folder / "bin" / name
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        shim.chmod(0o755)


def fill_with_whisper(folder: Path) -> None:
    """A tiny random Whisper in place of the one that the hub has, and a recording."""
    from support.speech_models import tone, write_wav
    from support.tiny_whisper import save_whisper

    (folder / "whisper-tiny").mkdir()
    save_whisper(folder / "whisper-tiny")
    write_wav(folder / "speech.wav", tone(9000, seed=1), 16000)


def fill_with_fireredasr(folder: Path) -> None:
    """A tiny random FireRedASR as it is published, and a recording."""
    from support.fireredasr_files import save_published
    from support.speech_models import tone, write_wav

    save_published(folder / "FireRedASR-AED-L", eos_nats=4.0, idim=80)
    write_wav(folder / "speech.wav", tone(9000, seed=1), 16000)


class Letters:
    """A tokenizer of letters that is also a processor of sound, in place of one that the hub has."""

    eos_token_id = 2

    def __call__(self, texts, padding=False, return_tensors=None, sampling_rate=None):
        if sampling_rate is not None:
            return SimpleNamespace(input_features=torch.randn(1, 6, 24))
        lines = [[3 + ord(letter) % 40 for letter in text] for text in texts]
        if not padding:
            return SimpleNamespace(input_ids=lines)
        longest = max(map(len, lines))
        ids = torch.tensor([line + [1] * (longest - len(line)) for line in lines])
        return dict(input_ids=ids, attention_mask=(ids != 1).long())

    def decode(self, tokens, **_):
        return " ".join(map(str, tokens))

    def batch_decode(self, lines, **_):
        return [self.decode(line) for line in lines.tolist()]

    def get_decoder_prompt_ids(self, language, task):
        return [(1, 7), (2, 8)]


def replace_hub(monkeypatch) -> None:
    """Give tiny random models for names of the hub. Folders are loaded as ever."""
    import transformers

    from support.huggingface_models import KINDS, tiny_network

    # as many as Whisper has
    stem, name, options = KINDS["whisper"]
    monkeypatch.setitem(KINDS, "whisper", (stem, name, options | dict(max_target_positions=448)))

    def put(name: str, make: Any) -> None:
        real = getattr(transformers, name).from_pretrained

        def load(source: str, **options: Any) -> Any:
            return real(source, **options) if Path(source).is_dir() else make()

        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", load)

    for kind, stem in (("marian", "Seq2SeqLM"), ("qwen", "CausalLM"), ("whisper", "SpeechSeq2Seq")):
        put(f"AutoModelFor{stem}", lambda kind=kind: tiny_network(kind))
    for name in ("AutoTokenizer", "AutoProcessor"):
        put(name, Letters)
