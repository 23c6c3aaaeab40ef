"""Processors in searches, beside searches in plain Python. `tests/law` has them in every schedule."""

from __future__ import annotations

import dataclasses
import math

import pytest

import pybeam
from pybeam import backends, processors
from pybeam.engine.workspace import Workspace
from pybeam.speech import whisper_timestamps
from support import processor_oracles as oracles
from support.laws import ALGORITHMS, SOURCES, decoded, essence
from support.search_models import BOS, EOS, constant_model, next_logits, random_model
from support.whole_search import Rules, Search

V = 9
ALLOWED = [[2, 3, 4], [2, 3], [5, 5, 6], [7], [3, 3, 3, 3, 8], [5, 6]]


# name -> what it is made of, and the same in plain Python
CHAINS = {
    "logits": (
        [
            processors.temperature(1.4),
            processors.repetition_penalty(1.3),
            processors.count_penalty(0.3, 0.2),
            processors.sequence_bias({(5,): 0.5, (2, 3): -1.0}),
            processors.encoder_repetition_penalty(1.2, [7, 3]),
            processors.no_repeat_ngram(2),
            processors.encoder_no_repeat_ngram(2, [3, 5, 8]),
            processors.suppress_tokens([4]),
            processors.suppress_sequences([[5, 6], [2, 3, 7]]),
            processors.top_k(7),
            processors.top_p(0.97),
            processors.min_p(0.01),
        ],
        [
            (oracles.temperature, 1.4),
            (oracles.repetition_penalty, 1.3),
            (oracles.count_penalty, 0.3, 0.2),
            (oracles.sequence_bias, [((5,), 0.5), ((2, 3), -1.0)]),
            (oracles.encoder_repetition_penalty, 1.2, [7, 3]),
            (oracles.no_repeat_ngram, 2),
            (oracles.encoder_no_repeat_ngram, 2, [3, 5, 8]),
            (oracles.suppress_tokens, [4]),
            (oracles.suppress_sequences, [[5, 6], [2, 3, 7]]),
            (oracles.top_k, 7),
            (oracles.top_p, 0.97),
            (oracles.min_p, 0.01),
        ],
    ),
    "log_probs": (
        [
            processors.temperature(0.8),
            processors.eos_penalty(0.7),
            processors.no_repeat_ngram(2, stage="log_probs"),
            processors.repetition_penalty(1.5, stage="log_probs"),
            processors.suppress_tokens_at_start([EOS, 3], stage="log_probs"),
            processors.biased_prefix(0.3, [6, 2]),
        ],
        [
            (oracles.temperature, 0.8),
            (oracles.eos_penalty, 0.7),
            (oracles.no_repeat_ngram, 2),
            (oracles.repetition_penalty, 1.5),
            (oracles.suppress_tokens_at_start, [EOS, 3]),
            (oracles.biased_prefix, 0.3, [6, 2]),
        ],
    ),
    "trie": ([processors.allowed_sequences(ALLOWED)], [(oracles.allowed_sequences, ALLOWED)]),
    "timestamps": (
        [whisper_timestamps(4, max_initial=2)],
        [(oracles.whisper_timestamps, 4, 2)],
    ),
}


def with_processors(algorithm, chain):
    return dataclasses.replace(algorithm, processors=tuple(chain))


def ranked(model, source: int, chain):
    """The `step` function of `whole_search` for a source of a model, processed in plain Python."""

    def step(tokens):
        row = next_logits(model, source, tokens).double().tolist()
        are_logits = True
        for processor, (oracle, *arguments) in zip(*chain, strict=True):
            if are_logits and processor.stage == "log_probs":
                row, are_logits = oracles.log_softmax(row), False
            row = oracle(row, [BOS, *tokens], 0, *arguments)
        row = oracles.log_softmax(row) if are_logits else row
        order = sorted(range(len(row)), key=lambda token: (-row[token], token))
        return [(token, row[token]) for token in order if row[token] > -math.inf]

    return step


FIXED = Rules("refill", 3, 3, max_length=12, stop_at=3, keeps_best=False)
LOCAL = -math.log(0.02)
VARIABLE = Rules(
    "held", 5, 5, max_length=12, max_candidates=3, margin=2.0, local_margin=LOCAL, stop_at=5
)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("chain", CHAINS)
def test_searches_as_the_oracles(backend, chain):
    ours, theirs = CHAINS[chain]
    for seed in range(12):
        model = random_model(seed, V, eos_bonus=0.3)
        fixed = pybeam.fixed_beam(3, n_best=3, max_length=12, processors=ours)
        variable = pybeam.variable_beam(
            5, 2.0, 3, n_best=5, max_length=12, local_threshold=0.02, processors=ours
        )
        for source, (one, other) in enumerate(
            zip(
                decoded(model, fixed, pybeam.Fifo(4), backend, SOURCES[:5]),
                decoded(model, variable, pybeam.Fifo(4), backend, SOURCES[:5]),
                strict=True,
            )
        ):
            step = ranked(model, source, (ours, theirs))
            for result, rules in ((one, FIXED), (other, VARIABLE)):
                assert_found(result, Search(step, rules).run([]))


