"""`Run`: a corpus is decoded into a folder, part by part, and goes on where it was interrupted."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from pybeam import __version__
from pybeam.corpus.executors import Executor
from pybeam.corpus.folder import Folder, checksum_of
from pybeam.corpus.job import Job
from pybeam.corpus.manifest import Manifest, PartEntry
from pybeam.corpus.parts import CorpusError, Counts, FinishedPart, Part, parts_of
from pybeam.corpus.readers import Corpus


class Listener:
    """Hears how a run goes. A subclass tells the user."""

    def note(self, message: str) -> None:
        """Something happened that is no failure, such as a damaged part that is decoded again."""

    def going_on(self, num_parts: int, num_lines: int) -> None:
        """An earlier run has finished so much."""

    def beginning(self, share: float) -> None:
        """The first part that is decoded now has been cut; the input was read to this share."""

    def finished(self, part: FinishedPart, share: float) -> None:
        """A part is on the disk. The input was read to this share of its bytes when it was cut."""


@dataclass(frozen=True)
class Summary:
    """The outcome of a run.

    Attributes:
        counts: what was decoded now.
        num_parts, num_lines, num_failed: of the whole output folder (or the shard's share), earlier runs
            included.
    """

    counts: Counts
    num_parts: int
    num_lines: int
    num_failed: int


class Run:
    """One corpus, one job, one output folder. Only `execute` of one process at a time works on it.

    Args:
        output_dir: the folder, which has `part-00000.txt`, … (or `.jsonl`), `errors.jsonl` and
            `manifest.json` in the end.
        job: what is done with every line.
        corpus: the lines.
        part_lines: lines of a part.
        shard: (i, n): decode the i-th of n shares of the parts, from 1.
        force: begin anew, whatever the folder holds of this share.
        listener: hears how the run goes.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        job: Job,
        corpus: Corpus,
        *,
        part_lines: int = 10_000,
        shard: tuple[int, int] = (1, 1),
        force: bool = False,
        listener: Listener | None = None,
    ) -> None:
        self._job, self._corpus, self._force = job, corpus, force
        self._part_lines, self._shard = part_lines, shard
        self._folder = Folder(output_dir, job.form.extension, shard)
        self._listener = Listener() if listener is None else listener
        self._is_touched = False  # whether the input was written since an earlier run
        self._shares: dict[int, float] = {}  # of the input, by part that is being decoded

    def execute(self, start: Callable[[int], Executor]) -> Summary:
        """Decode what is left, and return when all parts are whole.

        Args:
            start: makes the executor for about so many parts; called only if something is left to do.

        Raises:
            CorpusError: the folder holds another run, or is in use; the input cannot be read or has
                changed; something cannot be written. Parts that are whole are kept.
        """
        with self._folder.locked():
            manifest = self._manifest()
            self._folder.clean()
            counts = Counts()
            if not self._is_done(manifest):
                self._forget_damaged(manifest)
                if manifest.parts:
                    lines = sum(entry.lines for entry in manifest.parts.values())
                    self._listener.going_on(len(manifest.parts), lines)
                self._decode(manifest, start, counts)
                self._complete(manifest)
            # what was left when an earlier run was killed as it ended
            self._folder.remove_part_errors()
            entries = manifest.parts.values()
            return Summary(
                counts,
                len(entries),
                sum(entry.lines for entry in entries),
                sum(entry.failed for entry in entries),
            )

    def _manifest(self) -> Manifest:
        """Return the manifest of this run, with what earlier ones have done."""
        new = Manifest(
            __version__,
            self._job.model_checksums(),
            json.loads(json.dumps(self._job.compared_options(), default=str)),
            self._part_lines,
            self._shard,
            self._corpus.files,
        )
        replaces_all = self._force and self._shard[1] == 1
        for path in [] if replaces_all else self._folder.other_manifests():
            other = Manifest.read(path)
            if other is not None:
                new.check_same(dataclasses.replace(other, shard=(self._shard[0], other.shard[1])))
        if self._force:
            self._folder.clear()
        old = Manifest.read(self._folder.manifest)
        if old is None:
            self._folder.check_empty()
            return new
        new.check_same(old)
        new.parts, new.num_lines, new.errors = old.parts, old.num_lines, old.errors
        self._is_touched = not new.has_same_times(old)
        return new

    def _is_done(self, manifest: Manifest) -> bool:
        is_whole = (
            manifest.errors is not None
            and checksum_of(self._folder.errors) == manifest.errors
            and all(
                checksum_of(self._folder.part(index)) == entry.output
                for index, entry in manifest.parts.items()
            )
        )
        if is_whole and self._is_touched:
            # the checksums of all parts tell whether the input is the same
            more = next(self._parts_left(manifest), None)
            if more is not None:
                raise _changed(f"it has more than {more.first_line:,} lines now")
            self._save(manifest)
        return is_whole

    def _forget_damaged(self, manifest: Manifest) -> None:
        """Decode parts again whose files are not as they were written."""
        for index, entry in list(manifest.parts.items()):
            path = self._folder.part(index)
            if checksum_of(path) != entry.output:
                self._listener.note(f"{path} is damaged or gone; it is decoded again")
            elif (
                entry.errors is None or checksum_of(self._folder.part_errors(index)) == entry.errors
            ):
                continue
            del manifest.parts[index]
        manifest.errors = None

    def _decode(self, manifest: Manifest, start: Callable[[int], Executor], counts: Counts) -> None:
        left = self._parts_left(manifest)
        first = next(left, None)
        if first is None:
            return
        executor = start(self._num_parts_left(first))
        # only now, so that options which do not fit the model leave nothing behind
        self._save(manifest)
        self._listener.beginning(self._shares[first.index])
        try:
            with closing(executor.run(chain([first], left))) as finished:
                for part in finished:
                    self._write(manifest, part)
                    counts += part.counts
                    self._listener.finished(part, self._shares.pop(part.index))
        except CorpusError as error:
            self._mark_unreadable(manifest, error.path)
            raise

    def _parts_left(self, manifest: Manifest) -> Iterator[Part]:
        """Read the input, and yield the parts of this run's share that are not whole yet."""
        num_lines, indices = 0, set()
        for part in parts_of(self._corpus, self._part_lines):
            num_lines += part.num_lines
            indices.add(part.index)
            entry = manifest.parts.get(part.index)
            if entry is not None:
                if part.checksum != entry.input:
                    raise _changed(f"its {part.span} are others")
            elif self._folder.holds(part.index):
                self._shares[part.index] = self._corpus.read_bytes / max(1, self._corpus.num_bytes)
                yield part
        if not indices >= manifest.parts.keys():
            raise _changed(f"it has only {num_lines:,} lines now")
        manifest.num_lines = num_lines

    def _num_parts_left(self, first: Part) -> int:
        """Guess how many parts are left, from how much of the input has been read for those so far."""
        num_read, share = first.index + 1, max(self._shares[first.index], 1e-9)
        return max(1, round((num_read / share - first.index) / self._shard[1]))

    def _write(self, manifest: Manifest, part: FinishedPart) -> None:
        errors = None
        if part.problems:
            errors = self._folder.write(
                self._folder.part_errors(part.index),
                (_encoded(json.dumps(one, ensure_ascii=False) + "\n") for one in part.problems),
            )
        output = self._folder.write(
            self._folder.part(part.index), (_encoded(text) for text in part.outputs)
        )
        manifest.parts[part.index] = PartEntry(
            len(part.outputs), part.counts.failed, part.checksum, output, errors
        )
        self._save(manifest)

    def _complete(self, manifest: Manifest) -> None:
        manifest.errors = self._folder.write(self._folder.errors, self._problems(manifest))
        manifest.inputs = self._corpus.files
        self._save(manifest)

    def _problems(self, manifest: Manifest) -> Iterator[bytes]:
        for index, entry in sorted(manifest.parts.items()):
            if entry.errors is not None:
                yield self._folder.part_errors(index).read_bytes()

    def _mark_unreadable(self, manifest: Manifest, path: str | None) -> None:
        """Let a later run accept another size of a file that ends too early now."""
        marked = [
            dataclasses.replace(file, size=None) if file.name == path else file
            for file in manifest.inputs
        ]
        if marked != manifest.inputs:
            manifest.inputs = marked
            self._save(manifest)

    def _save(self, manifest: Manifest) -> None:
        self._folder.write(self._folder.manifest, [manifest.to_bytes()])


def _changed(how: str) -> CorpusError:
    return CorpusError(
        f"the input has changed since the run began: {how}; bring it back, or start anew with --force"
    )


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")
