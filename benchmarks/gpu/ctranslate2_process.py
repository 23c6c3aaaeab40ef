"""CTranslate2 on a GPU, in a process of its own.

Its wheel loads cuBLAS 12 by name, and of it functions that cuBLAS 13 has, too. So the process finds the
installed cuBLAS under that name, in a folder of links. Neither folder may be the benchmark's own: torch is
to load what it was built with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path

from benchmarks import corpus, peers
from benchmarks.networks import Networks
from benchmarks.tools.data import ROOT

WANTED = "libcublas.so.12"


class Unavailable(Exception):
    """CTranslate2 cannot be measured here; the message says why."""


def translate_on(
    device: str, folder: Path, network: str, widened: dict, width: int, n: int, max_length: int
) -> peers.Translate:
    """`peers.ctranslate2_beam` in a process, with weights in bfloat16 on a GPU.

    Args:
        folder: of `Networks`, in which the process writes what it converts.

    Raises:
        Unavailable: there is no CTranslate2, or no cuBLAS.
    """
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    if device == "cuda":
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, library_folders(folder)))
    options = dict(device=device, folder=str(folder), network=network, widened=widened)
    options |= dict(width=width, n=n, max_length=max_length)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.ctranslate2_process", json.dumps(options)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def translate(sources: list[list[int]]) -> list[list[int]]:
        return _asked(process, sources)

    weakref.finalize(translate, _end, process)
    # shows whether it runs at all
    translate([])
    return translate


def library_folders(folder: Path) -> list[Path]:
    """Folders in which cuBLAS is found under the name that CTranslate2 asks for."""
    installed = _cublas()
    links = folder / "cublas"
    links.mkdir(parents=True, exist_ok=True)
    if not (links / WANTED).exists():
        (links / WANTED).symlink_to(installed)
    # where it looks for cuBLASLt
    return [links, installed.parent]


def _cublas() -> Path:
    packages = Path(sysconfig.get_paths()["purelib"])
    places = [packages / "nvidia", Path("/usr/local/cuda/lib64")]
    for place in places:
        found = sorted(place.rglob("libcublas.so.1[0-9]"))
        if found:
            return found[0]
    looked = " nor below ".join(map(str, places))
    raise Unavailable(f"there is no libcublas.so below {looked}")


def _asked(process: subprocess.Popen, sources: list[list[int]]) -> list[list[int]]:
    assert process.stdin is not None and process.stdout is not None
    try:
        print(json.dumps(sources), file=process.stdin, flush=True)
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise Unavailable(f"CTranslate2's process ended with exit code {process.wait()}")
    answer = json.loads(line)
    if "error" in answer:
        raise Unavailable(answer["error"])
    return answer["outputs"]


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    process.communicate()


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    options, translate = json.loads(sys.argv[1]), None
    for line in sys.stdin:
        try:
            translate = translate or _loaded(**options)
            sources = json.loads(line)
            answer = {"outputs": translate(sources) if sources else []}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _loaded(
    device: str,
    folder: str,
    network: str,
    widened: dict,
    width: int,
    n: int,
    max_length: int,
) -> peers.Translate:
    import ctranslate2

    pieces = corpus.vocabulary(corpus.processor())
    # the benchmark's own weights have another dtype
    own = Path(folder) / "ctranslate2"
    own.mkdir(exist_ok=True)
    networks = Networks(own, "cpu", "float32", widened)
    translator = ctranslate2.Translator(
        str(networks.ctranslate2_directory(network, pieces)),
        device=device,
        compute_type="bfloat16" if device == "cuda" else "float32",
    )
    more = range(len(pieces), networks.transformers(network).config.vocab_size)
    pieces = [*pieces, *(f"<added {i}>" for i in more)]
    return peers.ctranslate2_beam(translator, pieces, width, n, max_length)


if __name__ == "__main__":
    main()