def assert_found(result, outcome) -> None:
    assert result.stop_reason == outcome.reason
    found = outcome.found
    assert [h.tokens for h in result.hypotheses] == [f.tokens for f in found]
    scores = [float(f.score) for f in found]
    assert [h.score for h in result.hypotheses] == pytest.approx(scores, abs=1e-4)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "wide"])
def test_neutral_processors_change_nothing(backend, name):
    model = random_model(3, V, eos_bonus=0.3)
    neutral = [
        processors.temperature(1),
        processors.repetition_penalty(1),
        processors.no_repeat_ngram(40),
        processors.suppress_tokens([]),
        processors.top_k(),
        processors.top_p(),
        processors.min_p(),
        lambda logits, rows: logits,
    ]
    algorithm = ALGORITHMS[name]
    expected = essence(decoded(model, algorithm, pybeam.Fifo(5), backend))
    same = with_processors(algorithm, [*neutral, *algorithm.processors])
    assert essence(decoded(model, same, pybeam.Fifo(5), backend)) == expected


def test_a_wide_beam_finds_every_allowed_sequence(backend):
    """With the probabilities that the model gives them."""
    model = random_model(5, V)
    trie = processors.allowed_sequences(ALLOWED, stage="log_probs")
    algorithm = pybeam.fixed_beam(20, n_best=20, max_length=9, processors=[trie])
    for request, prefix in (([1], []), (pybeam.Request([1], prefix=[8, 2]), [8, 2])):
        (result,) = decoded(model, algorithm, pybeam.Fifo(4), backend, [request])
        assert result.stop_reason == "empty_beam"
        scores = {}
        for line in ALLOWED:
            path = [*prefix, *line, EOS]
            scores[(*prefix, *line)] = sum(
                oracles.log_softmax(next_logits(model, 0, path[:i]).tolist())[path[i]]
                for i in range(len(prefix), len(path))
            )
        best_first = sorted(scores, key=lambda tokens: -scores[tokens])
        assert [tuple(h.tokens) for h in result.hypotheses] == best_first
        assert [h.score for h in result.hypotheses] == pytest.approx(
            [scores[tokens] for tokens in best_first], abs=1e-5
        )


@pytest.mark.thinned(most=1)
def test_a_beam_in_which_nothing_is_allowed_is_empty(backend):
    model = random_model(5, V)

    def nothing_after_two(logits, rows):
        return logits.masked_fill((rows.position >= 2)[:, None], -math.inf)

    no_eos = processors.suppress_tokens([EOS])
    for chain, num_steps in (
        ([nothing_after_two, no_eos], 3),
        ([nothing_after_two, no_eos, processors.eos_penalty(0.5)], 3),
        ([processors.suppress_tokens_at_start(range(V))], 1),
    ):
        algorithm = pybeam.fixed_beam(3, n_best=3, max_length=9, processors=chain)
        for result in decoded(model, algorithm, pybeam.Fifo(4), backend):
            assert (result.stop_reason, result.steps) == ("empty_beam", num_steps)
            assert result.hypotheses == []


def test_nan_is_still_reported(backend):
    model = random_model(5, V)

    def broken(logits, rows):
        logits[rows.row_slot == rows.row_slot[0]] = math.nan
        return logits

    algorithm = pybeam.fixed_beam(3, processors=[broken, processors.eos_penalty(0.5)])
    (result,) = decoded(model, algorithm, pybeam.Batch(1), backend, [[1]])
    assert result.stop_reason == "error"
    assert "NaN" in str(result.error)


def test_graphs_are_told_when_what_processors_keep_has_moved(backend):
    """An array that grows is replaced, and a captured step would go on with the old one."""
    model = random_model(5, V)
    chain = [processors.suppress_tokens([2]), processors.allowed_sequences(ALLOWED)]
    algorithm = pybeam.fixed_beam(3, max_length=9, processors=chain)
    workspace = Workspace(model, algorithm, backends.load(backend))
    decoded(model, algorithm, pybeam.Fifo(4), backend, workspace=workspace)
    before = {buffer.data_ptr() for buffer in workspace.buffers()}
    longer = pybeam.Request([1], processors=[processors.suppress_tokens([2, 3, 4])])
    decoded(model, algorithm, pybeam.Fifo(4), backend, [longer], workspace=workspace)
    after = {buffer.data_ptr() for buffer in workspace.buffers()}
    assert len(after - before) == 1


@pytest.mark.parametrize("kind", ["tokens", "sequences"])
def test_lists_of_several_lengths_share_a_step(kind, backend):
    """Token 0, with which a shorter list might be filled up, is what its request would choose."""
    model = constant_model([5.0, -9.0, 4.0, 3.0, 2.0])
    make = {
        "tokens": processors.suppress_tokens,
        "sequences": lambda tokens: processors.suppress_sequences([[token] for token in tokens]),
    }[kind]
    algorithm = pybeam.greedy(max_length=2, processors=[make([4])])
    banned = [[3], [0, 2], [], [0], [2, 3, 4]]
    requests = [pybeam.Request([1], processors=[make(tokens)]) for tokens in banned]
    results = pybeam.Decoder(model, algorithm, backend=backend).decode(requests)
    best = [result.hypotheses[0].tokens[0] for result in results]
    assert best == [0, 3, 0, 2, 0]
