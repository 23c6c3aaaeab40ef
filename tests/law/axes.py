"""The axes of the covering law, as data: every value has a name and says how it is made.

A case takes one value of each axis. To put a new algorithm, processor, schedule or kind of model under
the law, add its value to the table of its axis: `test_every_public_name_is_on_an_axis` fails until it is
there, and the covering array lets it meet every value of every other axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import pybeam
from law import grammars
from law.automata import LETTERS, NAMES, NO_PAIRS, PAIRS, SPELLINGS, WORDS
from law.frames import BLANK, heard
from law.ruled import RULED
from pybeam import compat, ctc, drafts, processors, scoring, stopping
from pybeam.catalogue import allowed_items
from pybeam.limits import PrefixRule
from pybeam.models.base import Model
from pybeam.processors.base import Processor
from pybeam.search.algorithms import Algorithm
from pybeam.shortlist import allowed_translations
from pybeam.speech import whisper_timestamps
from support.ngrams import MODEL as NGRAMS

LENGTH = 6  # tokens of the longest output, EOS included
# ids that every model has and that end nothing; items of a catalogue consist of them
ALLOWED_ITEMS = [0, 2, 5]
ITEMS = [[3, 6, 5], [3, 6], [8, 8, 6], [9, 9], [3, 3, 3], [8, 6], [10, 5]]
GUESSES = [5, 3, 9, 6, 8, 6]


def taxed(logits: Tensor, rows: Any) -> Tensor:
    """A function that looks at all that `Rows` says of lengths."""
    token = torch.arange(logits.shape[1], device=logits.device)
    late = rows.num_generated.clamp(min=0)[:, None] * token
    others = token != rows.eos_ids[0]
    return logits - 0.02 * late - 0.5 * rows.is_last[:, None] * others


def odd(model: Model) -> Callable[[Any], Tensor]:
    """Behind the first token no even token but EOS."""
    mask = torch.ones(2, model.vocab_size, dtype=torch.bool)
    mask[1] = torch.arange(model.vocab_size) % 2 == 1
    mask[:, list(model.eos_ids)] = True
    mask = mask.to(model.device)
    return lambda rows: mask[rows.num_generated.clamp(0, 1).long()]


CATALOGUE = pybeam.Catalogue.build(ITEMS)
# what translates the tokens of sources, and what is always allowed
TRANSLATIONS = {(3, 6): [9], **{(i,): [3 + i % 4, 8 + i % 3] for i in range(3, 17)}}
# 0 is less than EOS
OTHER_TRANSLATIONS = {(i,): [4 + i % 7] for i in range(3, 17, 2)} | {(4,): [0]}
ALWAYS = [5, 10]
SHORTLIST, OTHER_SHORTLIST = (
    pybeam.Shortlist(rules, ALWAYS) for rules in (TRANSLATIONS, OTHER_TRANSLATIONS)
)

_OPTIONS: dict[str, Any] = dict(n_best=2, max_length=LENGTH)
_GREEDY: dict[str, Any] = dict(max_length=LENGTH)
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "greedy": lambda: pybeam.greedy(**_GREEDY),
    **RULED,
    "fixed_beam": lambda: pybeam.fixed_beam(3, **_OPTIONS),
    # more rows than masks of ancestors have bits
    "fixed_beam, wide": lambda: pybeam.fixed_beam(140, **_OPTIONS),
    "fixed_beam, width by step": lambda: pybeam.fixed_beam([4, 2, 3], **_OPTIONS),
    "fixed_beam, top_finished": lambda: pybeam.fixed_beam(
        3, stop=stopping.top_finished(), scoring=scoring.gnmt(0.8), **_OPTIONS
    ),
    "variable_beam": lambda: pybeam.variable_beam(4, 3.0, 3, **_OPTIONS),
    "variable_beam, normalised": lambda: pybeam.variable_beam(
        3, 2.0, local_threshold=0.01, keep_ties=True, scoring=scoring.power(1.0), **_OPTIONS
    ),
    "shrinking_beam": lambda: pybeam.shrinking_beam(3, **_OPTIONS),
    "optimal_beam": lambda: pybeam.optimal_beam(3, 0.5, 1.5, **_OPTIONS),
    "huang_beam": lambda: pybeam.huang_beam(3, 0.5, **_OPTIONS),
    "stochastic_beam": lambda: pybeam.stochastic_beam(3, 5, **_OPTIONS),
    "sample": lambda: pybeam.sample(
        2, temperature=1.3, top_k=8, top_p=0.95, min_p=0.01, seed=5, **_GREEDY
    ),
    "diverse": lambda: pybeam.diverse(pybeam.fixed_beam(2, **_OPTIONS), 2, 0.7),
    "diverse, held": lambda: pybeam.diverse(pybeam.variable_beam(2, 4.0, **_OPTIONS), 3, 0.3),
    "jacobi": lambda: pybeam.jacobi(**_GREEDY),
    "gauss_seidel_jacobi": lambda: pybeam.gauss_seidel_jacobi(
        2, initialiser=drafts.repeat_last(), **_GREEDY
    ),
    "hybrid_jacobi": lambda: pybeam.hybrid_jacobi(
        3, 5, initialiser=drafts.copy_source(0), **_GREEDY
    ),
    "adaptive_jacobi": lambda: pybeam.adaptive_jacobi(
        3, price=0.0, initialiser=drafts.ngram_lookup(1), **_GREEDY
    ),
    "ctranslate2": lambda: compat.ctranslate2.beam_search(
        3, num_hypotheses=2, max_decoding_length=LENGTH, length_penalty=0.7
    ),
    "fairseq": lambda: compat.fairseq.beam_search(3, nbest=2, max_len_b=LENGTH),
    "fireredasr": lambda: compat.fireredasr.beam_search(
        3, nbest=2, decode_max_len=LENGTH, length_penalty=0.6
    ),
    "huggingface": lambda: compat.huggingface.beam_search(
        3, num_return_sequences=2, max_new_tokens=LENGTH
    ),
    "opennmt": lambda: compat.opennmt.beam_search(3, n_best=2, max_length=LENGTH),
}
GUESSING = ("jacobi", "gauss_seidel_jacobi", "hybrid_jacobi", "adaptive_jacobi")
GROUPS = ("sample", "diverse", "diverse, held")


class Whimsical(pybeam.Fifo):
    """A plan of one's own: whoever waited longest moves, and every second one of the others."""

    def plan(self, depth, num_rows, waited, limit=None):
        can = num_rows > 0
        longest = torch.where(can, waited, -1).max()
        turn = torch.arange(len(waited), device=waited.device) % 2 == (depth.sum() % 2)
        moves = can & (turn | (waited == longest))
        if limit is None:
            return moves
        return moves & (torch.where(moves, num_rows, 0).cumsum(0) <= limit)


