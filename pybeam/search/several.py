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

# they are searched one after another
MAX_GROUPS = 4096


@documented(SamplingOptions, n_best="width")
def stochastic_beam(width: int, seed: int = 0, **options: Unpack[SamplingOptions]) -> Algorithm:
    """Sample `width` different hypotheses: stochastic beam search.

    The samples are drawn without replacement and come in the order of the draws. The first one is y with
    probability ``p(y | x)``, the n-th with ``p(y | x)`` divided by the probability that the ones before it
    leave. A hypothesis cut at `max_length` stands for all that begin with it. The search is
    `variable_beam` without thresholds behind `pybeam.processors.gumbel`, which states the rule.
    `Hypothesis.score` is the log-probability, `final_score` the perturbed one that ranks.

    The same seed gives a request the same hypotheses whatever is decoded beside it. A wider beam finds
    those of a narrower one first, and then more. A request may have a seed of its own:
    ``Request(source, processors=[pybeam.processors.gumbel(7)])``.

    Args:
        width: hypotheses to sample, 1 to 4,096.
        seed: 0 to 2**63 - 1.
        options: see below. There is neither `scoring` nor `stop`, which would change what is sampled.
            `pybeam.processors.temperature` changes p.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Kool, van Hoof and Welling 2019, algorithm 1.
    """
    whole("width", width, 1)
    given: SearchOptions = {"n_best": width, **options}
    algorithm = build_algorithm(width, Finishing.HELD, given)
    return dataclasses.replace(algorithm, processors=(*algorithm.processors, Gumbel(seed)))


def diverse(algorithm: Algorithm, num_groups: int, diversity_penalty: float) -> Algorithm:
    """Search with `num_groups` groups of beams, each of which avoids what earlier ones chose.

    Every group is a search by `algorithm`, whose width, stop rule and n_best are those of one group. At its
    t-th step a group sees ``log p(v) - diversity_penalty * count``, where `count` is the number of rows of
    earlier groups that went on with v at their t-th step. Scores include the penalty. A row that ends
    chose nothing, and neither does a group that has stopped. `Result.hypotheses` are the n_best of all
    groups, best final score first; `steps` and `expansions` are sums, `stop_reason` is "groups".

    The group beam search of transformers is ``diverse(algorithm, num_beam_groups, penalty)`` with
    ``algorithm = pybeam.compat.huggingface.beam_search(k, num_return_sequences=k)`` and
    ``k = num_beams // num_beam_groups``. That of fairseq differs: it also counts candidates that end or
    are not kept, and all groups share one set of finished hypotheses.

    The groups of a request are searched one after another, since a group needs nothing of later ones.
    Groups of different requests go side by side. A source is encoded once for every group.

    Args:
        algorithm: any but `stochastic_beam`.
        num_groups: 2 to 4,096.
        diversity_penalty: positive, in nats. Per request:
            ``Request(source, processors=[pybeam.processors.diversity(0.5)])``.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Vijayakumar et al. 2016.
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"`algorithm` must be one such as fixed_beam(2), but is {algorithm!r}")
    whole("num_groups", num_groups, 2, MAX_GROUPS)
    if algorithm.num_groups > 1:
        raise ValueError(
            f"`algorithm` must be an algorithm without groups, but has {algorithm.num_groups}; ask for "
            "all of them at once"
        )
    processors = (*algorithm.processors, Diversity(diversity_penalty))
    return dataclasses.replace(algorithm, num_groups=num_groups, processors=processors)
