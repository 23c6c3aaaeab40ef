"""Draft and verify: how many tokens are guessed ahead, what is guessed first, when a block is done.

A source has one hypothesis. A step feeds its last token and guesses of the tokens behind it, as rows that
see each other causally; the model's outputs are final as long as the next row was fed what this one put
out. What greedy decoding would say is therefore what comes out, whatever was guessed; an output that is
not final is the next guess of its place (the iteration of Jacobi). See Santilli et al. 2023.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor

from pybeam.arguments import whole
from pybeam.backends.arrays import MOST_NGRAM, STEP
from pybeam.contracts import MAX_WIDTH
from pybeam.request import Request, Result

__all__ = [
    "Convergence",
    "Initialiser",
    "copy_source",
    "function",
    "ngram_lookup",
    "pad",
    "previous_output",
    "repeat_last",
]
NO_LIMIT = 2**30
PRICE = 0.25  # of a guess, where one source is decoded at a time
FIRST_CREDIT = 50


class Initialiser(ABC):
    """What is guessed of a token that the model has not guessed yet; subclass it for your own.

    Guesses change how many iterations there are, never the output. Where `guesses` ends, or holds what
    is no token of the vocabulary, the guess is `fill`.

    Attributes:
        fill: "pad", the model's padding token (the start token if it has none); "last", the token
            before; or a token id.
        ngram: 0: the i-th of the guesses is that of the i-th generated token; n > 0: the guess is what
            followed the latest earlier occurrence of the n tokens before, in the output or, if it is
            not there, in `guesses`.
    """

    fill: int | str = "last"
    ngram: int = 0

    @abstractmethod
    def guesses(self, request: Request) -> Sequence[int]:
        """Guesses of what is generated for this request; asked for when its decoding begins."""

    def finished(self, result: Result) -> None:
        """Called with every result that has come out."""


@dataclass(frozen=True)
class Fill(Initialiser):
    fill: int | str = "pad"

    def guesses(self, request: Request) -> Sequence[int]:
        return ()


@dataclass(frozen=True)
class CopySource(Initialiser):
    skip: int = 0

    def __post_init__(self) -> None:
        whole("skip", self.skip, 0)

    def guesses(self, request: Request) -> Sequence[int]:
        return _source_ids(request)[self.skip :]


@dataclass(frozen=True)
class NgramLookup(Initialiser):
    ngram: int = 2

    def __post_init__(self) -> None:
        whole("n", self.ngram, 1, MOST_NGRAM)

    def guesses(self, request: Request) -> Sequence[int]:
        return _source_ids(request)


@dataclass(frozen=True)
class PreviousOutput(Initialiser):
    _last: list[list[int]] = field(default_factory=lambda: [[]], repr=False, compare=False)

    def guesses(self, request: Request) -> Sequence[int]:
        # tokens of a hypothesis begin with the prefix, guesses behind it
        return self._last[0][request.prefix_length :]

    def finished(self, result: Result) -> None:
        if result.hypotheses:
            self._last[0] = result.hypotheses[0].tokens


@dataclass(frozen=True)
class FromFunction(Initialiser):
    function: Callable[[Request], Sequence[int]]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"`function` must be a function, but is {self.function!r}")

    def guesses(self, request: Request) -> Sequence[int]:
        guesses = self.function(request)
        guesses = guesses.tolist() if isinstance(guesses, Tensor | np.ndarray) else guesses
        is_list = isinstance(guesses, Sequence)
        if not is_list or not all(isinstance(one, Integral) for one in guesses):
            raise TypeError(
                f"`function` must return a list of token ids, which are ints, but returned {guesses!r}"
            )
        return guesses


def pad() -> Initialiser:
    """The model's padding token everywhere, as in the paper."""
    return Fill("pad")


def repeat_last() -> Initialiser:
    """The token before, again and again."""
    return Fill("last")


def copy_source(skip: int = 0) -> Initialiser:
    """The i-th token is the source's, the first `skip` ids left out; for what is copied or edited.

    Raises:
        TypeError, ValueError: `skip` is no int, or negative.
    """
    return CopySource(skip)


def previous_output() -> Initialiser:
    """The output that came out last, for inputs that follow one another and differ little.

    Which one that is depends on the schedule, and so do steps; outputs do not.
    """
    return PreviousOutput()


def ngram_lookup(n: int = 2) -> Initialiser:
    """What followed the last `n` tokens (1 to 4) before, in the output or else in the source.

    Raises:
        TypeError, ValueError: `n` is no int, or out of range.
    """
    return NgramLookup(n)


def function(fn: Callable[[Request], Sequence[int]]) -> Initialiser:
    """What a function of the request returns: token ids, such as a translation memory's.

    Args:
        fn: ``fn(request) -> ids`` of the generated tokens.

    Raises:
        TypeError: `fn` is no function.
    """
    return FromFunction(fn)