# of the most rows that a source may have in a step
SCHEDULES: dict[str, Callable[[int], pybeam.Schedule]] = {
    "Batch": lambda width: pybeam.Batch(3),
    "Batch, tokens": lambda width: pybeam.Batch(tokens=9),
    "Batch, budget": lambda width: pybeam.Batch(4, row_budget=width + 1),
    "Streaming": lambda width: pybeam.Streaming(3, 0.5),
    "Streaming, flush": lambda width: pybeam.Streaming(3, 0.7, flush=2, max_wait=1),
    "Streaming, budget": lambda width: pybeam.Streaming(3, row_budget=width, max_wait=2),
    "Fifo": lambda width: pybeam.Fifo(3),
    "Fifo, budget": lambda width: pybeam.Fifo(4, row_budget=width + 2),
    "Fifo, lazy window": lambda width: pybeam.Fifo(3, 0.4, window=2, max_wait=1),
    "own plan": lambda width: Whimsical(4),
}


def _timestamps(model: Model, most: int) -> Processor:
    """Timestamps begin behind EOS, and behind some tokens of text."""
    return whisper_timestamps(max(*model.eos_ids, 11) + 2, max_initial=most)


def _log_penalty(penalty: float) -> Processor:
    return processors.repetition_penalty(penalty, counts_start=True, stage="log_probs")


