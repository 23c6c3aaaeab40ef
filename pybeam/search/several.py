"""Samples: outputs that are drawn, one by one with replacement or several without."""

from __future__ import annotations

import dataclasses
from typing import Unpack

from pybeam.arguments import whole
from pybeam.contracts import MAX_WIDTH, Finishing
from pybeam.processors.sampling import Gumbel, Sample
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import build_algorithm, greedy
from pybeam.search.options import DrawOptions, SamplingOptions, SearchOptions, documented


@documented(DrawOptions)
def sample(
    num: int = 1,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    **options: Unpack[DrawOptions],
) -> Algorithm:
    """Draw outputs token by token, each from the model's distribution of the next token.

    The tokens that may come are those that `top_k`, then `top_p`, then `min_p` leave of
    ``softmax(log_probs / temperature)``. They are drawn in proportion to it, as transformers does with
    `do_sample`. The `processors` act before all of these. `pybeam.processors.sample`, which stands last,
    states the rule.

    The draws are independent and with replacement, so outputs may be equal. They are exact, whatever the
    schedule and the batch. `Hypothesis.score` is the log-probability that the model gives the output, at
    temperature 1 and with all tokens, and `Result.hypotheses` are sorted by it.

    Random numbers follow from the seed, the source and the prefix. So the same seed gives a request the same
    outputs whatever is decoded beside it, other sources have samples that are independent, and more draws
    find those of fewer ones, too. A request may have other numbers, and a seed that counts alone:
    ``Request(source, processors=[pybeam.processors.sample(0.7, seed=3, top_p=0.9)])``. With temperature 0 it
    is searched.

    The draws of a request come one after another; those of different requests go side by side.
    `stochastic_beam` draws different outputs at once.

    Args:
        num: outputs to draw, 1 to 4,096.
        temperature: above 1 improbable tokens come more often, below 1 less often.
        top_k, top_p, min_p: see `pybeam.processors.top_k`, `top_p` and `min_p`. By default all tokens stay.
        seed: 0 to 2**63 - 1.
        options: see below.
    """
    whole("num", num, 1, MAX_WIDTH)
    last = Sample(temperature, seed, top_k, top_p, min_p, by_source=True)
    algorithm = greedy(**options)
    processors = (*algorithm.processors, last)
    return dataclasses.replace(algorithm, num_groups=num, processors=processors)


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

    See Kool, van Hoof and Welling 2019, algorithm 1.
    """
    whole("width", width, 1)
    given: SearchOptions = {"n_best": width, **options}
    algorithm = build_algorithm(width, Finishing.HELD, given)
    return dataclasses.replace(algorithm, processors=(*algorithm.processors, Gumbel(seed)))
