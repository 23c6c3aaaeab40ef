"""Greedy search and the beam searches: one row each of the table in ARCHITECTURE.md."""

from __future__ import annotations

from typing import Any, Unpack

from pybeam.arguments import real
from pybeam.contracts import Finishing
from pybeam.scoring import reward
from pybeam.search.algorithms import UNPRUNED, Algorithm
from pybeam.search.options import SearchOptions, documented, processor_tuple
from pybeam.search.pruning import Pruning
from pybeam.search.widths import Width
from pybeam.stopping import optimal


def build_algorithm(
    width: Width,
    finishing: Finishing,
    options: SearchOptions,
    pruning: Pruning = UNPRUNED,
    *,
    regrows: bool = False,
) -> Algorithm:
    """Make the algorithm of these options. Raises TypeError or ValueError if an option is invalid."""
    processors = processor_tuple(options.get("processors", ()))
    given: dict[str, Any] = {**options, "processors": processors}
    return Algorithm(width, finishing, pruning, regrows=regrows, **given)


@documented(SearchOptions)
def greedy(**options: Unpack[SearchOptions]) -> Algorithm:
    """Take the most probable token until EOS.

    Args:
        options: see below; the width is 1, so `n_best` is too.
    """
    return build_algorithm(1, Finishing.REFILL, options)


@documented(SearchOptions)
def fixed_beam(width: Width, **options: Unpack[SearchOptions]) -> Algorithm:
    """Beam search of fixed width with fairseq's finishing rule.

    The best ``2 * width`` candidates of a step count. One that ends in EOS at rank < width finishes, and
    the next candidate that does not end takes its place. EOS at rank >= width is dropped. The search
    stops when `width` hypotheses have finished.

    The width may differ by step. With ``width=[128, 256, 512]`` the beam has 128 places after the first step
    behind the prefix, 256 after the second and 512 after each later one. A step finishes, refills and drops
    by its own width. The last width counts the hypotheses that finish: the search stops when 512 have, and
    the first 512 are kept. A beam may be narrower in a later step, too.

    Args:
        width: rows of the beam, 1 to 4,096, or a sequence of them, one for each of the first steps.
        options: see below.

    See Ott et al. 2019 (fairseq).
    """
    return build_algorithm(width, Finishing.REFILL, options)


@documented(SearchOptions)
def variable_beam(
    width: Width,
    threshold: float | None = None,
    max_candidates: float | None = None,
    relative_threshold: float | None = None,
    local_threshold: float | None = None,
    keep_ties: bool = False,
    **options: Unpack[SearchOptions],
) -> Algorithm:
    """Beam search of variable width: thresholds decide how many of `width` rows are alive.

    A candidate that ends in EOS stays in the beam and competes with its score, but is not sent through
    the model. While the best candidate of the beam has ended, it is popped, and each pop costs one
    place. The search stops when `width` hypotheses are popped (`n_best` with raw scoring), or no row is
    alive. Without thresholds this is the FIXED-OURS of Yang et al.

    The width may differ by step, as in `fixed_beam`: a step has the places of its own width, less one for
    each hypothesis that was popped before.

    Args:
        width: rows of the beam at most, 1 to 4,096, or a sequence of them, one for each of the first steps.
        threshold: nats below the best candidate at which a candidate is dropped; None: never.
        max_candidates: candidates at most that continue the same row; None: any number.
        relative_threshold: a ratio of probabilities in (0, 1): a candidate is dropped if its
            probability is at most this ratio of the best one's; None: never.
        local_threshold: the same ratio for the last token alone.
        keep_ties: a candidate that is exactly at a threshold stays, as Yang et al. write it; by default it
            is dropped, as Freitag and Al-Onaizan do.
        options: see below.

    See Freitag and Al-Onaizan 2017; Yang et al. 2020.
    """
    pruning = Pruning(threshold, max_candidates, relative_threshold, local_threshold, keep_ties)
    return build_algorithm(width, Finishing.HELD, options, pruning)


