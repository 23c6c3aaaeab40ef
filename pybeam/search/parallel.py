"""Greedy decoding of many tokens at once: the algorithms of Santilli et al. 2023, and one that adapts.

All give what `greedy` gives, after at most as many steps; `Draft` says what differs.
"""

from __future__ import annotations

from collections.abc import Callable

from pybeam.drafts import PAD, Draft, Initialiser
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm, greedy


def jacobi(
    *,
    length: int | Callable[[Request], int] | None = None,
    initialiser: Initialiser = PAD,
    feeds_all: bool = False,
    **options,
) -> Algorithm:
    """Greedy decoding of all tokens at once: every step guesses the whole rest of the output (PJ).

    The output is that of `greedy`, token for token, after at most as many steps. A step's guesses are
    what the model has said in the step before; those that prove right are final, with the token behind
    them. A draft covers at most 128 tokens.

    Args:
        length: generated tokens, EOS counted, up to which tokens are guessed, or a function of the
            request that says so; one token at a time behind it. The paper takes it from a greedy run
            beforehand. None: `max_length`.
        initialiser: what is guessed first, from `pybeam.drafts`.
        feeds_all: whether a draft goes on behind a guessed EOS, as in the paper.
        options: as for `greedy`.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Santilli et al. 2023, Algorithm 1.
    """
    draft = Draft(None, length, initialiser, feeds_all=feeds_all)
    return greedy(**options, draft=draft)


def gauss_seidel_jacobi(
    block: int = 3,
    *,
    length: int | Callable[[Request], int] | None = None,
    initialiser: Initialiser = PAD,
    **options,
) -> Algorithm:
    """Greedy decoding in blocks of so many tokens, each as `jacobi` decodes all (PGJ).

    Blocks have fixed boundaries: a step guesses up to the end of its block, and the next block begins
    when all tokens of this one are proven.

    Args:
        block: generated tokens, 1 to 128; 1 is `greedy`.
        length, initialiser, options: as for `jacobi`.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Santilli et al. 2023, Algorithm 2.
    """
    return greedy(**options, draft=Draft(block, length, initialiser))


def hybrid_jacobi(
    block: int = 3,
    horizon: int | None = None,
    *,
    initialiser: Initialiser = PAD,
    **options,
) -> Algorithm:
    """As `gauss_seidel_jacobi` for the first `horizon` generated tokens, then one at a time (HGJ).

    Args:
        block: generated tokens, 1 to 128.
        horizon: None: `max_length`.
        initialiser, options: as for `jacobi`.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Santilli et al. 2023, Algorithm 3.
    """
    return greedy(**options, draft=Draft(block, horizon, initialiser))


def adaptive_jacobi(
    max_window: int = 8,
    *,
    price: float | None = None,
    initialiser: Initialiser = PAD,
    **options,
) -> Algorithm:
    """Greedy decoding with as many guesses as pay; not in the paper.

    A window behind the last token takes the place of blocks. It is one guess longer after a step whose
    guesses have all held, else as long as what held, one at least. But guesses are paid for: each costs
    `price`, each that holds earns a step, every step gives 0.02, and a source begins with 0.5 at most.
    Nothing is guessed that cannot be paid, so that an output of n tokens takes at most 0.5 + 0.02 n
    steps more than greedy decoding, if `price` is true.

    Args:
        max_window: rows of a source in one step, 1 to 128.
        price: what a guess costs: by how much one more row of a source makes steps longer, in steps
            that this source would take alone. Where nothing but computing takes time it is 1, where
            rows are free 0. None: 0.25 for one source at a time, more where `Decoder`'s schedule
            decodes n at once, 0.73 for 8; numbers of steps then depend on n, outputs do not.
        initialiser, options: as for `jacobi`.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    return greedy(
        **options, draft=Draft(None, None, initialiser, max_window=max_window, price=price)
    )
