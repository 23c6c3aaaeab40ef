"""Searches for outputs that differ: samples, and groups of beams that avoid each other."""

from __future__ import annotations

import dataclasses
from typing import Unpack

from pybeam.arguments import whole
from pybeam.contracts import Finishing
from pybeam.processors.diversity import Diversity
from pybeam.processors.gumbel import Gumbel
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import build_algorithm
from pybeam.search.options import SamplingOptions, SearchOptions, documented


@documented(SamplingOptions, n_best="width")
def stochastic_beam(width: int, seed: int = 0, **options: Unpack[SamplingOptions]) -> Algorithm:
    """Sample `width` different hypotheses: stochastic beam search.

    Without replacement, in the order of the draws: the first hypothesis y is one with probability
    ``p(y | x)``, the n-th with ``p(y | x)`` over what the ones before it leave. A hypothesis cut at
    `max_length` stands for all that begin with it. It is `variable_beam` without thresholds behind
    `pybeam.processors.gumbel`, which states the rule; `Hypothesis.score` is the log-probability,
    `final_score` the perturbed one, by which they are sorted.

    The same seed gives a request the same hypotheses whatever is decoded beside it, and a wider beam
    more of them: a narrower one finds the first ones of a wider. For each request a seed of its own:
    ``Request(source, processors=[pybeam.processors.gumbel(7)])``.

    Args:
        width: hypotheses to sample, 1 to 128.
        seed: 0 to 2**63 - 1.
        options: see below. There is neither `scoring` nor `stop`, which would change what is sampled.
            `pybeam.processors.temperature` changes p.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Kool, van Hoof and Welling 2019, algorithm 1.
    """
    given: SearchOptions = {"n_best": width, **options}
    algorithm = build_algorithm(width, Finishing.HELD, given)
    return dataclasses.replace(algorithm, processors=(*algorithm.processors, Gumbel(seed)))


def diverse(algorithm: Algorithm, num_groups: int, diversity_penalty: float) -> Algorithm:
    """Search with `num_groups` groups of beams, each of which avoids what earlier ones chose.

    Every group is a search by `algorithm`, whose width, stop rule and n_best are those of one group. Of
    ``log p(v)`` at its t-th step a group takes `diversity_penalty` times the number of rows of the groups
    before it that went on with v at their t-th step; scores include what was taken. A row that ends chose
    nothing, nor does a group that has stopped. `Result.hypotheses` are the n_best of all groups, best final
    score first; `steps` and `expansions` are sums, `stop_reason` is "groups".

    transformers' group beam search with `num_beams` in `num_beam_groups` is ``diverse(algorithm, groups,
    penalty)`` with ``algorithm = pybeam.compat.huggingface.beam_search(num_beams // groups, …)``, which
    also needs ``num_return_sequences`` of as many, of which it returns the best. fairseq's also counts
    candidates that end or are not kept, and lets all groups share one set of finished hypotheses.

    Groups are searched one after another, since a group needs nothing of later ones; those of different
    requests go side by side, and what is encoded is encoded once per group.

    Args:
        algorithm: any but `stochastic_beam`.
        num_groups: from 2 on.
        diversity_penalty: positive, in nats. Per request:
            ``Request(source, processors=[pybeam.processors.diversity(0.5)])``.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Vijayakumar et al. 2016.
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"`algorithm` must be one such as fixed_beam(2), but is {algorithm!r}")
    whole("num_groups", num_groups, 2)
    if algorithm.num_groups > 1:
        raise ValueError(
            f"`algorithm` must be an algorithm without groups, but has {algorithm.num_groups}; ask for "
            "all of them at once"
        )
    processors = (*algorithm.processors, Diversity(diversity_penalty))
    return dataclasses.replace(algorithm, num_groups=num_groups, processors=processors)
