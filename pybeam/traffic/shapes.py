"""The shapes of requests that servers take, and how a stream says that it has text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pybeam.traffic.events import has_choice, is_certain


@dataclass(frozen=True)
class Shape:
    """A request that asks for one text.

    Attributes:
        path: of the endpoint.
        with_text: returns the fields that hold a text.
        is_text: whether a line of a stream of events has text; None: the endpoint has no streams.
        fields: others that servers insist on, unless the caller names them.
        needs_model: whether servers insist on the name of a model, too, and list theirs.
        has_key: whether servers look for the key in the body.
    """

    path: str
    with_text: Callable[[str], dict[str, Any]]
    is_text: Callable[[bytes], bool] | None = is_certain
    fields: dict[str, Any] = field(default_factory=dict)
    needs_model: bool = False
    has_key: bool = False

    def body(self, text: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a request, with fields of the caller's."""
        return {**self.fields, **self.with_text(text), **fields}


def _message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


# pybeam's own, OpenAI's and LibreTranslate's
SHAPES = {
    "translations": Shape("/v1/translations", lambda text: {"text": text}),
    "decode": Shape("/v1/decode", lambda text: {"source": text}),
    "completions": Shape(
        "/v1/completions", lambda text: {"prompt": text}, has_choice, needs_model=True
    ),
    "chat": Shape("/v1/chat/completions", _message, has_choice, needs_model=True),
    "libretranslate": Shape(
        "/translate",
        lambda text: {"q": text},
        None,
        {"source": "auto", "target": "en"},
        has_key=True,
    ),
}
