"""A file that keeps what has been done, a line for each result, so that nothing is done again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pybeam.arguments import ArgumentError
from pybeam.platforms.system import hold

HEADING = {"pybeam": "journal of a comparison", "version": 1}


class Journal:
    """Results by what gave them and by the source. Each is in the file as soon as it is known.

    A line that was cut when a program was killed is dropped.

    Args:
        path: the file, which is made if there is none; None: nothing is kept.

    Raises:
        ValueError: the file is no such journal, or another comparison writes it.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        self._file = None
        if path is None:
            return
        path = Path(path)
        self._file = path.open("r+b" if path.exists() else "x+b")
        try:
            self._hold(path)
            whole = self._read(path)
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(whole)
        self._file.seek(whole)
        if not whole:
            self._write(HEADING)

    @property
    def is_kept(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def _hold(self, path: Path) -> None:
        """Keep others from writing the file until it is closed, where a system can."""
        assert self._file is not None
        try:
            is_ours = hold(self._file.fileno())
        except OSError:
            # a file system without locks
            return
        if not is_ours:
            raise ValueError(
                f"`journal` must be a file that no other comparison writes, but one writes {path}; wait for "
                "its end, or use another file"
            )

    def _read(self, path: Path) -> int:
        """Read the lines; returns the bytes of those that are whole."""
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                read = json.loads(line)
                if number == 1 and read != HEADING:
                    raise ValueError(f"it begins with {line[:60]!r}")
                if number > 1:
                    self._found[read["by"], read["source"]] = read["result"]
            except (ValueError, TypeError, KeyError) as error:
                raise ArgumentError(
                    "journal",
                    "must be a new file or one that a comparison has written, but line "
                    f"{number} of {path} is none of its lines: {error}",
                ) from error
        # a file that is no journal is not overwritten
        if data and not whole and not json.dumps(HEADING).encode().startswith(data):
            raise ArgumentError(
                "journal",
                f"must be a new file or one that a comparison has written, but {path} begins with "
                f"{data[:60]!r}",
            )
        return whole

    def get(self, by: str, source: str) -> dict[str, Any] | None:
        """Return the result of a source, if it is known."""
        return self._found.get((by, source))

    def add(self, by: str, source: str, result: dict[str, Any]) -> None:
        """Keep a result."""
        self._found[by, source] = result
        if self._file is not None:
            self._write({"by": by, "source": source, "result": result})

    def _write(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
