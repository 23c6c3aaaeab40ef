"""The processors by which a request to a server that draws makes tokens more or less probable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from pybeam import processors
from pybeam.processors.base import AnyProcessor, Processor
from pybeam.processors.biases import SequenceBias
from pybeam.processors.counts import CountPenalty
from pybeam.processors.sampling import Sample
from pybeam.search.algorithms import Algorithm
from pybeam.server.errors import APIError

# of the field `logit_bias`, by OpenAI's rules
MOST_BIAS = 100.0


def with_biases(algorithm: Algorithm) -> Algorithm:
    """Return a search that draws, with processors that do nothing until a request gives them numbers.

    Other searches stay as they are: no step of theirs waits for Python.
    """
    if not any(isinstance(one, Sample) for one in algorithm.processors):
        return algorithm
    known = set(map(type, algorithm.processors))
    neutral: tuple[Processor, ...] = processors.count_penalty(), processors.sequence_bias()
    own: list[AnyProcessor] = [one for one in neutral if type(one) not in known]
    return dataclasses.replace(algorithm, processors=(*own, *algorithm.processors))


def biases_of(
    algorithm: Algorithm, logit_bias: Mapping[str, float], frequency: float, presence: float
) -> list[Processor]:
    """Return what a request changes about these processors.

    Args:
        algorithm: of the server.
        logit_bias: by token ids, as JSON's names have them.
        frequency, presence: see `pybeam.processors.count_penalty`.

    Raises:
        APIError: the server has none to change.
    """
    found: list[Processor] = []
    if logit_bias:
        own: Any = _own(algorithm, SequenceBias, "logit_bias")
        lines = tuple((int(name),) for name in logit_bias)
        values = tuple(map(float, logit_bias.values()))
        found.append(dataclasses.replace(own, sequences=lines, biases=values))
    if frequency or presence:
        field = "frequency_penalty" if frequency else "presence_penalty"
        own = _own(algorithm, CountPenalty, field)
        found.append(dataclasses.replace(own, frequency=frequency, presence=presence))
    return found


P = TypeVar("P", bound=Processor)


def _own(algorithm: Algorithm, kind: type[P], field: str) -> P:
    """Return the algorithm's processor of this kind. Raises APIError if there is none."""
    for one in algorithm.processors:
        if isinstance(one, kind):
            return one
    raise APIError(
        400,
        f"`{field}` must be left out, because this server searches; `pybeam serve --algorithm sample` starts "
        "one that takes it",
        field,
    )
