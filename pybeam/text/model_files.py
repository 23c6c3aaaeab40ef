"""Open the files of model directories, which may come from strangers.

A file may be a symbolic link: caches of the hub are full of them, and whoever made the directory made the
link. A name that stands in another file may not lead out of the directory.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pybeam.arguments import ArgumentError

# far more than any tokenizer or index of shards that is known; parsed JSON takes ten times as much memory
MAX_TEXT_BYTES = 1 << 28
# how a file begins that git-lfs has left in the place of a large one, and how long it may be
POINTER, MAX_POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024


def regular_file(path: Path, most_bytes: int | None = None) -> Path:
    """Return the path of a file that can be read to its end.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is a folder, a pipe or a device, which may never end, has more than `most_bytes`, or
            stands for a file that has not been downloaded.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"
        raise ValueError(f"{path} must be a regular file, but is {kind}")
    if found.st_size <= MAX_POINTER_BYTES and _is_pointer(path):
        raise ValueError(
            f"{path} must hold the file itself, but is a pointer of git-lfs; in the clone run `git lfs pull`"
        )
    if most_bytes is not None and found.st_size > most_bytes:
        raise ValueError(
            f"{path} must have at most {most_bytes:,} bytes, but has {found.st_size:,}; is it the right file?"
        )
    return path


def _is_pointer(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(POINTER)) == POINTER


def named_file(directory: Path, name: Any, where: str) -> Path:
    """Return the path of a file whose name stands in another file of the directory, at the place `where`.

    Raises:
        ValueError: the name leads out of the directory, or is none.
    """
    is_own = isinstance(name, str) and name not in ("", "..") and "\0" not in name
    if not is_own or "\\" in name or Path(name).name != name:
        raise ValueError(f"{where} must name files in its own folder, but names {name!r}")
    return Path(directory, name)


@contextlib.contextmanager
def blaming(directory: Path) -> Iterator[None]:
    """Turn errors that name no file into ones that name this directory.

    Files can be odd in more ways than checks know: a list where there should be a number, a number that no
    array can have. Errors about arguments of the caller stay as they are.

    Raises:
        ValueError: such an error.
    """
    try:
        yield
    except ArgumentError:
        raise
    except ValueError as error:
        if str(directory) in str(error):
            raise
        raise ValueError(f"the files of {directory} are not sound: {error}") from error
    except (TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(
            f"the files of {directory} do not fit together: {type(error).__name__}: {error}; are they those "
            "of one model?"
        ) from error
