"""Stochastic beam search: exact samples without replacement, the same whatever is decoded beside them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import pybeam
from pybeam import backends, processors, scoring, stopping
from pybeam.backends.arrays import NULL_SLOT
from pybeam.backends.torch_gumbel import gumbel_noise, log1mexp, mixed, softplus
from pybeam.state.beam_state import BeamState
from pybeam.state.step import StepPlan
from support import processor_oracles as oracles
from support.invariants import check_state
from support.laws import decoded
from support.search_models import BOS, EOS, next_logits, random_model
from support.statistics import chi_square
from support.threads import THREAD_COUNTS

V, LENGTH = 4, 4
MASK = 2**64 - 1


def splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def lowbias(x: int) -> int:
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


def noise(key: int, token: int) -> float:
    """A Gumbel(0) number of a key and a token, in plain Python."""
    bits = lowbias(token & 0xFFFFFFFF) ^ key & 0xFFFFFFFF
    bits = lowbias(bits * (key >> 32 | 1) & 0xFFFFFFFF) & 0x7FFFFFFF
    return -math.log(-math.log1p(-(bits + 0.5) * 2.0**-31))


def every_leaf(model, source: int, seed: int, max_length: int, prefix=(), temperature=1.0):
    """All sequences with their perturbed and true log-probs, from the root down, in float64."""
    leaves = []

    def descend(tokens, key, phi, score):
        x = next_logits(model, source, [*prefix, *tokens]).double().tolist()
        log_probs = oracles.log_softmax(oracles.temperature(x, [], 0, temperature))
        fresh = [phi + v + noise(key, i) for i, v in enumerate(log_probs)]
        largest = max(fresh)
        for token, value in enumerate(fresh):
            # the paper's formula as it stands
            term = math.exp(-score) - math.exp(-largest) + math.exp(-value)
            child, own = -math.log(term), phi + log_probs[token]
            if token == EOS or len(tokens) + 1 == max_length:
                kept = [] if token == EOS else [token]
                leaves.append((child, own, [*prefix, *tokens, *kept]))
            else:
                below = splitmix((key + (token + 1) * 0x9E3779B97F4A7C15) & MASK)
                descend([*tokens, token], below, own, child)

    root = splitmix(seed)
    descend([], root, 0.0, noise(root, -1))
    return sorted(leaves, key=lambda leaf: -leaf[0])


def seeded(seed: int, **changes) -> pybeam.Request:
    return pybeam.Request([1], processors=[processors.gumbel(seed)], source_id=3, **changes)


@pytest.mark.thinned(most=1)
def test_the_best_leaves_of_the_whole_tree(backend):
    """A beam of any width finds the first of one order of all sequences; a wide one finds all."""
    for model_seed, width in itertools.product(range(3), (1, 3, 128)):
        model = random_model(model_seed, V, eos_bonus=0.5)
        algorithm = pybeam.stochastic_beam(
            width, max_length=LENGTH, processors=[processors.temperature(1.5)]
        )
        requests = [seeded(seed, prefix=[2, 0][:seed]) for seed in (0, 1, 2)]
        requests.append(seeded(2**63 - 1, width=2, n_best=2))
        for request, result in zip(
            requests, decoded(model, algorithm, pybeam.Fifo(3), backend, requests), strict=True
        ):
            seed = request.processors[0].seed
            leaves = every_leaf(model, 3, seed, LENGTH, request.prefix or (), 1.5)
            num = min(request.width or width, len(leaves))
            assert len(result.hypotheses) == num
            assert [h.tokens for h in result.hypotheses] == [leaf[2] for leaf in leaves[:num]]
            for hypothesis, (score, log_prob, _) in zip(result.hypotheses, leaves, strict=False):
                assert hypothesis.final_score == pytest.approx(score, abs=2e-4)
                assert hypothesis.score == pytest.approx(log_prob, abs=1e-5)
                assert hypothesis.log_probs is None
            if width == 128 and num > 2:
                assert len({(*h.tokens, h.ended) for h in result.hypotheses}) == num
                total = sum(math.exp(h.score) for h in result.hypotheses)
                assert total == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_the_distribution_of_the_first_two_draws():
    """Against exact probabilities, over fixed seeds: p(y), then p(z) / (1 - p(y))."""
    num = 4000
    model = random_model(4, 3, eos_bonus=0.3)
    decoder = pybeam.Decoder(model, pybeam.stochastic_beam(2, max_length=3))
    # one sequence of tokens may have ended or been cut
    leaves = {}
    for _, log_prob, tokens in every_leaf(model, 3, 0, 3):
        leaves[tuple(tokens)] = leaves.get(tuple(tokens), 0.0) + math.exp(log_prob)
    firsts, pairs, best = {}, {}, []
    for result in decoder.decode([seeded(seed) for seed in range(num)]):
        one, two = (tuple(h.tokens) for h in result.hypotheses)
        firsts[one] = firsts.get(one, 0) + 1
        pairs[one, two] = pairs.get((one, two), 0) + 1
        best.append(result.hypotheses[0].final_score)
    assert sum(leaves.values()) == pytest.approx(1)
    assert chi_square(firsts, {y: num * p for y, p in leaves.items()}) < 3
    expected = {
        (y, z): num * p * q / (1 - p)
        for (y, p), (z, q) in itertools.permutations(leaves.items(), 2)
    }
    assert chi_square(pairs, expected) < 3
    # the largest of all perturbed log-probs is Gumbel(0), whatever the model
    assert sum(best) / num == pytest.approx(0.5772, abs=4 * math.pi / math.sqrt(6 * num))


def test_a_distribution_with_a_flaw_is_seen():
    expected = dict.fromkeys(range(10), 400)
    assert chi_square(expected, expected) < 0
    assert chi_square({**dict.fromkeys(range(1, 10), 389), 0: 499}, expected) > 3


def test_noise_is_gumbel_and_free_of_patterns():
    keys = mixed(torch.arange(64))
    assert mixed(torch.tensor([2**63 - 1])).item() & MASK == splitmix(2**63 - 1)
    values = gumbel_noise(keys, torch.arange(20000, dtype=torch.int32)).double()  # [64, 20000]
    assert values[5, 7] == pytest.approx(noise(keys[5].item() & MASK, 7), abs=1e-5)
    assert values.isfinite().all()
    assert values.mean() == pytest.approx(0.5772, abs=0.005)
    assert values.var() == pytest.approx(math.pi**2 / 6, abs=0.01)
    assert torch.corrcoef(values).triu(1).abs().max() < 0.04  # between rows
    assert torch.corrcoef(values.T[:100]).triu(1).abs().max() < 0.75  # between tokens: 64 numbers
    uniform = torch.exp(-torch.exp(-values)).flatten()
    counts = torch.histc(uniform.float(), 100, 0, 1).double()
    expected = uniform.numel() / 100
    assert ((counts - expected) ** 2 / expected).sum() < 99 + 4 * math.sqrt(198)


def test_log1mexp():
    x = torch.tensor([-1e-7, -0.1, -0.693, -0.694, -5.0, -math.inf])
    expected = torch.log1p(-torch.exp(x.double())).float()
    torch.testing.assert_close(log1mexp(x), expected, rtol=1e-5, atol=1e-6)
    assert log1mexp(torch.zeros(1)).item() == -math.inf


def test_softplus():
    x = torch.tensor([-math.inf, -800.0, -1.0, 0.0, 1.0, 800.0, math.inf], dtype=torch.float64)
    torch.testing.assert_close(softplus(x), torch.logaddexp(x, torch.zeros_like(x)))


@pytest.mark.parametrize("num_threads", THREAD_COUNTS)
def test_noise_does_not_depend_on_its_place_in_memory(num_threads):
    """Rows of an odd length, alone and among others, on any number of threads."""
    key = torch.randint(-(2**62), 2**62, (70,))
    token = torch.arange(515, dtype=torch.int32)
    functions = (softplus, lambda x: log1mexp(-x.abs()))
    torch.set_num_threads(1)
    noise = gumbel_noise(key, token)
    expected = [f(noise) for f in functions]
    torch.set_num_threads(num_threads)
    for rows in (slice(0, 1), slice(3, 70), slice(69, 70)):
        assert torch.equal(gumbel_noise(key[rows], token), noise[rows])
        for f, all_rows in zip(functions, expected, strict=True):
            assert torch.equal(f(noise[rows].clone()), all_rows[rows])


def test_given_outputs_have_the_scores_that_were_drawn(backend):
    """With log-probs per token, which are the model's own; impossible outputs have -inf."""
    model = random_model(5, 9, minus_inf=0.3)
    decoder = pybeam.Decoder(
        model, pybeam.stochastic_beam(5, 11, max_length=9), backend=backend, log_probs=True
    )
    (result,) = decoder.decode([pybeam.Request([1], prefix=[2], source_id=0)])
    ended = [h for h in result.hypotheses if h.ended]
    assert len(ended) > 2
    requests = [pybeam.Request([1], prefix=[2], source_id=0)] * (len(ended) + 1)
    x = next_logits(model, 0, [2])
    impossible = [int(x.argmin()), 3, 3]
    assert x.min() == -math.inf
    scored = decoder.score(requests, [*(h.tokens[1:] for h in ended), impossible])
    for ours, theirs in zip(scored, ended, strict=False):
        (ours,) = ours.hypotheses
        assert ours.score == pytest.approx(theirs.score, abs=1e-5)
        assert ours.final_score == pytest.approx(theirs.final_score, abs=1e-4)
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-5)
        assert sum(ours.log_probs) == pytest.approx(ours.score)
        assert ours.score <= 0
    (last,) = scored[-1].hypotheses
    assert last.log_probs[0] == last.score == -math.inf
    assert all(math.isfinite(value) for value in last.log_probs[1:])


