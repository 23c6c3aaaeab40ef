"""`decoding_graph`: find what a model decodes in parallel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pybeam import processors
from pybeam.decoder import Decoder
from pybeam.drafts import Draft, Initialiser, pad
from pybeam.engine.schedule import Batch
from pybeam.inspect.drawing import DecodingGraph
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import Stage
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import greedy
from pybeam.search.overrides import overridden, with_default_prefix
from pybeam.search.settings import applied

# the node that stands for the source
SOURCE = -1


def decoding_graph(
    model: Model,
    request: Any,
    *,
    algorithm: Algorithm | None = None,
    initialiser: Initialiser | None = None,
    labels: Mapping[int, str] | None = None,
) -> DecodingGraph:
    """Decode one request with `jacobi` and record which tokens are correct after each iteration.

    An iteration computes all tokens at once, ``y_i <- argmax p(y_i | y_1 .. y_i-1, x)``, from the tokens of
    the iteration before. The first one starts from `initialiser`. The number of tokens is that of the
    greedy output, which is decoded beforehand.

    Args:
        model: from `pybeam.load_model`, or any other.
        request: token ids or a `Request`, as for `Decoder.decode`.
        algorithm: `pybeam.greedy` with options of its own; None: without options.
        initialiser: the first guesses, from `pybeam.drafts`; None: the padding token.
        labels: the text to show for each token id; a token without a text shows its id.

    Raises:
        ValueError: the request fails, has no output, or has an output of more than 128 tokens.

    See Santilli et al. 2023, section 3.5.
    """
    algorithm = applied(greedy() if algorithm is None else algorithm, model)
    request = with_default_prefix(Request.of(request), algorithm, model)
    tokens = _output(model, algorithm, request)
    source = model.check(request.source)
    sizes = model.room(source), model.source_length(source)
    min_length = overridden(algorithm, request, *sizes).min_length
    recorder = _Recorder(len(tokens), min_length)
    chain = *algorithm.processors, processors.from_function(recorder, stage=_last_stage(algorithm))
    draft = Draft(None, len(tokens), initialiser or pad(), feeds_all=True)
    followed = dataclasses.replace(algorithm, processors=chain, draft=draft)
    Decoder(model, followed, Batch(1)).decode([request])
    return _graph(tokens, recorder, labels or {})


def _output(model: Model, algorithm: Algorithm, request: Request) -> list[int]:
    """The generated tokens of greedy decoding, EOS included. Raises what the request fails with."""
    (result,) = Decoder(model, algorithm, Batch(1)).decode([request], on_error="return")
    if result.error is not None:
        raise result.error
    if not result.hypotheses or result.stop_reason == "empty_source":
        raise ValueError("there is no graph: the source is empty, or nothing could be generated")
    hypothesis = result.hypotheses[0]
    generated = hypothesis.tokens[request.prefix_length :]
    tokens = list(generated) if hypothesis.eos_id is None else [*generated, hypothesis.eos_id]
    if len(tokens) > 128:
        raise ValueError(
            f"a graph shows 128 tokens at most, but this output has {len(tokens)}; "
            "set `max_length`, or split the source"
        )
    return tokens


def _last_stage(algorithm: Algorithm) -> Stage:
    stages: list[Stage] = [getattr(one, "stage", "logits") for one in algorithm.processors]
    return stages[-1] if stages else "logits"


class _Recorder:
    """A processor that changes nothing. It records the best token at each position in every step."""

    def __init__(self, num_tokens: int, min_length: int) -> None:
        self._num_tokens, self._min_length = num_tokens, min_length
        self.guesses: list[list[int]] = []
        self.probabilities: list[list[float]] = []

    def __call__(self, logits: Tensor, rows: Rows) -> Tensor:
        places = rows.num_generated.tolist()
        if places and places[0] >= 0:
            self._note(places, logits, rows.eos_ids)
        return logits

    def _note(self, places: list[int], logits: Tensor, eos_ids: tuple[int, ...]) -> None:
        values = logits.float().softmax(1)
        logits = logits.clone()
        is_short = torch.tensor([place < self._min_length for place in places])
        for eos_id in eos_ids:
            logits[is_short, eos_id] = -torch.inf
        # among equal logits the first wins, as in `select`
        best = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :1]
        probability = values.gather(1, best)[:, 0].tolist()
        none = [-1] * self._num_tokens, [0.0] * self._num_tokens
        last = (self.guesses[-1], self.probabilities[-1]) if self.guesses else none
        tokens, numbers = list(last[0]), list(last[1])
        for place, token, number in zip(places, best[:, 0].tolist(), probability, strict=True):
            if place < self._num_tokens:
                tokens[place], numbers[place] = token, number
        self.guesses.append(tokens)
        self.probabilities.append(numbers)


def _graph(tokens: list[int], recorder: _Recorder, labels: Mapping[int, str]) -> DecodingGraph:
    guesses, n = recorder.guesses, len(tokens)
    is_correct = [
        [own == wanted for own, wanted in zip(line, tokens, strict=True)] for line in guesses
    ]
    # in the last iteration all tokens are correct
    first = [
        max((k + 1 for k, line in enumerate(is_correct) if not line[i]), default=0)
        for i in range(n)
    ]
    num_iterations = max(first) + 1

    def label(token: int) -> str:
        return labels.get(token, str(token))

    return DecodingGraph(
        tokens=tokens,
        labels=[label(token) for token in tokens],
        guesses=guesses[:num_iterations],
        guess_labels=[[label(token) for token in line] for line in guesses[:num_iterations]],
        probabilities=recorder.probabilities[:num_iterations],
        is_correct=is_correct[:num_iterations],
        first=first,
        in_parallel=[i > 0 and first[i] <= first[i - 1] for i in range(n)],
        edges=dependencies(first),
    )


def dependencies(first: list[int]) -> list[tuple[int, int]]:
    """The pairs (i, j) with i before j and ``first[i] < first[j]`` that do not follow from other pairs.

    A token that is correct from the first iteration on depends on the source alone, which is -1.

    Args:
        first: for each token the iteration from which on it is correct.
    """
    edges = []
    for j, own in enumerate(first):
        # the largest `first` below our own among the tokens between i and j
        latest = -1
        for i in range(j - 1, -1, -1):
            # a smaller one follows from the edge to the token with that number
            if latest <= first[i] < own:
                edges.append((i, j))
                latest = first[i]
        if latest < 0:
            edges.append((SOURCE, j))
    return sorted(edges)
