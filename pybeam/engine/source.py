"""`Source`: a request that waits or is being decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pybeam.request import Request, Result
from pybeam.search.algorithms import Algorithm


@dataclass(eq=False)
class Source:
    """A request that waits or is being decoded."""

    index: int
    request: Request
    content: Any  # as the model's `check` returned it
    length: int
    limits: Algorithm
    prefix: list[int]
    target: list[int]  # to be scored, with EOS; empty: a search
    most_bytes: int = 0  # of keys and values
    groups: list[Result] = field(default_factory=list)  # of a diverse search, that have ended
    num_committed: int = 0  # tokens that a `Partial` has told, the prefix included
    slot: int = -1
    opened: int = -1  # step at which it was admitted

    @property
    def number(self) -> int:
        """By which the model knows the source."""
        return self.index if self.request.source_id is None else self.request.source_id

    @property
    def guesses(self) -> Sequence[int]:
        """Of what will be generated, where tokens are guessed."""
        draft = self.limits.draft
        return () if draft is None else draft.initialiser.guesses(self.request)

    @property
    def most_tokens(self) -> int:
        """Tokens of its longest possible hypothesis, start included."""
        return 1 + len(self.prefix) + self.limits.max_length