PROCESSORS: dict[str, Callable[[Model], list[Any]]] = {
    "none": lambda model: [],
    "temperature": lambda model: [processors.temperature(1.4)],
    "eos_penalty": lambda model: [processors.eos_penalty(0.7)],
    "token_penalty": lambda model: [processors.token_penalty(6, 1.5)],
    "repetition_penalty": lambda model: [processors.repetition_penalty(1.4)],
    "repetition_penalty, log_probs": lambda model: [_log_penalty(1.3)],
    "count_penalty": lambda model: [processors.count_penalty(0.6, 0.3)],
    "no_repeat_ngram": lambda model: [processors.no_repeat_ngram(2)],
    "no_repeat_ngram, log_probs": lambda model: [processors.no_repeat_ngram(1, stage="log_probs")],
    "suppress_tokens": lambda model: [processors.suppress_tokens([6, 9])],
    "no_unk": lambda model: [processors.no_unk(3, stage="log_probs")],
    "suppress_tokens_at_start": lambda model: [
        processors.suppress_tokens_at_start([model.eos_id, 3])
    ],
    "suppress_sequences": lambda model: [processors.suppress_sequences([[5, 6], [3, 6], [8]])],
    "sequence_bias": lambda model: [processors.sequence_bias({(3,): 1.0, (5, 6): -2.0})],
    "encoder_repetition_penalty": lambda model: [
        processors.encoder_repetition_penalty(1.3, [3, 8])
    ],
    "encoder_no_repeat_ngram": lambda model: [
        processors.encoder_no_repeat_ngram(2, [5, 3, 6, 8, 8])
    ],
    "top_k": lambda model: [processors.top_k(4)],
    "top_p": lambda model: [processors.top_p(0.8)],
    "min_p": lambda model: [processors.min_p(0.05)],
    "biased_prefix": lambda model: [processors.biased_prefix(0.5, [8, 6])],
    "allowed_sequences": lambda model: [processors.allowed_sequences(ITEMS)],
    "constraint": lambda model: [processors.constraint(PAIRS)],
    "lexicon": lambda model: [processors.lexicon(WORDS)],
    "regex": lambda model: [processors.regex("(?:a.|bc|[cé])*", LETTERS)],
    "language_model": lambda model: [
        processors.language_model(NGRAMS, NAMES, weight=0.6),
        processors.language_model(NGRAMS, SPELLINGS, weight=0.5, unit="word"),
    ],
    "must_contain": lambda model: [processors.must_contain([[5, 6], [6, 9]])],
    "allowed_items": lambda model: [allowed_items(CATALOGUE)],
    "allowed_items, renormalised": lambda model: [allowed_items(CATALOGUE, renormalize=True)],
    "allowed_items, behind others": lambda model: [
        processors.repetition_penalty(1.3),
        processors.suppress_tokens([8], stage="log_probs"),
        allowed_items(CATALOGUE),
    ],
    "grammar": lambda model: [processors.grammar(grammars.NESTED, grammars.LETTERS)],
    "json_schema": lambda model: [processors.json_schema(grammars.SMALL, grammars.DIGITS)],
    "allowed_translations": lambda model: [allowed_translations(SHORTLIST)],
    "allowed_tokens": lambda model: [processors.allowed_tokens(odd(model))],
    "min_length": lambda model: [processors.min_length(3)],
    "first_token": lambda model: [processors.first_token(8)],
    "force_eos": lambda model: [processors.force_eos()],
    "eos_growth": lambda model: [processors.eos_growth(1, 1.5)],
    "prefix_scores": lambda model: [ctc.prefix_scores(heard(model, 7, 5), 0.3, blank=BLANK)],
    "prefix_scores, pre_beam": lambda model: [
        processors.temperature(1.2),
        ctc.prefix_scores(lambda content: heard(model, 7, 4), 0.5, blank=BLANK, pre_beam=6),
    ],
    "gumbel": lambda model: [processors.gumbel(3)],
    "sample": lambda model: [processors.sample(0.8, 5, top_k=6)],
    "whisper_timestamps": lambda model: [_timestamps(model, 2)],
    "a function": lambda model: [taxed],
    "from_function": lambda model: [processors.from_function(taxed, stage="log_probs")],
    "several": lambda model: [
        processors.temperature(1.3),
        processors.repetition_penalty(1.2),
        taxed,
        processors.no_repeat_ngram(2, stage="log_probs"),
        processors.eos_penalty(0.8),
    ],
    "several, with state": lambda model: [
        processors.suppress_tokens_at_start([9]),
        processors.allowed_sequences(ITEMS),
        processors.biased_prefix(0.6, [8, 8]),
    ],
}
# what a request puts in their places; the others have nothing that a request may change
CHANGES: dict[str, Callable[[Model], list[Any]]] = {
    "temperature": lambda model: [processors.temperature(0.6)],
    "eos_penalty": lambda model: [processors.eos_penalty(1.3)],
    "token_penalty": lambda model: [processors.token_penalty(6, -0.7)],
    "repetition_penalty": lambda model: [processors.repetition_penalty(0.8)],
    "repetition_penalty, log_probs": lambda model: [_log_penalty(1.7)],
    "count_penalty": lambda model: [processors.count_penalty(presence=-0.5)],
    "suppress_tokens": lambda model: [processors.suppress_tokens([3, 5, 8])],
    "suppress_tokens_at_start": lambda model: [processors.suppress_tokens_at_start([5])],
    "suppress_sequences": lambda model: [processors.suppress_sequences([[9], [5, 3, 6]])],
    "sequence_bias": lambda model: [processors.sequence_bias({(8,): -1.0})],
    "encoder_repetition_penalty": lambda model: [processors.encoder_repetition_penalty(0.8, [5])],
    "encoder_no_repeat_ngram": lambda model: [processors.encoder_no_repeat_ngram(1, [6])],
    "top_k": lambda model: [processors.top_k(2)],
    "top_p": lambda model: [processors.top_p(0.4)],
    "min_p": lambda model: [processors.min_p(0.3)],
    "biased_prefix": lambda model: [processors.biased_prefix(0.8, [9, 9, 3])],
    "constraint": lambda model: [processors.constraint(NO_PAIRS)],
    "must_contain": lambda model: [processors.must_contain([[8], [3], [8]])],
    "lexicon": lambda model: [processors.lexicon({"one": [3], "two": [[9, 3], [8]]})],
    "regex": lambda model: [processors.regex(r"\w?[^a]*", LETTERS)],
    "allowed_items": lambda model: [
        allowed_items(CATALOGUE, CATALOGUE.filter(allow=ALLOWED_ITEMS))
    ],
    "allowed_items, renormalised": lambda model: [
        allowed_items(CATALOGUE, CATALOGUE.filter(allow=ALLOWED_ITEMS), renormalize=True)
    ],
    "allowed_items, behind others": lambda model: [
        processors.repetition_penalty(0.7),
        processors.suppress_tokens([5], stage="log_probs"),
        allowed_items(CATALOGUE, CATALOGUE.filter(allow=ALLOWED_ITEMS)),
    ],
    "grammar": lambda model: [processors.grammar(grammars.REPEATED, grammars.LETTERS)],
    "json_schema": lambda model: [processors.json_schema(grammars.LARGE, grammars.DIGITS)],
    "allowed_translations": lambda model: [allowed_translations(OTHER_SHORTLIST)],
    "prefix_scores": lambda model: [ctc.prefix_scores(heard(model, 9, 6), 0.6, blank=BLANK)],
    "prefix_scores, pre_beam": lambda model: [
        ctc.prefix_scores(heard(model, 9, 3), 0.2, blank=BLANK, pre_beam=6)
    ],
    "gumbel": lambda model: [processors.gumbel(7)],
    "sample": lambda model: [processors.sample(1.2, 6, top_p=0.9, draw=1)],
    "whisper_timestamps": lambda model: [_timestamps(model, 0)],
    "several": lambda model: [processors.eos_penalty(1.4), processors.temperature(0.9)],
    "several, with state": lambda model: [processors.biased_prefix(0.3, [3, 3])],
}

