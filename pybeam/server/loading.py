"""A model on its way into the memory: where its files may be, what they take, and how far it is."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pybeam.hub.needed import weights_among
from pybeam.platforms.system import lines_of_proc
from pybeam.server.errors import APIError
from pybeam.server.models import ServedModel

T = TypeVar("T")
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Loader(Protocol):
    """Makes models as the command line asks for them."""

    def num_bytes(self, directory: str) -> int:
        """Return the memory that the weights of a folder will take. Raises OSError or ValueError."""

    def load(self, name: str, directory: str) -> ServedModel:
        """Read a model. Raises whatever is wrong with it."""


class ModelFolders:
    """The folders in which models may be that are loaded over HTTP.

    Args:
        roots: the folders; none: nothing may be loaded.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = [Path(os.path.abspath(root)) for root in roots]

    def __bool__(self) -> bool:
        return bool(self._roots)

    def find(self, path: str) -> str:
        """Return the folder of a model. It lies where its links lead, and may lead elsewhere later.

        Raises:
            APIError: 403, it lies elsewhere; 404, there is none.
        """
        inside = []
        for root in self._roots:
            try:
                found = Path(os.path.abspath(root / path))
                if found.resolve().is_relative_to(root.resolve()):
                    inside.append(found)
            except (OSError, ValueError) as error:  # it is too long, or no path
                raise APIError(400, "`path` must be the path of a folder", "path") from error
        if not inside:
            problem = "`path` must lie in a folder that `--model-folder` names"
            raise APIError(403, problem, "path")
        for one in inside:
            if one.is_dir():
                return str(one)
        raise APIError(404, f"`path` must be the folder of a model, but {path!r} is none", "path")

    def names(self) -> list[str]:
        """Return the names of the folders that have weights."""
        found = set()
        for root in self._roots:
            for folder in _content(root):
                if weights_among([one.name for one in _content(folder)]):
                    found.add(folder.name)
        return sorted(found)


def _content(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it is none, or cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


class Loading:
    """A model that is being read.

    Attributes:
        directory: the files.
        num_bytes: the memory that it will take; 0: not known yet.
        phase: what happens now.
        outcome: None when it is loaded, or why it is not.
    """

    def __init__(self, directory: str) -> None:
        self.directory, self.num_bytes = directory, 0
        self.phase: Literal["waiting", "reading", "warming up"] = "waiting"
        self.outcome: asyncio.Task[APIError | None] | None = None
        self._began, self._thread, self._num_before = time.monotonic(), 0, 0
        self._to_read = 1

    def begin_to_read(self, num_bytes: int) -> None:
        """Note that this thread reads the files, so many bytes."""
        self.phase, self._to_read = "reading", max(1, num_bytes)
        self._thread = threading.get_native_id()
        self._num_before = _num_read(self._thread) or 0

    @property
    def seconds(self) -> float:
        """The time since it was asked for."""
        return time.monotonic() - self._began

    @property
    def progress(self) -> float | None:
        """The share of the files that has been read, from 0 to 1; None: the system does not say."""
        if self.phase != "reading":
            return 0.0 if self.phase == "waiting" else 1.0
        num = _num_read(self._thread)
        return None if num is None else min(1.0, (num - self._num_before) / self._to_read)


def _num_read(thread: int) -> int | None:
    """Return the bytes that a thread has read from files, as Linux counts them; None: nobody does."""
    lines = lines_of_proc(f"self/task/{thread}/io")
    return next((int(line.split()[1]) for line in lines if line.startswith("rchar:")), None)


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread that keeps no program alive, and return what it returns.

    Raises:
        BaseException: what it raises.
    """
    future: Future[T] = Future()
    # a task that waits for it cannot cancel it
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="pybeam load", daemon=True).start()
    return await asyncio.wrap_future(future)


def in_words(num_bytes: float) -> str:
    """Write a size of memory: 17 bytes, 1.5 MiB."""
    place = 0
    while num_bytes >= 1024 and place < len(UNITS) - 1:
        num_bytes, place = num_bytes / 1024, place + 1
    return f"{num_bytes:.4g} {UNITS[place]}"