@pytest.mark.thinned(most=1)
def test_banned_tokens_are_never_drawn(backend):
    model = random_model(5, 6)
    algorithm = pybeam.stochastic_beam(
        20, max_length=6, min_length=2, processors=[processors.suppress_tokens([3, BOS])]
    )
    for result in decoded(model, algorithm, pybeam.Fifo(3), backend):
        assert len(result.hypotheses) == 20
        for hypothesis in result.hypotheses:
            assert not {3, BOS} & set(hypothesis.tokens)
            assert len(hypothesis.tokens) >= 2


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: processors.gumbel(1.5), TypeError, "`seed` must be an int, but is 1.5"),
        (
            lambda: processors.gumbel(-1),
            ValueError,
            "`seed` must be 0 to 9223372036854775807, but is -1",
        ),
        (lambda: processors.gumbel(2**63), ValueError, "`seed` must be 0 to"),
        (
            lambda: pybeam.greedy(processors=[processors.gumbel(), processors.eos_penalty(0.5)]),
            ValueError,
            r"`processors` must have Gumbel\(seed=0\) last",
        ),
        (
            lambda: pybeam.stochastic_beam(3, scoring=scoring.power(1)),
            TypeError,
            r"`scoring` is no option of stochastic_beam\(\). There are: width, seed, n_best",
        ),
        (lambda: pybeam.stochastic_beam(3, stop=stopping.end()), TypeError, "`stop` is no option"),
        (
            lambda: pybeam.Decoder(random_model(1), pybeam.stochastic_beam(3)).alternatives([[1]]),
            ValueError,
            r"`alternatives` ranks tokens by their probabilities, which Gumbel\(seed=0\) changes",
        ),
    ],
)
def test_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_where_nothing_moves_nothing_is_restored(backend):
    search, kernels = pybeam.stochastic_beam(3), backends.load(backend)
    state = BeamState(search, (EOS,), kernels, torch.device("cpu"))
    state.reserve(2, 3, LENGTH)
    slot = torch.tensor([NULL_SLOT], dtype=torch.int32)
    step = state.begin(StepPlan(slot, 0, LENGTH))
    step.choose(torch.zeros(0, V))
    step.commit(slot)
    check_state(state)
