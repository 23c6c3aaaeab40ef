"""`NewBeam`: what the state must know of a source to open a beam for it."""

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
        slot: its place in all arrays by slot; `NO_SLOT` until it has one.
        algorithm: the rules of this source; those of the state's algorithm with what its request changes.
        source_length: |x|, by which rewards are counted.
        prefix: tokens that every hypothesis begins with.
        target: tokens that are scored behind the prefix, EOS included. Empty: the beam searches.
        guesses: of the generated tokens, where the algorithm guesses ahead.
        prompt: as `Model.prompt` gives it.
    """

    algorithm: Algorithm
    source_length: int
    slot: int = NO_SLOT
    prefix: Sequence[int] = ()
    target: Sequence[int] = ()
    guesses: Sequence[int] = ()
    prompt: Tensor | None = None