MODELS = (
    "function",
    "function, two EOS",
    "function, settings",
    "rnn",
    "marian-ssru",
    "m2m_100",
    "t5",
    "causal-mistral",
    "causal-qwen3_moe",
    "causal-bloom",
    "causal-falcon",
    "Speech2Text",
    "Whisper",
    "FireRedASR",
    "ensemble",
    "wrapped-bart",
    "wrapped-mistral",
    "wrapped-mamba",
    "onnx",
)
WEIGHTS = ("float32", "bfloat16", "int8", "int4", "float8_e4m3fn")

PREFIX = [5, 3]
PREFIXES: dict[str, Callable[[PrefixRule], PrefixRule] | None] = {
    "none": None,
    "free": lambda rule: rule,
    "scored": lambda rule: _with(rule, is_scored=True, in_length=True),
    "counted": lambda rule: _with(rule, in_length=True, in_limits=True),
    "guessed": lambda rule: rule,
}


def _with(rule: PrefixRule, **changes: bool) -> PrefixRule:
    """The rule, of the same class, with these fields."""
    return type(rule)(**{**vars(rule), **changes})


# what every second request asks for
OVERRIDES: dict[str, dict[str, Any]] = {
    "none": {},
    "width": dict(width=2, n_best=1),
    "width by step": dict(width=[1, 3, 2], n_best=2),
    "n_best": dict(n_best=1),
    "lengths": dict(min_length=2, max_length=4),
    "thresholds": dict(threshold=1.5, max_candidates=2),
    "other thresholds": dict(
        relative_threshold=0.05, local_threshold=0.02, max_candidates=math.inf, keep_ties=True
    ),
    "scoring": dict(scoring=scoring.power(0.6)),
    "ended_only": dict(ended_only=True),
    "processors": {},
}

