"""Law 2: what a search in plain Python finds, where there is one.

`support.whole_search` searches, `support.processor_oracles` changes the numbers, and neither shares code
with the library. `has_oracle` says which cases they cover: functions as models, whose logits Python can
ask for; no samples and no groups, which have oracles of their own beside them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from law import axes, grammars
from law.case import Case
from pybeam.limits import SourceLimit
from pybeam.processors.base import Processor, stage_of
from pybeam.processors.phrases import MustContain
from pybeam.request import Request, Result
from pybeam.scoring import Scoring
from support import ctc_prefixes, phrases
from support import processor_oracles as oracles
from support.ruled_search import RuledAllocatedSearch
from support.rules import RULES
from support.search_models import BOS, EOS, next_logits
from support.search_problems import rules_of
from support.whole_search import INF, Rules, Scale, Search

# scores are float32's there and float64's here
NEAR = 1e-4
# by the name of an algorithm: its finishing rule, as `whole_search` calls it
SEARCHES = {
    **dict.fromkeys(("greedy", "fixed_beam", "optimal_beam", *axes.GUESSING), "refill"),
    **dict.fromkeys(("ctranslate2", "fairseq", "huggingface"), "refill"),
    "variable_beam": "held",
    "fireredasr": "held",
    **dict.fromkeys(("shrinking_beam", "huang_beam", "opennmt"), "shrink"),
}
# they draw, or have groups: the files with their oracles
ORACLES_BESIDE = {
    "diverse": "tests/search/test_diverse.py",
    "sample": "tests/search/test_sample.py",
    "stochastic_beam": "tests/processors/test_gumbel.py",
}
PRUNING = ("threshold", "max_candidates", "relative_threshold", "local_threshold", "keep_ties")
LIMITS = ("width", "n_best", "min_length", "max_length", "ended_only")

# by the name of the class: the oracle of a processor, and its arguments
Oracle = Callable[[Any], tuple]
ORACLES: dict[str, Oracle] = {
    "Temperature": lambda p: (oracles.temperature, p.temperature),
    "EosPenalty": lambda p: (oracles.eos_penalty, p.penalty),
    "TokenPenalty": lambda p: (oracles.token_penalty, p.token, p.penalty),
    "RepetitionPenalty": lambda p: (oracles.repetition_penalty, p.penalty, p.counts_start),
    "CountPenalty": lambda p: (oracles.count_penalty, p.frequency, p.presence),
    "NoRepeatNgram": lambda p: (oracles.no_repeat_ngram, p.n, p.counts_start),
    "SuppressTokens": lambda p: (oracles.suppress_tokens, p.tokens),
    "SuppressTokensAtStart": lambda p: (oracles.suppress_tokens_at_start, p.tokens, p.skips),
    "SuppressSequences": lambda p: (oracles.suppress_sequences, p.sequences),
    "SequenceBias": lambda p: (
        oracles.sequence_bias,
        list(zip(p.sequences, p.biases, strict=True)),
        p.counts_start,
    ),
    "SourcePenalty": lambda p: (oracles.encoder_repetition_penalty, p.penalty, p.source),
    "SourceNgrams": lambda p: (oracles.suppress_sequences, p.sequences),
    "TopK": lambda p: (oracles.top_k, p.k),
    "TopP": lambda p: (oracles.top_p, p.p),
    "MinP": lambda p: (oracles.min_p, p.p),
    "BiasedPrefix": lambda p: (oracles.biased_prefix, p.beta, p.prefix),
    "Constraint": lambda p: (oracles.constraint, p.automaton),
    "GrammarConstraint": lambda p: (oracles.grammar, grammars.OUTPUTS[p.text]),
    "TokenLanguageModel": lambda p: (oracles.constraint, p.automaton),
    "WordLanguageModel": lambda p: (
        oracles.words_of_model,
        p.automaton,
        axes.NGRAMS.numbers,
        axes.SPELLINGS,
    ),
    "MustContain": lambda p: (phrases.must_contain, p.phrases),
    "AllowedItems": lambda p: (_allowed_items, _items(p), p.renormalize),
    "AllowedTranslations": lambda p: (oracles.allowed_translations, _rules(p), axes.ALWAYS),
    "MinLength": lambda p: (oracles.min_length, p.length, p.counts_prefix),
    "FirstToken": lambda p: (oracles.first_token, p.token),
    "LastToken": lambda p: (oracles.force_eos, p.is_scored),
    "EosGrowth": lambda p: (oracles.eos_growth, p.start, p.factor),
    "PrefixScores": lambda p: (_prefix_scores, p),
    "Rule": lambda p: (_as_they_are,),
    "WhisperTimestamps": lambda p: (oracles.whisper_timestamps, p.no_timestamps, p.max_initial),
}
# those that are told `max_length`, too
BOUNDED = (oracles.force_eos, oracles.constraint, oracles.grammar, phrases.must_contain)


def _allowed_items(
    row: list[float], tokens: list[int], forced: int, items: list[list[int]], renormalize: bool
) -> list[float]:
    row = oracles.allowed_sequences(row, tokens, forced, items)
    return oracles.log_softmax(row) if renormalize else row


def _as_they_are(row: list[float], tokens: list[int], forced: int) -> list[float]:
    """The logits before a rule, which changes candidates alone."""
    return row


def _prefix_scores(row: list[float], tokens: list[int], forced: int, processor: Any) -> list[float]:
    # a function gives all sources the same
    frames = processor.of_source(None, ()).log_probs.tolist()
    options = processor.weight, processor.blank, [EOS], processor.pre_beam
    return ctc_prefixes.mixed(row, frames, tokens[1:], *options)


def _items(processor: Any) -> list[list[int]]:
    if processor.filter is None:
        return axes.ITEMS
    return [axes.ITEMS[i] for i in axes.ALLOWED_ITEMS]


def _rules(processor: Any) -> dict[tuple[int, ...], list[int]]:
    is_own = processor.shortlist is axes.SHORTLIST
    return axes.TRANSLATIONS if is_own else axes.OTHER_TRANSLATIONS


def public_name(value: str) -> str:
    """The name that a value of an axis has in the library, which others may share."""
    return value.partition(",")[0]


def has_oracle(case: Case) -> bool:
    """Whether a plain search finds the results of the case."""
    if case.model != "function" or public_name(case.algorithm) not in SEARCHES:
        return False
    # its rule of EOS behind a prefix, and its coarser certificate, are tested beside it
    if case.algorithm == "ctranslate2" and case.prefix != "none":
        return False
    return all(type(one).__name__ in ORACLES for one in case.search.processors)


def assert_as_in_plain_python(case: Case, alone: list[Result]) -> None:
    """Compare the results of all requests, if there is an oracle."""
    if has_oracle(case):
        for i, result in enumerate(alone):
            _assert_as_in_plain_python(case, i, result)


def assert_stopped_as_in_plain_python(case: Case, i: int, result: Result) -> None:
    """Compare the result of a request that was stopped, if there is an oracle that has the same steps."""
    allows_cuts = all(getattr(one, "allows_cuts", True) for one in case.search.processors)
    if result.steps <= case.requests[i].prefix_length:
        assert result.hypotheses == [], "a prefix that is not at its end is an output"
    elif has_oracle(case) and case.algorithm not in axes.GUESSING and allows_cuts:
        _assert_as_in_plain_python(case, i, result, result.steps)


def _assert_as_in_plain_python(
    case: Case, i: int, result: Result, most_steps: float = math.inf
) -> None:
    request = case.requests[i]
    rules = rules_of_request(case, request)
    step = ranked(case, request, i, rules.max_length)
    search = search_of(case, step, rules, chain_of(case, request))
    expected = search.run(list(request.prefix or []), most_steps)
    cost = result.stop_reason, result.steps, result.expansions
    if case.algorithm in axes.GUESSING:
        cost, steps = (result.stop_reason,), result.steps
        assert steps <= expected.steps
    assert cost == (expected.reason, expected.steps, expected.expansions)[: len(cost)]
    assert [(h.tokens, h.eos_id) for h in result.hypotheses] == [
        (entry.tokens, entry.eos) for entry in expected.found
    ], "plain Python finds something else"
    for hypothesis, entry in zip(result.hypotheses, expected.found, strict=True):
        n = entry.length + (0 if entry.ended else rules.scale.cut)
        final = rules.scale.final(entry.score, n, rules.source_length)
        assert hypothesis.score == pytest.approx(float(entry.score), abs=NEAR)
        assert hypothesis.final_score == pytest.approx(final, abs=NEAR)


def search_of(case: Case, step: Callable, rules: Rules, chain: list[Any]) -> Search:
    """The plain search with the phrases and the rule of these processors."""
    wanted = [one.phrases for one in chain if isinstance(one, MustContain)]
    if case.algorithm in axes.RULED:
        [plain] = [own for rule, own in RULES.values() if rule in chain]
        return RuledAllocatedSearch(step, rules, plain, *wanted or [()])
    return phrases.AllocatedSearch(step, rules, *wanted) if wanted else Search(step, rules)


def rules_of_request(case: Case, request: Request) -> Rules:
    """The rules of one request: the algorithm's, but for what it overrides."""
    search, rule = case.search, case.search.prefix
    own = {name: getattr(request, name) for name in (*LIMITS, *PRUNING)}
    limits = {name: getattr(search, name) for name in LIMITS}
    limits |= {name: getattr(search.pruning, name) for name in PRUNING}
    limits |= {name: value for name, value in own.items() if value is not None}
    if isinstance(limits["max_length"], SourceLimit):
        limits["max_length"] = limits["max_length"].tokens(len(request.source))
    num = request.prefix_length
    if rule.in_limits:
        limits["max_length"] -= num
        limits["min_length"] = max(limits["min_length"] - num, 0)
    counted = num if rule.in_length and not rule.is_scored else 0
    limits["scale"] = scale_of(request.scoring or search.scoring, counted)
    if not isinstance(limits["width"], int):
        limits["width"] = list(limits["width"])
    finishing = SEARCHES[public_name(case.algorithm)]
    rules = rules_of(limits, finishing, search.stop, len(request.source), (1,))
    return dataclasses.replace(rules, regrows=search.regrows, scores_prefix=rule.is_scored)


