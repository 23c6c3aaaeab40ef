"""The folder that a run writes to: names, a lock, and files that are whole or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pybeam.corpus.parts import CorpusError, new_digest
from pybeam.platforms.decoding import at_fork
from pybeam.platforms.system import hold, sync_folder

UNFINISHED = ".unfinished"
PART_DIGITS = 5
PART = re.compile(r"\.?part-(\d+)\.")


# descriptors of locks
_HELD: set[int] = set()


def _let_go() -> None:
    """A lock is held as long as any process has its descriptor, so a child must not keep it."""
    for lock in _HELD:
        os.close(lock)
    _HELD.clear()


at_fork(_let_go)


class Folder:
    """An output folder, or a shard's share of one.

    A file gets its name when its content is on the disk, and the name is on the disk before anything
    says that the file exists. So neither a kill nor a power cut leaves half a file under its name.

    Args:
        path: the folder; it is made if it does not exist.
        extension: that of parts.
        shard: (i, n): this run is the i-th of n, from 1.
    """

    def __init__(
        self, path: str | os.PathLike[str], extension: str, shard: tuple[int, int]
    ) -> None:
        self.path, self._extension = Path(path), extension
        self._place, self._num_shards = shard[0] - 1, shard[1]
        digits = f"{shard[0]:0{PART_DIGITS}}-of-{shard[1]:0{PART_DIGITS}}"
        suffix = "" if self._num_shards == 1 else f"-{digits}"
        self.manifest = self.path / f"manifest{suffix}.json"
        self.errors = self.path / f"errors{suffix}.jsonl"
        self._lock = self.path / f".lock{suffix}"

    def part(self, index: int) -> Path:
        """Return the path of a part."""
        return self.path / f"part-{index:0{PART_DIGITS}}{self._extension}"

    def part_errors(self, index: int) -> Path:
        """Return the path of a part's errors, which stand there until the run ends."""
        return self.path / f".part-{index:0{PART_DIGITS}}.errors.jsonl"

    def other_manifests(self) -> list[Path]:
        """Return the manifests of other runs, such as those of the other shards."""
        return sorted(set(self.path.glob("manifest*.json")) - {self.manifest})

    def check_empty(self) -> None:
        """Check that no parts are here that no manifest tells of.

        Raises:
            CorpusError: there are some.
        """
        foreign = [path for path in self._own() if not path.name.endswith(UNFINISHED)]
        if foreign:
            raise CorpusError(
                f"{foreign[0]} is there without a manifest that tells where it is from; give another "
                "--output-dir, or replace it with --force"
            )

    def holds(self, index: int) -> bool:
        """Whether a part belongs to this run's share."""
        return index % self._num_shards == self._place

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of this one's share.

        The system takes the lock back when this process ends, however it ends.
        """
        try:
            if not self.path.is_dir():
                self.path.mkdir(parents=True, exist_ok=True)
                sync_folder(self.path.parent)
            lock = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise CorpusError(f"cannot write into {self.path}: {error.strerror}") from error
        try:
            try:
                is_ours = hold(lock)
            except OSError as error:
                raise CorpusError(
                    f"{self.path} cannot be locked against other runs: {error.strerror}; give an "
                    "--output-dir on a file system that has locks"
                ) from error
            if not is_ours:
                raise CorpusError(
                    f"another run is writing into {self.path}; wait until it ends, or give another "
                    "--output-dir"
                )
            _HELD.add(lock)
            yield
        finally:
            _HELD.discard(lock)
            os.close(lock)

    def write(self, path: Path, chunks: Iterable[bytes]) -> str:
        """Write a file that is whole or not there at all. Returns its checksum.

        Raises:
            CorpusError: it cannot be written; nothing is left of it.
        """
        unfinished = path.with_name(f".{path.name.removeprefix('.')}{UNFINISHED}")
        digest = new_digest()
        try:
            with open(unfinished, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
            sync_folder(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise CorpusError(
                f"cannot write {path}: {error.strerror}; when that is mended, start again, and the run goes "
                "on with the part at which it stopped"
            ) from error
        return digest.hexdigest()

    def clean(self) -> None:
        """Remove what interrupted writes have left."""
        _remove(path for path in self._own() if path.name.endswith(UNFINISHED))

    def clear(self) -> None:
        """Remove all that runs of this share have written, but not the lock. A whole run has all shares."""
        # first of all, so that a kill in between leaves no manifest of parts that are gone
        _remove([self.manifest])
        if self._num_shards == 1:
            _remove([*self.other_manifests(), *self.path.glob("errors-*.jsonl")])
        _remove(self._own())

    def remove_part_errors(self) -> None:
        """Remove the errors of single parts, which `errors` holds together in the end."""
        _remove(path for path in self._own() if path.name.startswith(".part-"))

    def _own(self) -> list[Path]:
        ends = {self.manifest.name, self.errors.name}
        own = []
        for path in sorted(self.path.iterdir()):
            found = PART.match(path.name)
            if found is None:
                is_mine = path.name.removeprefix(".").removesuffix(UNFINISHED) in ends
            else:
                is_mine = self.holds(int(found[1]))
            if is_mine:
                own.append(path)
        return own


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def checksum_of(path: Path) -> str | None:
    """Return the checksum of a file as `Folder.write` gives it; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, new_digest).hexdigest()
    except OSError:
        return None