@dataclass(frozen=True)
class Convergence:
    """When a block is done, if not because all of its tokens are proven.

    The default is the paper's: nothing has changed. Anything else gives up exactness: outputs are
    accepted that follow from other tokens than those before them.

    Args:
        max_changes: done when at most so many tokens differ from the guesses that were fed.
        max_rounds: done after so many iterations of a block; None: however many it takes.
    """

    max_changes: int = 0
    max_rounds: int | None = None

    def __post_init__(self) -> None:
        whole("max_changes", self.max_changes, 0)
        if self.max_rounds is not None:
            whole("max_rounds", self.max_rounds, 1)


UNCHANGED = Convergence()
PAD = Fill()


@dataclass(frozen=True)
class Draft:
    """The policy of an advance by draft and verify; data for `draft_commit`.

    Args:
        block: generated tokens between two boundaries that a draft does not cross; None: all.
        horizon: generated tokens up to which tokens are guessed, or a function of the request that
            says so; None: to the end.
        most: rows at most of a window that adapts, in place of blocks.
        price: what a guess costs, in steps that a source would take alone; by which such a window
            adapts. None: `PRICE`, until `for_sources` knows better.
        feeds_all: whether what stands behind a guessed EOS is fed too, as in the paper. If the guess
            holds that was for nothing, if it does not there are guesses of more tokens.
    """

    block: int | None = None
    horizon: int | Callable[[Request], int] | None = None
    initialiser: Initialiser = PAD
    convergence: Convergence = UNCHANGED
    most: int | None = None
    price: float | None = None
    feeds_all: bool = False

    def __post_init__(self) -> None:
        for name in ("block", "most"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, MAX_WIDTH)
        if self.price is not None and not isinstance(self.price, Real):
            raise TypeError(f"`price` must be a number, but is {self.price!r}")
        if self.price is not None and not 0 <= self.price <= 100:
            raise ValueError(f"`price` must be 0 to 100 steps, but is {self.price}")
        if self.horizon is not None and not callable(self.horizon):
            whole("horizon` or `length", self.horizon, 0)
        for name, kind in (("initialiser", Initialiser), ("convergence", Convergence)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(
                    f"`{name}` must be made by pybeam.drafts, as an object of class "
                    f"{kind.__name__}, but is {getattr(self, name)!r}"
                )

    def most_rows(self, max_length: int) -> int:
        """Rows that a source may have."""
        most = self.block if self.most is None else self.most
        if most is None:
            is_number = self.horizon is not None and not callable(self.horizon)
            most = min(MAX_WIDTH, max(self.horizon, 1)) if is_number else MAX_WIDTH
        return min(max_length, most)

    def for_request(self, request: Request) -> Draft:
        """The same with a horizon that is a number. Raises what its function raises."""
        if not callable(self.horizon):
            return self
        return dataclasses.replace(self, horizon=self.horizon(request))

    def for_sources(self, num_sources: int) -> Draft:
        """The same with a price, where so many sources are decoded at once.

        If a step of R rows takes ``a + b R``, a row costs a source the share ``b n / (a + b n)`` of its
        own part of a step of n sources.
        """
        if self.price is not None:
            return self
        price = num_sources * PRICE / (1 - PRICE + num_sources * PRICE)
        return dataclasses.replace(self, price=price)

    def line(self, max_length: int, num_guesses: int, pad_id: int) -> dict[str, int]:
        """The columns of `Drafts` of one source."""
        most, fill = self.most_rows(max_length), self.initialiser.fill
        price = round(STEP * (PRICE if self.price is None else self.price))
        return dict(
            most=most,
            block=most if self.most is None else 0,
            horizon=max_length if self.horizon is None else min(self.horizon, max_length),
            window=1 if 2 * price > FIRST_CREDIT else min(2, most),
            credit=min(2 * price, FIRST_CREDIT),
            price=price,
            round=0,
            max_changes=min(self.convergence.max_changes, NO_LIMIT),
            max_rounds=min(self.convergence.max_rounds or NO_LIMIT, NO_LIMIT),
            fill={"pad": pad_id, "last": -1}.get(fill, fill),
            ngram=self.initialiser.ngram,
            num_guesses=num_guesses,
            feeds_all=int(self.feeds_all),
        )


def _source_ids(request: Request) -> list[int]:
    """The ids of a source; none of one that is something else."""
    source = request.source
    if isinstance(source, Tensor):
        is_ids = source.ndim == 1 and not source.dtype.is_floating_point
        return source.tolist() if is_ids else []
    return [token for token in source if isinstance(token, int)] if _is_sequence(source) else []


def _is_sequence(source: Any) -> bool:
    return isinstance(source, Sequence) and not isinstance(source, str)