def scale_of(scoring: Scoring, counted: int) -> Scale:
    ratio = INF if scoring.ratio is None else scoring.ratio
    scale = Scale(scoring.alpha, scoring.offset + counted, scoring.scale, scoring.reward, ratio)
    return dataclasses.replace(scale, cut=scoring.cut_length_offset)


def chain_of(case: Case, request: Request) -> list[Any]:
    """The processors of one request."""
    chain = list(case.search.processors)
    for change in request.processors or ():
        [place] = [i for i, one in enumerate(chain) if type(one) is type(change)]
        chain[place] = change
    return chain


def ranked(case: Case, request: Request, source: int, max_length: int) -> Callable:
    """The `step` function of `whole_search`: the model's logits, and what each processor makes of them."""
    chain = chain_of(case, request)
    forced = request.prefix_length

    def step(tokens: list[int]) -> list[tuple[int, float]]:
        row = next_logits(case.bare_model, source, tokens).double().tolist()
        are_logits = True
        for processor in chain:
            assert isinstance(processor, Processor)
            if are_logits and stage_of(processor) == "log_probs":
                row, are_logits = oracles.log_softmax(row), False
            oracle, *arguments = ORACLES[type(processor).__name__](processor)
            if oracle in BOUNDED:
                arguments.append(max_length)
            if oracle is oracles.allowed_translations:
                arguments.append(request.source)
            row = oracle(row, [BOS, *tokens], forced, *arguments)
        row = oracles.log_softmax(row) if are_logits else row
        order = sorted(range(len(row)), key=lambda token: (-row[token], token))
        return [(token, row[token]) for token in order if row[token] > -math.inf]

    return step
