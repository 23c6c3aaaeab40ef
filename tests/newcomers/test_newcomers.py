"""README and the pages of docs, start, howto and coming-from, typed by somebody who has pip and no clone."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub import files_of, serving_hub
from support.newcomer import BASE, DIST, Newcomer
from support.pages import ADDRESS, PAGES, ROOT, Block, blocks_of
from support.paths import MODEL

DOCS = ROOT / "docs"
FOLDERS = (ROOT, DOCS, DOCS / "start", DOCS / "howto", DOCS / "coming-from")
TYPED = [page for page in PAGES if page.parent in FOLDERS and blocks_of(page)]
# where the menu's "Use" begins
[INSTALLED] = blocks_of(DOCS / "use.md")
# the folder of CTranslate2 that a reader of that page has: hidden lines make it
HAS_A_FOLDER = "docs/coming-from/ctranslate2.md"
CONVERTER = Block("sh", "pip install transformers", 0)
# nobody types these: they need machines, programs that are not Python's, or a clone
GPU, CLONE, RAY = "it needs a GPU", "the parsers are in the repository", "make test-ray runs it"
LARGE = "the model is large"
LEFT_OUT = {
    "README.md": ["both set up an environment"],
    "docs/coming-from/fairseq.md": ["fairseq is not installed"],
    "docs/coming-from/faster-whisper.md": ["it downloads a model"],
    "docs/coming-from/fireredasr.md": ["FireRedASR is not installed", LARGE, LARGE, LARGE],
    "docs/coming-from/marian.md": ["Marian is not installed", "there is no such folder here"],
    "docs/howto/cluster.md": [RAY, RAY, "it needs a cluster", f"{RAY}, where there is Java", RAY],
    "docs/howto/ctc.md": [LARGE],
    "docs/howto/deploy.md": [
        "it needs docker",
        "it needs docker",
        "it needs a cluster",
        "it needs root, systemd and a clone",
    ],
    "docs/howto/gpu.md": [GPU, GPU, GPU],
    "docs/howto/live.md": ["there is no microphone", "it needs a server with a Whisper model"],
    "docs/howto/onnx.md": [
        "it needs root",
        "`make edge` compiles it and compares what it prints with pybeam",
        "`make edge` opens the page in Chromium and compares what it shows with pybeam",
    ],
    "docs/howto/operate.md": ["there is no such server"],
    "docs/howto/parsing.md": [CLONE, CLONE, CLONE],
    "docs/howto/pipelines.md": ["the noise is in the repository"],
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[str]:
    """The address of a hub that has small models under the names of the pages."""
    pytest.importorskip("transformers")
    from support.text_folders import change, save_chat
    from support.tiny_whisper import save_whisper
    from support.wav2vec2_files import write_wav2vec2

    def save_long_chat(folder: Path) -> None:
        save_chat(folder, kind="qwen3")
        change(folder / "config.json", max_position_embeddings=1024)

    with serving_hub() as hub:
        hub.add("Helsinki-NLP/opus-mt-es-en", files_of(MODEL))
        for name, save in (
            ("Qwen/Qwen3-0.6B", save_long_chat),
            ("openai/whisper-tiny", save_whisper),
            ("facebook/wav2vec2-base-960h", write_wav2vec2),
        ):
            folder = tmp_path_factory.mktemp("model")
            save(folder)
            hub.add(name, files_of(folder))
        yield hub.address


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> None:
    """Skips unless there is the environment with this checkout's wheel, and an index of packages."""
    if not (BASE / ".stamp").exists() or not list(DIST.glob("*.whl")):
        pytest.skip("`make test-newcomers` builds the wheel and installs it first")
    download = ["-m", "pip", "download", "-q", "--no-cache-dir", "--no-deps", "packaging"]
    if subprocess.run([sys.executable, *download], cwd=tmp_path_factory.mktemp("pip")).returncode:
        pytest.skip("no index of packages answers")


@contextlib.contextmanager
def alone(page: Path) -> Iterator[None]:
    """One page at a time has a server at the address that all of them name."""
    if ADDRESS not in page.read_text("utf-8"):
        yield
        return
    with (BASE / ".server").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in TYPED])
def test_a_page_is_typed(page, environment, hub, tmp_path):
    with alone(page), Newcomer(tmp_path, hub) as newcomer:
        if page.parent.name == "howto":
            newcomer.type(INSTALLED)
        for block in blocks_of(page):
            if block.not_for_newcomers:
                continue
            if block.before and name_of(page) == HAS_A_FOLDER:
                newcomer.type(CONVERTER)
                newcomer.type(Block("python", block.before, block.line))
            try:
                block.check(newcomer.type(block), page)
            except AssertionError as error:
                raise AssertionError(f"{page}:{block.line}: {error}") from None


def test_the_blocks_that_nobody_types_are_known():
    found = {
        name_of(page): [block.why for block in blocks_of(page) if block.not_for_newcomers]
        for page in TYPED
    }
    assert {name: reasons for name, reasons in found.items() if reasons} == LEFT_OUT