@documented(SearchOptions, stop="optimal()", ended_only="True")
def optimal_beam(
    width: Width,
    length_reward: float = 0.0,
    length_ratio: float | None = None,
    **options: Unpack[SearchOptions],
) -> Algorithm:
    """Beam search that stops as soon as no continuation can beat the finished hypotheses.

    ``final_score = score + length_reward * min(length_ratio * |x|, n)``; without `length_ratio` every
    token is rewarded. The winner is the one that the same search would find if it ran to its length
    limit, and `Result.stop_reason` is "optimal" where that is proven.

    The stop rule is that of Huang et al., the beam is that of `fixed_beam`: the next best candidates take
    the places of those that end, so that `width` rows go on in every step. In the paper these places
    stay empty for a step, as in `huang_beam`. The best `width` of the finished hypotheses are kept.

    Args:
        width: rows of the beam, 1 to 4,096, or a sequence of them, as in `fixed_beam`.
        length_reward: nats added for every generated token up to the ratio.
        length_ratio: target tokens per source token that are rewarded, such as the mean of a data file
            (`pybeam.stopping.mean_length_ratio`); None: all are.
        options: see below; `scoring` may be given in place of the reward.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type, or both `scoring` and a
            reward are given.

    See Huang, Zhao and Ma 2017.
    """
    return build_algorithm(width, Finishing.REFILL, _optimal(length_reward, length_ratio, options))


@documented(SearchOptions, stop="optimal()", ended_only="True")
def huang_beam(
    width: int,
    length_reward: float = 0.0,
    length_ratio: float | None = None,
    **options: Unpack[SearchOptions],
) -> Algorithm:
    """Optimal beam search as Huang, Zhao and Ma have written it.

    The best `width` candidates of a step are the next beam. Those that end leave it, their places stay
    empty for one step, and the step after fills all `width` places again. Scores and the stop rule are
    those of `optimal_beam`.

    Args:
        width: candidates of a step, 1 to 4,096.
        length_reward: nats added for every generated token up to the ratio.
        length_ratio: target tokens per source token that are rewarded; the paper's is the mean over its
            development set (`pybeam.stopping.mean_length_ratio`). None: all tokens are.
        options: see below; `scoring` may be given in place of the reward.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type, or both `scoring` and a
            reward are given.

    See Huang, Zhao and Ma 2017, sections 3 and 4.
    """
    options = _optimal(length_reward, length_ratio, options)
    return build_algorithm(width, Finishing.SHRINK, options, regrows=True)


@documented(SearchOptions, ended_only="True")
def shrinking_beam(
    width: int,
    threshold: float | None = None,
    max_candidates: float | None = None,
    relative_threshold: float | None = None,
    local_threshold: float | None = None,
    keep_ties: bool = False,
    **options: Unpack[SearchOptions],
) -> Algorithm:
    """Beam search in which a hypothesis that ends leaves the beam and its place stays empty.

    The search stops when all `width` places are empty, or no row is left. The best of the hypotheses
    that ended win.

    Args:
        width: places at the start, 1 to 4,096.
        threshold, max_candidates, relative_threshold, local_threshold, keep_ties: see `variable_beam`.
        options: see below.

    See Bahdanau et al. 2015 (RNNsearch); a baseline of Huang et al. 2017.
    """
    pruning = Pruning(threshold, max_candidates, relative_threshold, local_threshold, keep_ties)
    options.setdefault("ended_only", True)
    return build_algorithm(width, Finishing.SHRINK, options, pruning)


def _optimal(
    length_reward: float, length_ratio: float | None, options: SearchOptions
) -> SearchOptions:
    """The options with the stop rule and the scores of Huang et al., where no others are given."""
    real("length_reward", length_reward)
    if length_reward != 0 or length_ratio is not None:
        if "scoring" in options:
            raise ValueError(
                "give either `scoring` or `length_reward` and `length_ratio`, not both"
            )
        options["scoring"] = reward(length_reward, length_ratio)
    options.setdefault("stop", optimal())
    options.setdefault("ended_only", True)
    return options