OUTPUTS = ("n_best", "log_probs", "partials", "alternatives", "alignment")
ENTRIES = (
    *("decode", "stream", "score", "Service", "Service, two engines", "Service, two processes"),
    "Worker",
)
EVENTS = ("none", "cancel", "interrupted", "bad request", "model raises", "memory given back")
READING = ("at once", "late", "late, every third")
BACKENDS = ("native", "reference")
# values beside those of `AXES`, for `test_law_on_gpu.py`
ON_A_GPU: dict[str, tuple[str, ...]] = {
    "algorithm": ("fixed_beam, wide",),
    "weights": ("float32, plain",),
    "backend": ("triton",),
}

AXES: dict[str, tuple[str, ...]] = {
    "algorithm": tuple(name for name in ALGORITHMS if name not in ON_A_GPU["algorithm"]),
    "schedule": tuple(SCHEDULES),
    "processor": tuple(PROCESSORS),
    "model": MODELS,
    "weights": WEIGHTS,
    "prefix": tuple(PREFIXES),
    "override": tuple(OVERRIDES),
    "output": OUTPUTS,
    "entry": ENTRIES,
    "event": EVENTS,
    "reading": READING,
    "backend": BACKENDS,
}

# Values of three axes that meet in `make test`, too, on the plainest model: what a source keeps while it
# pauses is where mistakes have been that take three to show.
SEAMS: dict[str, tuple[str, ...]] = {
    **{axis: values[:1] for axis, values in AXES.items()},
    "algorithm": (*GUESSING, "variable_beam"),
    "schedule": ("Streaming, budget", "Fifo, budget", "Batch, budget", "own plan"),
    "processor": ("allowed_sequences", "allowed_items", "grammar", "several, with state"),
    "prefix": ("none", "scored"),
    "override": ("none", "lengths"),
}

# Values whose mechanism another one has, or whose cases are many: they meet in pairs. So a mistake that
# takes three values, one of them from here, is found in `SEAMS` or by chance. Triples are half as many
# without them.
REPEATS = (
    *(
        "variable_beam, ruled",
        "fixed_beam, top_finished",
        "variable_beam, normalised",
        "diverse, held",
        "Batch, tokens",
    ),
    *("temperature", "repetition_penalty, log_probs", "no_repeat_ngram, log_probs"),
    *("allowed_items, renormalised", "allowed_items, behind others"),
    *("suppress_tokens", "no_unk", "eos_growth", "json_schema", "prefix_scores, pre_beam"),
    *("regex", "lexicon", "allowed_sequences", "grammar", "prefix_scores"),
    *("language_model", "count_penalty", "allowed_tokens", "from_function", "min_length"),
    *("first_token", "biased_prefix", "suppress_tokens_at_start", "sequence_bias"),
    *("encoder_repetition_penalty", "encoder_no_repeat_ngram", "top_p", "min_p"),
    *("token_penalty", "eos_penalty", "fairseq", "fireredasr", "opennmt", "gauss_seidel_jacobi"),
    *("adaptive_jacobi", "hybrid_jacobi", "huang_beam", "huggingface"),
    *("suppress_sequences", "no_repeat_ngram", "top_k", "a function"),
    *("t5", "causal-qwen3_moe", "causal-bloom", "causal-falcon"),
    *("wrapped-bart", "wrapped-mamba", "onnx", "bfloat16", "int4", "float8_e4m3fn"),
)
# Values that meet no others in `test_without_the_lock.py`, which has each in one case at least.
LATE = (*REPEATS, "gumbel", "Speech2Text")
TRIPLES: dict[str, tuple[str, ...]] = {
    axis: tuple(value for value in values if value not in REPEATS) for axis, values in AXES.items()
}
