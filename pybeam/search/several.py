"""Searches for outputs that differ: samples."""

from __future__ import annotations

import dataclasses
from typing import Unpack

from pybeam.arguments import whole
from pybeam.contracts import Finishing
from pybeam.processors.sampling import Gumbel
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import build_algorithm
from pybeam.search.options import SamplingOptions, SearchOptions, documented


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
