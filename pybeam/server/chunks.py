"""The answers of OpenAI's completions and chats: whole, or a stream of chunks."""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from pybeam import __version__
from pybeam.server.continuations import Choice, Delta, Part, Usage
from pybeam.server.models import ServedModel
from pybeam.server.sse import event_of


def frame_of(model: ServedModel, prefix: str, kind: str) -> dict[str, Any]:
    """Return what an answer has beside its choices and its usage.

    Args:
        model: the model.
        prefix: of the answer's id.
        kind: "object" of the answer.
    """
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model.name,
        # the same seed draws the same outputs, as long as this stays
        "system_fingerprint": f"pybeam-{__version__}",
    }


class Chunks(ABC):
    """Writes the chunks of a stream, all of one id.

    Args:
        frame: what all chunks have beside their choice.
        has_usage: whether the usage stands before the end.
    """

    def __init__(self, frame: dict[str, Any], has_usage: bool) -> None:
        self._frame, self._has_usage = frame, has_usage
        self._before = json.dumps(frame, ensure_ascii=False)[:-1] + ', "choices": ['
        self._after = '], "usage": null}' if has_usage else "]}"

    def __call__(self, part: Part) -> Iterator[str]:
        if isinstance(part, Usage):
            if self._has_usage:
                yield event_of(self._frame | {"choices": [], "usage": part.fields})
            yield event_of("[DONE]")
            return
        found = self.piece(part) if isinstance(part, Delta) else self.end(part)
        for choice in found:
            yield event_of(self._before + json.dumps(choice, ensure_ascii=False) + self._after)

    @abstractmethod
    def piece(self, part: Delta) -> Iterator[dict[str, Any]]:
        """Yield the choices of chunks that say what is certain."""

    @abstractmethod
    def end(self, part: Choice) -> Iterator[dict[str, Any]]:
        """Yield the choices of chunks that end an output."""
