"""`Asker`: questions about windows become requests of one search."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from pybeam import processors
from pybeam.arguments import ArgumentError
from pybeam.limits import FREE, SourceLimit
from pybeam.models.base import Model
from pybeam.processors.base import AnyProcessor, Processor, perturbs, stage_of
from pybeam.processors.sampling import sample
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.transcription.front import Front
from pybeam.transcription.notes import Notebook, TakeNotes
from pybeam.transcription.options import TranscriptionOptions
from pybeam.transcription.talks import Question

# seconds from one timestamp to the next
STAMP_SECONDS = 0.02


class Asker:
    """Turn questions into requests for a decoder of `algorithm`.

    Args:
        model: a Whisper model.
        front: what stands around it.
        options: which bans hold, and whether samples are drawn.
        search: the search at temperature 0.0; see `Transcriber`.
        num_lines: requests whose notes are kept at a time.

    Attributes:
        algorithm: the search with all processors.
        notebook: has the notes of requests.
    """

    def __init__(
        self,
        model: Model,
        front: Front,
        options: TranscriptionOptions,
        search: Algorithm,
        num_lines: int,
    ) -> None:
        noted = front.noted
        self.notebook = Notebook(num_lines, len(noted), model.device)
        self._notes = TakeNotes(self.notebook, noted)
        chain = (self._notes, *_chain(search.processors, _rules(front, options)))
        if any(temperature > 0 for temperature in options.temperatures):
            chain = (*chain, sample())
        self.algorithm = replace(search, processors=chain, prefix=FREE, max_length=None)
        self._start_id, self._min_length = model.start_id, search.min_length
        most = search.max_length
        if isinstance(most, SourceLimit):
            most = most.tokens(front.window // front.stride)
        self._max_length = math.inf if most is None else most

    def request(self, question: Question, line: int) -> Request:
        """Return the request of a question whose notes go to this line of the notebook."""
        start, *prefix = question.prompt
        own: list[Processor] = [replace(self._notes, back=question.back, line=line)]
        most = int(min(question.max_length, self._max_length))
        is_sample = question.temperature > 0
        if is_sample:
            own.append(sample(question.temperature, question.seed))
        return Request(
            question.source,
            prefix=prefix,
            start=None if start == self._start_id else start,
            width=1 if is_sample else None,
            n_best=1,
            min_length=min(self._min_length, most - 1),
            max_length=most,
            processors=own,
        )


def _rules(front: Front, options: TranscriptionOptions) -> list[Processor]:
    """The bans of Whisper, in the order of openai-whisper."""
    tokens, stage = front.tokens, options.stage
    suppressed = tokens.suppressed if options.suppress_tokens is None else options.suppress_tokens
    rules: list[Processor] = []
    if options.suppress_blank and tokens.suppressed_at_start:
        rules.append(processors.suppress_tokens_at_start(tokens.suppressed_at_start, stage=stage))
    if suppressed:
        rules.append(processors.suppress_tokens(suppressed, stage=stage))
    if options.timestamps:
        latest = options.max_initial_timestamp
        most = None if latest is None else round(latest / STAMP_SECONDS)
        rules.append(
            processors.whisper_timestamps(tokens.no_timestamps, max_initial=most, stage=stage)
        )
    return rules


def _chain(own: Iterable[AnyProcessor], rules: Iterable[Processor]) -> tuple[AnyProcessor, ...]:
    """Put the rules behind an algorithm's own processors, stage by stage."""
    own = list(own)
    if any(map(perturbs, own)):
        raise ArgumentError(
            "algorithm",
            f"must search, since temperatures above 0 sample, but {own[-1]!r} changes what ranks hypotheses",
        )
    chain = [*own, *rules]
    # stable, so that the order within a stage stays
    chain.sort(key=lambda processor: stage_of(processor) == "log_probs")
    return tuple(chain)
