"""Draft and verify: which tokens are guessed ahead, and how many.

A source has one hypothesis. A step sends its last token and guesses of the tokens behind it through the
model, as rows that see each other causally. The model's output at a row is final if every guess before
it was right. So the output is that of greedy decoding, whatever is guessed. Where every token is guessed, an
output that is not final becomes the next guess of its place, which is the iteration of Jacobi. See Santilli
et al. 2023.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
from torch import Tensor

from pybeam.arguments import LARGEST_INT32, whole
from pybeam.backends.arrays import FILL_LAST, FILL_NONE, MOST_NGRAM, STEP
from pybeam.contracts import MASK_WIDTH
from pybeam.request import Request

__all__ = [
    "Initialiser",
    "copy_source",
    "function",
    "ngram_lookup",
    "pad",
    "repeat_last",
]
# nearly all are the first, which is soon seen
INTS = int, Integral
# the cost of a guess, in steps of a source that is decoded alone: an estimate, which `price=` replaces
PRICE = 0.25
# hundredths of a step that a source may lose on guesses before one of them is right
FIRST_CREDIT = 50


class Initialiser(ABC):
    """The first guesses, of tokens that the model has not guessed yet. Subclass it for guesses of your own.

    Guesses change the number of steps, never the output. Behind the end of `guesses`, and instead of ids
    outside the vocabulary, the guess is `fill`.

    Attributes:
        fill: None: there is no guess, and the step ends before that token. The model's outputs behind a wrong
            guess are no guesses either. "pad": the model's padding token (the start token if it has none).
            "last": the token before. Or a token id.
        ngram: 0: the i-th of `guesses` is for the i-th generated token. n > 0: the guess is the token that
            followed the latest earlier occurrence of the last n tokens, in the output or else in
            `guesses`.
    """

    fill: int | str | None = None
    ngram: int = 0

    @abstractmethod
    def guesses(self, request: Request) -> Sequence[int]:
        """Return guesses of the generated tokens of this request. Called once, before it is decoded."""


@dataclass(frozen=True)
class Fill(Initialiser):
    fill: int | str | None = "pad"

    def guesses(self, request: Request) -> Sequence[int]:
        return ()


@dataclass(frozen=True)
class CopySource(Initialiser):
    skip: int = 0

    def __post_init__(self) -> None:
        whole("skip", self.skip, 0, LARGEST_INT32)

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
class FromFunction(Initialiser):
    function: Callable[[Request], Sequence[int]]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"`function` must be a function, but is {self.function!r}")

    def guesses(self, request: Request) -> Sequence[int]:
        guesses = self.function(request)
        guesses = guesses.tolist() if isinstance(guesses, Tensor | np.ndarray) else guesses
        is_list = isinstance(guesses, Sequence)
        if not is_list or not all(isinstance(one, INTS) for one in guesses):
            raise TypeError(
                f"`function` must return a list of token ids, which are ints, but returned {guesses!r}"
            )
        return guesses


def pad() -> Initialiser:
    """Guess the model's padding token everywhere, as in the paper."""
    return Fill("pad")


def repeat_last() -> Initialiser:
    """Guess the token before, again and again."""
    return Fill("last")


def copy_source(skip: int = 0) -> Initialiser:
    """Guess the i-th token of the source, and none behind its end; for outputs that copy or edit it.

    Args:
        skip: source ids to leave out at the beginning, such as a language code.

    Raises:
        TypeError, ValueError: `skip` is no int, or negative.
    """
    return CopySource(skip)


def ngram_lookup(n: int = 2) -> Initialiser:
    """Guess the token that followed the last `n` tokens before, in the output or else in the source.

    Nothing is guessed behind tokens that have not stood there before.

    Args:
        n: 1 to 4.

    Raises:
        TypeError, ValueError: `n` is no int, or out of range.
    """
    return NgramLookup(n)


def function(fn: Callable[[Request], Sequence[int]]) -> Initialiser:
    """Guess the tokens that a function of the request returns, such as an entry of a translation memory.

    Nothing is guessed behind the end of them.

    Args:
        fn: ``fn(request) -> ids`` of the generated tokens: a list of ints, a 1-D tensor or an array.

    Raises:
        TypeError: `fn` is no function.
    """
    return FromFunction(fn)


PAD, LOOKUP = Fill(), NgramLookup()


