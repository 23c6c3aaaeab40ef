"""`NewBeam`: the facts about a source that open a beam for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pybeam.search.algorithms import Algorithm

NO_SLOT = -1


@dataclass(eq=False, kw_only=True)
class NewBeam:
    """A beam that is to be opened. It begins with one row, the start token.

    Attributes:
        slot: its line in all arrays; `NO_SLOT` until it has one.
        algorithm: the rules of this source: the state's algorithm with the overrides of its request.
        source_length: |x|, for rewards.
        start: the token of that row; None: the model's start token.
        prefix: tokens that every hypothesis begins with.
        target: tokens that are scored behind the prefix, EOS included. Empty: the beam searches.
        guesses: guesses of the generated tokens, if the algorithm guesses ahead.
        prompt: the result of `Model.prompt`.
        num_read: how many tokens of the prefix are taken at once, before the first step.
    """

    algorithm: Algorithm
    source_length: int
    slot: int = NO_SLOT
    start: int | None = None
    prefix: Sequence[int] = ()
    target: Sequence[int] = ()
    guesses: Sequence[int] = ()
    prompt: Tensor | None = None
    num_read: int = 0
