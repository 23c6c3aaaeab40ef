"""The audit log: who asked for what, a line of JSON for each request, and no texts."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

# in this order; what a request has not is null
FIELDS = (
    *("time", "request_id", "key", "address", "method", "path", "status"),
    *("request_bytes", "response_bytes", "seconds", "queued", "encoding", "decoding"),
    *("model", "sources"),
)


class AuditLog:
    """A file to which lines are added.

    Each line is written at once and whole, so that several processes may share the file.

    Args:
        path: of the file, which only its owner may read if it is made now.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path, self._file = path, -1
        self._is_failing = False
        self.reopen()

    def reopen(self) -> None:
        """Go on in a new file, if the present one has been renamed.

        Raises:
            OSError: it cannot be opened. The log then goes on in the present one.
        """
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.close()
        self._file = file

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the line of a request; `FIELDS` says what is taken of the record."""
        line = json.dumps({name: record.get(name) for name in FIELDS}).encode() + b"\n"
        try:
            is_whole = os.write(self._file, line) == len(line)
        except OSError:
            is_whole = False
        # a full disk is said once, and not for each request
        if not is_whole and not self._is_failing:
            logger.error("the audit log %s misses lines: the file cannot be written", self._path)
        self._is_failing = not is_whole