@dataclass(frozen=True)
class Draft:
    """How many tokens are guessed ahead, and which; data for `draft_commit`.

    Args:
        block: guesses do not cross boundaries that are so many generated tokens apart; None: none.
        horizon: nothing is guessed behind so many generated tokens. It may be a function of the request that
            returns the number. None: guess to the end.
        initialiser: guesses tokens that the model has not guessed yet.
        max_window: most rows of a window that adapts and replaces blocks; None: blocks.
        price: the cost of a guess, in steps of a source that is decoded alone. The window adapts to it.
            None: `PRICE`, until `for_sources` computes a better one.
        feeds_all: whether tokens behind a guessed EOS are sent through the model too, as in the paper, and
            where nobody guesses the token before. This is wasted if the guess of EOS is right. If it is
            wrong, more tokens have been guessed.

    Raises:
        ValueError, TypeError: a value is out of range or of the wrong type.
    """

    block: int | None = None
    horizon: int | Callable[[Request], int] | None = None
    initialiser: Initialiser = PAD
    max_window: int | None = None
    price: float | None = None
    feeds_all: bool = False

    def __post_init__(self) -> None:
        for name in ("block", "max_window"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, MASK_WIDTH)
        if self.price is not None and not isinstance(self.price, Real):
            raise TypeError(f"`price` must be a number, but is {self.price!r}")
        if self.price is not None and not 0 <= self.price <= 100:
            raise ValueError(f"`price` must be 0 to 100 steps, but is {self.price}")
        if self.horizon is not None and not callable(self.horizon):
            whole("horizon` or `length", self.horizon, 0, LARGEST_INT32)
        if not isinstance(self.initialiser, Initialiser):
            raise TypeError(
                "`initialiser` must be made by pybeam.drafts, such as pad(), but is "
                f"{self.initialiser!r}"
            )
        if isinstance(fill := self.initialiser.fill, int):
            whole("fill", fill, 0, LARGEST_INT32)
        elif fill not in (None, "pad", "last"):
            raise ValueError(
                f"`fill` of an initialiser must be None, 'pad', 'last' or a token id, but is {fill!r}"
            )

    def max_rows(self, max_length: int) -> int:
        """Most rows of a source in a step: its last token and the guesses behind it."""
        most = self.block if self.max_window is None else self.max_window
        if most is None:
            horizon = self.horizon if isinstance(self.horizon, int) else MASK_WIDTH
            most = min(MASK_WIDTH, max(horizon, 1))
        return min(max_length, most)

    def for_request(self, request: Request) -> Draft:
        """Return this draft with its horizon as a number. Raises what the horizon's function raises."""
        if self.horizon is None or isinstance(self.horizon, int):
            return self
        return dataclasses.replace(self, horizon=self.horizon(request))

    def for_sources(self, num_sources: int) -> Draft:
        """Return this draft with the price of a guess, if so many sources are decoded at once.

        If a step of R rows takes ``a + b R``, a row costs a source the share ``b n / (a + b n)`` of its
        own part of a step of n sources.
        """
        if self.price is not None:
            return self
        price = num_sources * PRICE / (1 - PRICE + num_sources * PRICE)
        return dataclasses.replace(self, price=price)

    def line(self, max_length: int, num_guesses: int, pad_id: int) -> dict[str, int]:
        """Return the columns of `Drafts` of one source, whose horizon is a number."""
        assert not callable(self.horizon)
        most, fill = self.max_rows(max_length), self.initialiser.fill
        if fill is None and self.feeds_all:
            fill = "last"
        price = round(STEP * (PRICE if self.price is None else self.price))
        # what is looked up holds less often than a text of the request's own
        first = 3 if num_guesses and not self.initialiser.ngram else 2
        fills = {None: FILL_NONE, "pad": pad_id, "last": FILL_LAST}
        return dict(
            max_rows=most,
            block=most if self.max_window is None else 0,
            horizon=max_length if self.horizon is None else min(self.horizon, max_length),
            window=1 if 2 * price > FIRST_CREDIT else min(first, most),
            credit=min(2 * price, FIRST_CREDIT),
            price=price,
            fill=fill if isinstance(fill, int) else fills[fill],
            ngram=self.initialiser.ngram,
            num_guesses=num_guesses,
            feeds_all=int(self.feeds_all),
        )


def _source_ids(request: Request) -> list[int]:
    """Return the ids of a source, or none if it does not consist of ids."""
    source = request.source
    if isinstance(source, Tensor):
        is_ids = source.ndim == 1 and not source.dtype.is_floating_point
        return source.tolist() if is_ids else []
    if not isinstance(source, Sequence) or isinstance(source, str):
        return []
    return [int(token) for token in source if isinstance(token, INTS)]
