"""`RequestBuilder`: questions about windows become requests of one search."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from pybeam import processors
from pybeam.arguments import ArgumentError
from pybeam.limits import FREE, SourceLimit
from pybeam.models.base import Model
from pybeam.models.settings import Settings
from pybeam.processors.base import AnyProcessor, Processor, perturbs, stage_of
from pybeam.processors.sampling import sample
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.speech.timestamps import WhisperTimestamps
from pybeam.transcription.assets import WhisperAssets
from pybeam.transcription.options import TranscriptionOptions
from pybeam.transcription.prefix_rules import TimestampsBehind
from pybeam.transcription.token_log_probs import RecordLogProbs, TokenLogProbs
from pybeam.transcription.window_jobs import Question

# seconds from one timestamp to the next
STAMP_SECONDS = 0.02
# language, task and <|notimestamps|>, which stand behind the start of a transcript
MOST_BEHIND = 3


class RequestBuilder:
    """Turn questions into requests for a decoder of `algorithm`.

    Args:
        model: a Whisper model. Its `settings` say what is never written.
        assets: what stands around it.
        options: which bans hold, and whether samples are drawn.
        search: the search at temperature 0.0; see `Transcriber`.
        num_lines: requests whose log-probabilities are kept at a time.
        most_given: tokens at most with which an output begins.

    Attributes:
        algorithm: the search with all processors.
        token_log_probs: has the log-probabilities that were recorded for requests.
    """

    def __init__(
        self,
        model: Model,
        assets: WhisperAssets,
        options: TranscriptionOptions,
        search: Algorithm,
        num_lines: int,
        most_given: int = 0,
    ) -> None:
        recorded_tokens = assets.recorded_tokens
        self.token_log_probs = TokenLogProbs(num_lines, len(recorded_tokens), model.device)
        self._recording = RecordLogProbs(
            self.token_log_probs, recorded_tokens, prefix_reach=MOST_BEHIND + most_given
        )
        rules = _rules(assets, options, model.settings)
        chain = (self._recording, *_chain(search.processors, rules))
        self._begun = [
            replace(rule, is_begun=True) for rule in rules if isinstance(rule, TimestampsBehind)
        ]
        if any(temperature > 0 for temperature in options.temperatures):
            chain = (*chain, sample())
        self.algorithm = replace(search, processors=chain, prefix=FREE, max_length=None)
        self._start_id, self._min_length = model.start_id, search.min_length
        self._scoring = search.scoring
        most = search.max_length
        if isinstance(most, SourceLimit):
            most = most.tokens(assets.window // assets.stride)
        self._max_length = math.inf if most is None else most

    def request(self, question: Question, line: int) -> Request:
        """Return the request of a question whose log-probabilities go to this line of `token_log_probs`."""
        start, *prefix = question.prompt
        num_given = len(question.beginning)
        back = question.back + num_given
        own: list[Processor] = [replace(self._recording, back=back, line=line)]
        # tokens that are given count in all lengths
        most = max(1, int(min(question.max_length, self._max_length)) - num_given)
        scoring = None
        if num_given:
            own += self._begun
            scoring = replace(self._scoring, offset=self._scoring.offset + num_given)
        is_sample = question.temperature > 0
        if is_sample:
            own.append(sample(question.temperature, question.seed))
        return Request(
            question.source,
            prefix=[*prefix, *question.beginning],
            start=None if start == self._start_id else start,
            width=1 if is_sample else None,
            n_best=1,
            min_length=min(max(0, self._min_length - num_given), most - 1),
            max_length=most,
            scoring=scoring,
            processors=own,
        )


def _rules(
    assets: WhisperAssets, options: TranscriptionOptions, settings: Settings
) -> list[Processor]:
    """The bans of Whisper, in the order of openai-whisper."""
    tokens, stage = assets.tokens, options.stage
    suppressed, at_start = options.suppress_tokens, settings.begin_suppress_tokens
    if suppressed is None:
        suppressed = settings.suppress_tokens
    rules: list[Processor] = []
    if options.suppress_blank and at_start:
        rules.append(processors.suppress_tokens_at_start(at_start, stage=stage))
    if suppressed:
        rules.append(processors.suppress_tokens(suppressed, stage=stage))
    if options.timestamps:
        latest = options.max_initial_timestamp
        most = None if latest is None else round(latest / STAMP_SECONDS)
        make = TimestampsBehind if options.prefix else WhisperTimestamps
        rules.append(make(tokens.no_timestamps, most, stage))
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
