"""Texts that are split hold no more memory than the ids of their pieces."""

from __future__ import annotations

import asyncio
import random
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from pybeam.server import documents


class Ids(list):
    """Ids that may be watched."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def test_of_a_text_that_is_halved_the_ids_of_its_pieces_alone_stay(monkeypatch):
    made: weakref.WeakSet[Ids] = weakref.WeakSet()
    num = []

    class Tokenizer:
        def encode(self, text: str) -> Ids:
            ids = Ids(text)
            made.add(ids)
            return ids

    async def decoded(*_: Any) -> list:
        num.append(sum(map(len, made)))
        raise InterruptedError

    monkeypatch.setattr(documents, "_decoded", decoded)
    decoder = SimpleNamespace(model=SimpleNamespace(max_positions=None))
    model: Any = SimpleNamespace(tokenizer=lambda *_: Tokenizer(), has_tags=False, decoder=decoder)
    calls: Any = SimpleNamespace(settings=SimpleNamespace(max_source_tokens=16))
    text = "".join(random.Random(0).choices("abcdef", k=4000))
    with pytest.raises(InterruptedError):
        asyncio.run(documents.translated(calls, None, model, ("es", "en"), [text], "text"))  # type: ignore[arg-type]
    assert num[0] <= 2 * len(text)
