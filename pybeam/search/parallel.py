"""Greedy decoding of many tokens at once: the algorithms of Santilli et al. 2023, and one that adapts.

All find the output of `greedy`, after at most as many steps. They differ in their `Draft`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Unpack

from pybeam.drafts import LOOKUP, PAD, Draft, Initialiser
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import greedy
from pybeam.search.options import SearchOptions, documented


@documented(SearchOptions)
def jacobi(
    *,
    length: int | Callable[[Request], int] | None = None,
    initialiser: Initialiser = PAD,
    feeds_all: bool = False,
    **options: Unpack[SearchOptions],
) -> Algorithm:
    """Greedy decoding of all tokens at once: every step guesses the whole rest of the output (PJ).

    The output is that of `greedy`, token for token, after at most as many steps. The guesses of a step
    are the model's outputs of the step before. Those that prove right are final, with the token behind
    them. At most 128 tokens are guessed.

    Args:
        length: tokens are guessed up to so many generated ones, EOS included; behind them a step finds one
            token. It may be a function of the request that returns the number. The paper takes it from
            a greedy run beforehand. None: `max_length`.
        initialiser: the first guesses, from `pybeam.drafts`.
        feeds_all: whether a step sends all tokens through the model, as in the paper: those behind a
            guessed EOS too, and the token before in place of one that nobody guesses.
        options: see below; `stop` must be count(), and `n_best` is 1.

    See Santilli et al. 2023, Algorithm 1.
    """
    draft = Draft(horizon=length, initialiser=initialiser, feeds_all=feeds_all)
    return dataclasses.replace(greedy(**options), draft=draft)


@documented(SearchOptions)
def gauss_seidel_jacobi(
    block: int = 3,
    *,
    length: int | Callable[[Request], int] | None = None,
    initialiser: Initialiser = PAD,
    **options: Unpack[SearchOptions],
) -> Algorithm:
    """Greedy decoding in blocks of so many tokens; `jacobi` decodes each block (PGJ).

    Blocks have fixed boundaries: a step guesses up to the end of its block, and the next block begins
    when all tokens of this one are proven.

    Args:
        block: generated tokens, 1 to 128; 1 is `greedy`.
        length, initialiser, options: as for `jacobi`.

    See Santilli et al. 2023, Algorithm 2.
    """
    draft = Draft(block, length, initialiser)
    return dataclasses.replace(greedy(**options), draft=draft)


@documented(SearchOptions)
def hybrid_jacobi(
    block: int = 3,
    horizon: int | None = None,
    *,
    initialiser: Initialiser = PAD,
    **options: Unpack[SearchOptions],
) -> Algorithm:
    """`gauss_seidel_jacobi` for the first `horizon` generated tokens, then one token at a time (HGJ).

    Args:
        block: generated tokens, 1 to 128.
        horizon: None: `max_length`.
        initialiser, options: as for `jacobi`.

    See Santilli et al. 2023, Algorithm 3.
    """
    draft = Draft(block, horizon, initialiser)
    return dataclasses.replace(greedy(**options), draft=draft)


@documented(SearchOptions)
def adaptive_jacobi(
    max_window: int = 8,
    *,
    price: float | None = None,
    initialiser: Initialiser = LOOKUP,
    **options: Unpack[SearchOptions],
) -> Algorithm:
    """Greedy decoding with as many guesses as pay; not in the paper.

    A window of guesses behind the last token replaces blocks. It grows to twice the guesses of a step that
    were all right. Otherwise it shrinks to the number of right guesses, but at least one.

    A source has credit, counted in steps. A guess costs `price`, a right guess earns 1, every step adds 0.02,
    and a source begins with at most 0.5. Without credit there is no guess. If `price` is true, an output of
    n tokens therefore takes at most 0.5 + 0.02 n steps more than greedy decoding.

    Args:
        max_window: most rows of a source in one step, 1 to 128.
        price: cost of a guess: how much longer a step takes with one more row of a source, in steps of a
            source that is decoded alone. It is 1 if only computing takes time, and 0 if rows are free.
            None: 0.25 for one source at a time, more if `Decoder`'s schedule decodes n at once, 0.73
            for 8. The number of steps then depends on n, outputs do not.
        initialiser: the first guesses, from `pybeam.drafts`. The default, `ngram_lookup(2)`, guesses only
            behind tokens that have stood before, in the output or in the source.
        options: as for `jacobi`.
    """
    draft = Draft(initialiser=initialiser, max_window=max_window, price=price)
    return dataclasses.replace(greedy(**options), draft=draft)
