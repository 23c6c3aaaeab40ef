"""Streams of server-sent events, of which only the first text and errors count."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

DATA = b"data:"
BROKEN = (b"event: error", b'data: {"error"')


class EventLines:
    """Looks through the lines of a body as they come. One that is no stream has no such lines.

    Args:
        is_text: whether a line has text; None: none has.

    Attributes:
        first: when the first text came, on `time.perf_counter`; None: there was none.
        is_broken: whether an error ended the stream.
        problem: in that case, what stands in for its words.
    """

    def __init__(self, is_text: Callable[[bytes], bool] | None) -> None:
        self._is_text, self._rest = is_text, b""
        self.first: float | None = None
        self.is_broken, self.problem = False, ""

    def add(self, piece: bytes) -> None:
        """Look through the next bytes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if self._is_text is not None and self._is_text(line):
                self.first, self._is_text = time.perf_counter(), None
            if line.startswith(BROKEN):
                self.is_broken, self.problem = True, "the stream ended with an error"


def is_certain(line: bytes) -> bool:
    """Whether a line says of an event of pybeam's that its text is certain."""
    return line.startswith(b"event: certain")


def has_choice(line: bytes) -> bool:
    """Whether a line is a chunk of OpenAI's completions or chats with text."""
    if not line.startswith(DATA):
        return False
    try:
        [choice] = json.loads(line[len(DATA) :])["choices"]
        return bool(choice.get("text") or choice["delta"].get("content"))
    # the end, `[DONE]`, a chunk with the usage alone, or one without text
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
