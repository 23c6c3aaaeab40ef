"""Questions about windows become requests of one search."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam import processors
from pybeam.arguments import ArgumentError
from pybeam.contracts import Edit, EditRule
from pybeam.decoder import Decoder
from pybeam.engine.schedule import Schedule
from pybeam.limits import FREE, SourceLimit
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.models.settings import Settings
from pybeam.processors.base import INT, AnyProcessor, Processor, perturbs, stage_of
from pybeam.processors.sampling import Draw
from pybeam.request import Request, Result
from pybeam.scoring import CutScoring
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import fixed_beam
from pybeam.speech.whisper.assets import WhisperAssets
from pybeam.speech.whisper.options import TranscriptionOptions
from pybeam.speech.whisper.timestamps import WhisperTimestamps
from pybeam.stopping import Stop

NO_LINE = -1
# seconds from one timestamp to the next
STAMP_SECONDS = 0.02
# language, task and <|notimestamps|>, which stand behind the start of a transcript
MOST_BEHIND = 3


@dataclass(frozen=True, eq=False)
class Question:
    """One request of a window.

    Attributes:
        source: what the model encodes.
        prompt: tokens that hypotheses begin with, the start token first.
        back: tokens of the prompt behind the one that starts the transcript.
        max_length: tokens at which an output is cut, EOS included.
        temperature: 0 searches, others sample.
        seed: of a sample.
        beginning: the first tokens of the output.
    """

    source: Any
    prompt: tuple[int, ...]
    back: int
    max_length: int
    temperature: float = 0.0
    seed: int = 0
    beginning: tuple[int, ...] = ()


class Answer(NamedTuple):
    """The answer to a question.

    Attributes:
        tokens: those of the best hypothesis behind the prompt; empty if there is none.
        score: their accumulated log-probability, EOS included; -inf if there is none.
        token_log_probs: log-probabilities of the recorded tokens where the transcript starts.
        log_probs: log-probability of each of `tokens`; 0 of those that were given.
    """

    tokens: list[int]
    score: float
    token_log_probs: list[float]
    log_probs: list[float]


class TokenLogProbs:
    """Log-probabilities of the recorded tokens, a line for each request that is being decoded.

    Args:
        num_lines: requests that may be decoded at a time.
        num_tokens: recorded tokens.
        device: where the model computes.
    """

    def __init__(self, num_lines: int, num_tokens: int, device: torch.device) -> None:
        # rows without a line write to the last one
        shape = num_lines + 1, num_tokens
        if device.type == "cpu":
            # copies of this process write to it, too
            memory = mmap.mmap(-1, max(1, math.prod(shape)) * np.dtype(np.float32).itemsize)
            self.values = torch.from_numpy(np.ndarray(shape, np.float32, memory))
        else:
            self.values = torch.zeros(shape, device=device)
        self._free = list(range(num_lines))

    @property
    def is_full(self) -> bool:
        """Whether all lines are taken."""
        return not self._free

    def take(self) -> int:
        """Take a free line."""
        return self._free.pop()

    def read(self, line: int) -> list[float]:
        """Return the numbers of a line, and free it."""
        self._free.append(line)
        numbers: list[float] = self.values[line].tolist()
        return numbers


@dataclass(frozen=True)
class RecordLogProbs(Processor):
    """Write down the log-probabilities of `tokens` behind one token of the forced prefix. It changes nothing.

    It is the first processor, so that they are the model's own.

    Args:
        token_log_probs: where they are written.
        tokens: ids.
        back: how many tokens of the prefix stand behind that place.
        line: the request's line.
        prefix_reach: the largest `back` of any request.
    """

    token_log_probs: TokenLogProbs
    tokens: tuple[int, ...]
    back: int = 0
    line: int = NO_LINE
    prefix_reach: int = 0
    per_request: ClassVar = ("back", "line")

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor([self.back, self.line, *self.tokens], dtype=INT),)

    def constants(self) -> tuple[Tensor, ...]:
        return (self.token_log_probs.values,)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.RECORD)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        given, values = data  # [R, 2 + n], [lines, n]
        seen, is_there = logits, (rows.num_generated == -given[:, 0]) & (given[:, 1] >= 0)
        if not logits.is_cuda:
            # few rows are there, and on a CPU nothing waits for a look
            row = is_there.nonzero()[:, 0]
            if not row.numel():
                return logits
            seen, given, is_there = logits[row], given[row], is_there[row]
        place = torch.where(is_there, given[:, 1], len(values) - 1).long()
        token = given[:, 2:].clamp(min=0).long()
        values[place] = torch.log_softmax(seen.float(), 1).gather(1, token)
        return logits


class RequestBuilder:
    """Turn questions into requests for its decoder, and results into answers.

    Args:
        model: a Whisper model. Its `settings` say what is never written.
        assets: what stands around it.
        options: which bans hold, and whether samples are drawn.
        search: the search at temperature 0.0; see `Transcriber`.
        num_lines: requests that wait for their answers at a time.
        most_given: tokens at most with which an output begins.

    Attributes:
        token_log_probs: a line for each request that waits for its answer.
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
        self._model, recorded_tokens = model, assets.recorded_tokens
        self.token_log_probs = TokenLogProbs(num_lines, len(recorded_tokens), model.device)
        self._recording = RecordLogProbs(
            self.token_log_probs, recorded_tokens, prefix_reach=MOST_BEHIND + most_given
        )
        rules = _rules(assets, options, model.settings)
        chain = (self._recording, *_chain(search.processors, rules))
        self._begun = [
            replace(rule, is_begun=True) for rule in rules if isinstance(rule, WhisperTimestamps)
        ]
        if any(temperature > 0 for temperature in options.temperatures):
            chain = (*chain, Draw())
        self._algorithm = replace(search, processors=chain, prefix=FREE, max_length=None)
        self._min_length, self._scoring = search.min_length, search.scoring
        most = search.max_length
        if isinstance(most, SourceLimit):
            most = most.tokens(assets.window // assets.stride)
        self._max_length = math.inf if most is None else most

    def decoder(
        self, schedule: Schedule | None, backend: str, memory_limit: int | None = None
    ) -> Decoder:
        """Make the decoder that the requests are for; see `Transcriber`."""
        # the builder says what is suppressed, and each question how its answer begins and ends
        plain = self._model.without(*self._model.settings.names)
        options: dict[str, Any] = {"log_probs": True, "memory_limit": memory_limit}
        return Decoder(plain, self._algorithm, schedule, backend, **options)

    def request(self, question: Question) -> tuple[Request, int]:
        """Return the request of a question, and the line that it takes of `token_log_probs`."""
        line = self.token_log_probs.take()
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
            own.append(Draw(question.temperature, question.seed))
        request = Request(
            question.source,
            prefix=[*prefix, *question.beginning],
            start=None if start == self._model.start_id else start,
            width=1 if is_sample else None,
            n_best=1,
            min_length=min(max(0, self._min_length - num_given), most - 1),
            max_length=most,
            scoring=scoring,
            processors=own,
        )
        return request, line

    def answer(self, question: Question, line: int, result: Result) -> Answer:
        """Return the answer that a result is, and give the line of its request back."""
        token_log_probs = self.token_log_probs.read(line)
        if not result.hypotheses:
            return Answer([], -math.inf, token_log_probs, [])
        best = result.hypotheses[0]
        # the prompt's first token is no part of an output
        tokens = best.tokens[len(question.prompt) - 1 :]
        log_probs = [*[0.0] * len(question.beginning), *(best.log_probs or ())]
        return Answer(tokens, best.score, token_log_probs, log_probs[: len(tokens)])


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
        rules.append(WhisperTimestamps(tokens.no_timestamps, most, stage))
    return rules


def _chain(own: Iterable[AnyProcessor], rules: Iterable[Processor]) -> tuple[AnyProcessor, ...]:
    """Put the rules behind an algorithm's own processors, stage by stage."""
    own = list(own)
    if any(perturbs(one) or isinstance(one, Draw) for one in own):
        raise ArgumentError(
            "algorithm",
            f"must search, since temperatures above 0 sample, but {own[-1]!r} changes what ranks hypotheses",
        )
    chain = [*own, *rules]
    # stable, so that the order within a stage stays
    chain.sort(key=lambda processor: stage_of(processor) == "log_probs")
    return tuple(chain)


def beam_search(width: int = 5, *, patience: float = 1.0, length_penalty: float = 1.0) -> Algorithm:
    """The beam search of faster-whisper and openai-whisper, for `Transcriber`.

    It is `pybeam.fixed_beam` with ``final_score = score / n**length_penalty``, where n counts no EOS, while
    the score does. openai-whisper does the same with its default length penalty.

    Args:
        width: rows of the beam; 1 is greedy search.
        patience: the search stops once ``round(patience * width)`` hypotheses have finished.
        length_penalty: see above.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    # -1 takes EOS away where there is one
    scoring = CutScoring(alpha=length_penalty, offset=-1.0)
    return fixed_beam(width, scoring=scoring, stop=Stop(patience=patience))
