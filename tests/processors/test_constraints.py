"""Searches of automata: against all valid outputs scored one by one, and under every law."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from itertools import pairwise

import pytest
import torch

import pybeam
from pybeam.automata.automaton import Automaton
from pybeam.automata.runs import Runs
from pybeam.automata.sequences import sequences_automaton
from pybeam.backends.torch_automata import MOST_NEEDED, NEEDED
from pybeam.processors import automaton_pool, constraint
from pybeam.processors.automaton_pool import ANYTHING, AutomatonPool
from support import processor_oracles as oracles
from support.asserts import assert_close
from support.laws import decoded, essence
from support.processor_rows import START, processed, random_histories
from support.random_automata import KINDS, outputs, random_automaton
from support.search_models import EOS, next_logits, random_model

V, TOKENS = 5, (0, 2, 3, 4)
LENGTH = 4
BEAMS = {
    "fixed": pybeam.fixed_beam,
    "variable": pybeam.variable_beam,
    "shrinking": pybeam.shrinking_beam,
    "optimal": pybeam.optimal_beam,
}
AUTOMATA = [random_automaton(seed, TOKENS, 4, kind) for seed in range(3) for kind in KINDS]
WIDE = 90


def log_probs(model, source, tokens, automata=(), limit=math.inf) -> list[float]:
    """The log-probabilities of tokens and EOS; with `automata`, as in stage "logits"."""
    found = []
    for n in range(len(tokens) + 1):
        row = next_logits(model, source, tokens[:n]).double()
        for automaton in automata:
            row = shaped(row, automaton, tokens[:n], limit - n - 1)
        found.append(float(row.log_softmax(0)[[*tokens, EOS][n]]))
    return found


def shaped(row: torch.Tensor, automaton: Automaton, before, room: float) -> torch.Tensor:
    """The row with everything forbidden that may not follow these tokens, by the plain walk."""
    state = automaton.walk(before).state
    out = torch.full_like(row, -math.inf)
    for token in TOKENS:
        target, weight = automaton.step(state, token)
        if target >= 0 and automaton.needed[target] < room:
            out[token] = row[token] + weight
    out[EOS] = row[EOS] + automaton.final[state]
    return out


def expected(model, source, automata, prefix=(), stage="log_probs", shortest=0):
    """All outputs that every automaton allows, with their scores, best first."""
    scores = {}
    for output in outputs(automata[0], TOKENS, LENGTH - 1):
        weights = [automaton.score(output) for automaton in automata]
        if min(weights) == -math.inf or len(output) < shortest:
            continue
        if stage == "log_probs":
            own = log_probs(model, source, [*prefix, *output])[len(prefix) :]
            scores[output] = sum(own) + sum(weights)
        else:
            assert not prefix
            scores[output] = sum(log_probs(model, source, [*output], automata, LENGTH))
    return dict(sorted(scores.items(), key=lambda one: -one[1]))


def assert_ranked(result, scores, prefix=()) -> None:
    assert result.error is None
    assert all(h.ended for h in result.hypotheses)
    assert [h.final_score for h in result.hypotheses] == pytest.approx([*scores.values()], abs=1e-4)
    found = {tuple(h.tokens[len(prefix) :]): h.final_score for h in result.hypotheses}
    assert found == pytest.approx(scores, abs=1e-4)


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("kind", KINDS)
def test_as_the_oracle(kind, backend):
    for seed, stage in enumerate(("log_probs", "logits")):
        rng = random.Random(seed)
        automaton = random_automaton(seed, range(2, 9), 6, kind)
        histories = [*random_histories(rng, 9, 18), [START], [START, 2], [START, 3]]
        forced = [rng.choice([0, 0, 1, 4]) for _ in histories]
        torch.manual_seed(seed)
        logits = 3 * torch.randn(len(histories), 9)
        given = [constraint(automaton, stage=stage)], logits, histories, forced
        actual = processed(*given, backend=backend)
        for row, history, num, found in zip(logits, histories, forced, actual, strict=True):
            before = row.log_softmax(0) if stage == "log_probs" else row
            oracle = oracles.constraint(before.tolist(), history, num, automaton)
            assert_close(found, torch.tensor(oracle))


def wide(name: str, *chain, **options):
    return BEAMS[name](WIDE, n_best=WIDE, max_length=LENGTH, processors=chain, **options)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("stage", ["log_probs", "logits"])
@pytest.mark.parametrize("name", BEAMS)
def test_a_wide_beam_ranks_all_outputs(backend, name, stage):
    """With every automaton, beside others in one batch, and behind a prefix."""
    model = random_model(5, V)
    prefixes = [(), (4, 2), (3,)] if stage == "log_probs" else [()]
    requests = [
        pybeam.Request([1], prefix=prefix, processors=[constraint(automaton, stage=stage)])
        for automaton, prefix in zip(AUTOMATA, itertools.cycle(prefixes))
    ]
    algorithm = wide(name, constraint(stage=stage))
    results = decoded(model, algorithm, pybeam.Fifo(4), backend, requests)
    for i, (result, request, automaton) in enumerate(zip(results, requests, AUTOMATA, strict=True)):
        scores = expected(model, i, [automaton], request.prefix, stage)
        assert_ranked(result, scores, request.prefix)


@pytest.mark.thinned(most=1)
def test_several_allow_what_all_of_them_do(backend):
    model = random_model(6, V)
    for one, other in pairwise(AUTOMATA):
        scores = expected(model, 0, [one, other])
        algorithm = wide("variable", constraint(one), constraint(other))
        [result] = decoded(model, algorithm, pybeam.Fifo(1), backend, [[1]])
        assert_ranked(result, scores)


def test_min_length_leaves_out_what_is_shorter(backend):
    model = random_model(6, V)
    for automaton in AUTOMATA[:3]:
        algorithm = wide("variable", constraint(automaton), min_length=2)
        [result] = decoded(model, algorithm, pybeam.Fifo(1), backend, [[1]])
        assert_ranked(result, expected(model, 0, [automaton], shortest=2))


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("max_length", range(1, 8))
def test_nothing_invalid_leaves_at_the_limit(backend, max_length):
    """Whatever the width; who asks for what cannot be is told so."""
    model, given = random_model(7, V, eos_bonus=-3), AUTOMATA
    requests = [
        pybeam.Request([1], max_length=max_length, processors=[constraint(one)]) for one in given
    ]
    for algorithm in (
        pybeam.greedy(processors=[constraint()]),
        pybeam.fixed_beam(3, n_best=3, processors=[constraint()]),
        pybeam.adaptive_jacobi(3, processors=[constraint()]),
    ):
        results = decoded(model, algorithm, pybeam.Fifo(3), backend, requests)
        for result, automaton in zip(results, given, strict=True):
            if max_length <= automaton.shortest:
                assert "`max_length` must be at least" in str(result.error)
                continue
            assert result.error is None and result.hypotheses
            for hypothesis in result.hypotheses:
                assert hypothesis.ended and automaton.score(hypothesis.tokens) > -math.inf


@pytest.mark.thinned(most=1)
def test_a_request_has_the_same_result_alone(backend):
    """Some have the automaton that allows everything, which steps may leave out."""
    model = random_model(8, V, levels=3)
    given = [ANYTHING if i % 3 == 2 else AUTOMATA[i] for i in range(9)]
    requests = [
        pybeam.Request([1], prefix=[3] * (i % 2), source_id=i, processors=[constraint(one)])
        for i, one in enumerate(given)
    ]
    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=9, processors=[constraint()])
    together = decoded(model, algorithm, pybeam.Streaming(3), backend, requests)
    alone = [
        decoded(model, algorithm, pybeam.Batch(1), backend, [request])[0] for request in requests
    ]
    assert [one[1:] for one in essence(together)] == [one[1:] for one in essence(alone)]
    free = [dataclasses.replace(request, processors=None) for request in requests[2::3]]
    algorithm = dataclasses.replace(algorithm, processors=())
    unbound = decoded(model, algorithm, pybeam.Fifo(2), backend, free)
    tokens = [[h.tokens for h in result.hypotheses] for result in unbound]
    assert [[h.tokens for h in result.hypotheses] for result in together[2::3]] == tokens


def test_an_automaton_of_finite_outputs_limits_their_length():
    chain = Automaton.build([False, False, True], source=[0, 1], token=[3, 4], target=[1, 2])
    assert constraint(chain).longest_output == 3
    model = random_model(9, V)
    [result] = pybeam.Decoder(model, pybeam.greedy(processors=[constraint(chain)])).decode([[1]])
    assert result.hypotheses[0].tokens == [3, 4]
    assert constraint().longest_output is None


def test_what_does_not_fit_is_refused():
    model = random_model(9, V)
    nothing = Automaton.build([False])
    with_eos = Automaton.build([True], source=[0], token=[EOS], target=[0])
    too_large = Automaton.build([True], source=[0], token=[V], target=[0])
    one = Automaton.build([False, True], source=[0], token=[3], target=[1])
    with pytest.raises(TypeError, match="must be a pybeam"):
        constraint([3])
    with pytest.raises(ValueError, match="`stage` must be"):
        constraint(one, stage="scores")
    for automaton, message in [
        (with_eos, r"no edges with EOS \(1\)"),
        (too_large, "0 to 4, but holds 5"),
    ]:
        with pytest.raises(ValueError, match=message):
            pybeam.Decoder(model, pybeam.greedy(processors=[constraint(automaton)]))
    decoder = pybeam.Decoder(model, pybeam.greedy(processors=[constraint()], max_length=9))
    for options, automaton, message in [
        ({}, nothing, "must have a valid output, but has none"),
        (dict(max_length=1), one, "must be at least 2"),
        (dict(min_length=2), one, "none has 2 to 8 tokens"),
    ]:
        request = pybeam.Request([1], processors=[constraint(automaton)], **options)
        [result] = decoder.decode([request], on_error="return")
        assert message in str(result.error)


def check_slots(pool, own):
    """Every slot of `own` has the automaton that it uses in the pool."""
    token, first, edge, state = pool.tables
    for slot, automaton in own.items():
        runs, start = Runs.of(automaton), int(pool.line[slot]) - automaton.start
        states = slice(start, start + automaton.num_states)
        begin, end = int(first[start]), int(first[states.stop])
        firsts = first[start : states.stop + 1] - begin
        assert firsts.tolist() == runs.first.tolist()
        assert token[begin:end].tolist() == runs.token.tolist()
        target, weight = edge[:, begin:end]
        moved = torch.where(target < 0, target, target - start)
        assert moved.tolist() == runs.target.tolist()
        assert weight.view(torch.float32).tolist() == runs.weight.tolist()
        assert state[states, NEEDED].tolist() == automaton.needed.tolist()
        assert state[states, MOST_NEEDED].tolist() == runs.most_needed.tolist()


def test_a_pool_holds_what_slots_use():
    rng, num_slots = random.Random(7), 5
    given = [random_automaton(seed, TOKENS, 2 + seed % 7) for seed in range(30)]
    pool = AutomatonPool(given[0], torch.device("cpu"))
    pool.line = torch.zeros(num_slots, dtype=torch.int32)
    own, most = {}, 0
    for turn in range(200):
        some = given if turn < 100 else given[:4]
        slots = rng.sample(range(num_slots), rng.randint(1, num_slots))
        chosen = [rng.choice(some) for _ in slots]
        pool.open(slots, chosen)
        own |= dict(zip(slots, chosen, strict=True))
        most = max(most, len(pool.tables[-1]))
        check_slots(pool, own)
    # room for those of all slots, and half of it empty at most
    sizes = sorted(automaton.num_states + 1 for automaton in given)
    assert most <= 2 * (2 + sizes[-1] * (num_slots + 2))
    shared = {automaton: int(pool.line[slot]) for slot, automaton in own.items()}
    assert all(int(pool.line[slot]) == shared[one] for slot, one in own.items())


def test_a_pool_gives_memory_back_behind_many_small_automata(monkeypatch):
    monkeypatch.setattr(automaton_pool, "KEPT_BYTES", 1 << 12)
    monkeypatch.setattr(automaton_pool, "LOOK_AFTER", 30)
    small = [random_automaton(seed, TOKENS, 3) for seed in range(4)]
    large = sequences_automaton([[3, i] for i in range(4, 500)])
    pool = AutomatonPool(small[0], torch.device("cpu"))
    pool.line = torch.zeros(4, dtype=torch.int32)
    pool.open([3, 1, 2, 0], [*small[1:], large])
    own, first = {0: large, 1: small[2], 2: small[3], 3: small[1]}, pool.num_bytes
    pool.open([1, 2] * 30, [small[2], small[3]] * 30)
    # somebody uses the large one
    check_slots(pool, own)
    assert pool.num_bytes == first
    pool.close([0])
    del own[0]
    pool.open([1, 2] * 14, [small[2], small[3]] * 14)
    assert pool.num_bytes == first
    pool.open([1, 2], [small[2], small[3]])
    assert pool.num_bytes < first // 2
    check_slots(pool, own)
    pool.open([0], [large])
    check_slots(pool, own | {0: large})


@pytest.mark.slow
def test_searches_stay_what_they_are_when_a_pool_gives_memory_back(monkeypatch):
    """Requests whose automata come and go, beside one that stays."""
    monkeypatch.setattr(automaton_pool, "KEPT_BYTES", 1 << 12)
    monkeypatch.setattr(automaton_pool, "LOOK_AFTER", 8)
    pools = []
    init = AutomatonPool.__init__
    monkeypatch.setattr(
        AutomatonPool, "__init__", lambda self, *given: pools.append(self) or init(self, *given)
    )
    small = [random_automaton(seed, TOKENS, 3) for seed in range(5)]
    large = Automaton.build(
        [True] * 900, source=range(899), token=[2 + i % 3 for i in range(899)], target=range(1, 900)
    )
    requests = [
        pybeam.Request([1], source_id=i, processors=[constraint(large if i == 2 else small[i % 5])])
        for i in range(60)
    ]
    search = pybeam.fixed_beam(3, processors=[constraint()], max_length=6)
    model = random_model(3, V)
    decoder = pybeam.Decoder(model, search, pybeam.Fifo(3))
    found = decoder.decode(requests)
    [pool] = [pool for pool in pools if len(pool._places) > 1]
    # the large one alone has twice as much
    assert pool.num_bytes < 1 << 13
    for one, request in zip(found, requests, strict=True):
        [alone] = pybeam.Decoder(model, search).decode([request])
        assert alone.hypotheses == one.hypotheses
