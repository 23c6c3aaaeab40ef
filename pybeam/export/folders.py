"""A folder that appears when it is complete."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pybeam.arguments import ArgumentError

log = logging.getLogger(__name__)

# files whose place is taken where a model is written anew
WEIGHTS = (
    *(".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".ckpt"),
    *(".h5", ".msgpack", ".onnx", ".onnx.data", ".ot", ".gguf"),
)


def other_files(directory: Path) -> list[Path]:
    """Return the files of a model's folder that hold no weights."""
    return [
        path
        for path in sorted(directory.iterdir())
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(WEIGHTS)
    ]


def check_output(target: Path) -> None:
    """Raise ValueError if there is something in the folder, or something else in its place."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        problem = f"must be a folder that does not exist or is empty, but {target} is not"
        raise ArgumentError("output", f"{problem}; name another, or delete it")


@contextmanager
def complete_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside `target` to write to. It gets that name at the end, or goes if this raises."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.parent / f"{target.name}-unfinished-{secrets.token_hex(4)}"
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.rename(target)
        log.info("wrote %s", target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
