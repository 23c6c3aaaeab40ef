"""The manifest of a run: what is decoded, how, from what, and which parts are whole."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pybeam.corpus.parts import CorpusError

FORMAT = 1
REMEDY = (
    "repeat the options of that run to go on with it, give another --output-dir, or start anew with "
    "--force"
)


@dataclass(frozen=True)
class InputFile:
    """A file of the input. `size` is None if it could not be read to its end."""

    name: str
    size: int | None
    mtime_ns: int

    @classmethod
    def now(cls, path: str) -> InputFile:
        """Look at a file.

        Raises:
            CorpusError: it is not there.
        """
        try:
            status = os.stat(path)
        except OSError as error:
            raise CorpusError(f"{path}: {error.strerror}") from error
        return cls(path, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class PartEntry:
    """A part that is whole: how many lines, how many of them failed, and checksums of both sides."""

    lines: int
    failed: int
    input: str
    output: str
    errors: str | None = None  # the checksum of the part's problems; None: it has none


@dataclass
class Manifest:
    """The facts of a run, and the parts that are done.

    Attributes:
        pybeam: its version.
        model: a checksum for every file of the models.
        options: all that may change a result, by the name that the user knows.
        part_lines: lines of a part.
        shard: (i, n), from 1.
        inputs: the files that are read.
        parts: those that are whole, by index.
        num_lines: lines of the whole input, once they are known.
        errors: the checksum of all problems together; None: parts are missing.
    """

    pybeam: str
    model: Mapping[str, str]
    options: Mapping[str, Any]
    part_lines: int
    shard: tuple[int, int]
    inputs: list[InputFile]
    parts: dict[int, PartEntry] = field(default_factory=dict)
    num_lines: int | None = None
    errors: str | None = None

    def to_bytes(self) -> bytes:
        """Return it as JSON, with one line per part."""
        record = {"format": FORMAT, **dataclasses.asdict(self)}
        parts = [
            f'  "{index}": {json.dumps(dataclasses.asdict(entry))}'
            for index, entry in sorted(self.parts.items())
        ]
        record["parts"] = {}
        text = json.dumps(record, indent=1, ensure_ascii=False)
        if parts:
            text = text.replace('"parts": {}', '"parts": {\n' + ",\n".join(parts) + "\n }", 1)
        return (text + "\n").encode("utf-8", errors="surrogateescape")

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """Read one; None if there is none.

        Raises:
            CorpusError: it cannot be read, or another version of pybeam has written it.
        """
        try:
            text = path.read_bytes().decode("utf-8", errors="surrogateescape")
            record = json.loads(text)
            number = record.pop("format")
            if number != FORMAT:
                raise CorpusError(
                    f"{path} has format {number}, but this pybeam reads {FORMAT}; {REMEDY}"
                )
            record["inputs"] = [_made(InputFile, one) for one in record["inputs"]]
            record["parts"] = {int(i): _made(PartEntry, one) for i, one in record["parts"].items()}
            record["shard"] = int(record["shard"][0]), int(record["shard"][1])
            return _made(cls, record)
        except FileNotFoundError:
            return None
        except CorpusError:
            raise
        except OSError as error:
            raise CorpusError(f"cannot read {path}: {error.strerror}") from error
        # RecursionError: thousands of lists within each other; OverflowError: infinity as a number of shards
        except (
            *(ValueError, LookupError, TypeError, AttributeError),
            *(OverflowError, RecursionError),
        ) as error:
            raise CorpusError(f"{path} is no manifest of pybeam; {REMEDY}") from error

    def check_same(self, old: Manifest) -> None:
        """Check that an earlier run decodes the same, so that this one may go on where it stopped.

        Raises:
            CorpusError: it does not; the message says what differs.
        """
        differences = [
            *_differences({"pybeam": old.pybeam}, {"pybeam": self.pybeam}),
            *_differences(old.options, self.options),
            *_differences({"--part-lines": old.part_lines}, {"--part-lines": self.part_lines}),
            *_differences(
                {"--shard": "{}/{}".format(*old.shard)}, {"--shard": "{}/{}".format(*self.shard)}
            ),
        ]
        if self.model != old.model:
            names = sorted(old.model.keys() | self.model.keys())
            names = [name for name in names if old.model.get(name) != self.model.get(name)]
            differences.append(f"the model is another one ({', '.join(names)})")
        if differences:
            raise CorpusError(
                f"the output folder holds another run: {'; '.join(differences)}; {REMEDY}"
            )
        self.check_same_input(old)

    def check_same_input(self, old: Manifest) -> None:
        """Check that the files of the input are as long as they were in an earlier run."""
        if len(old.inputs) != len(self.inputs):
            raise CorpusError(
                f"the output folder holds a run of {len(old.inputs)} input files, but this one has "
                f"{len(self.inputs)}; {REMEDY}"
            )
        for before, now in zip(old.inputs, self.inputs, strict=True):
            # a file that was cut may be whole now; checksums of parts tell whether it is the same
            if before.size is not None and before.size != now.size:
                raise CorpusError(
                    f"the input {now.name} has changed since the run began: it had {before.size:,} bytes "
                    f"and has {now.size:,}; bring it back, or start anew with --force"
                )

    def has_same_times(self, old: Manifest) -> bool:
        """Whether no input file has been written since an earlier run read it."""
        times = [(one.size, one.mtime_ns) for one in old.inputs]
        return times == [(one.size, one.mtime_ns) for one in self.inputs]


# fields that JSON might give another type
TYPES: dict[type, dict[str, Any]] = {
    InputFile: {"name": str, "size": int | None, "mtime_ns": int},
    PartEntry: {"lines": int, "failed": int, "input": str, "output": str, "errors": str | None},
    Manifest: {
        "model": dict,
        "options": dict,
        "part_lines": int,
        "num_lines": int | None,
        "errors": str | None,
    },
}
T = TypeVar("T")


def _made(kind: type[T], record: dict[str, Any]) -> T:
    """Make one of these from JSON. Raises TypeError if a field is missing, unknown or of another type."""
    found = kind(**record)
    for name, expected in TYPES[kind].items():
        if not isinstance(getattr(found, name), expected):
            raise TypeError(name)
    return found


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    names = sorted(old.keys() | new.keys())
    return [
        f"{name} was {_shown(old.get(name))} and is {_shown(new.get(name))}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def _shown(value: Any) -> str:
    if value is None or value is False or value == []:
        return "not given"
    return "given" if value is True else str(value)
