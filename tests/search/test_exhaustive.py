"""A beam that is wide enough for every sequence finds the best of all."""

import math

import pytest

import pybeam
from support.search_models import constant_model, random_model
from support.search_oracles import every_sequence, ranked_log_probs


@pytest.mark.thinned(most=5)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("build", [pybeam.variable_beam, pybeam.fixed_beam])
def test_width_64_is_exhaustive_on_a_five_token_model(backend, build, seed):
    model = random_model(seed, vocab_size=5)
    unforced = model.fn

    def ends_at_length_4(prefixes, lengths, source_ids):
        logits = unforced(prefixes, lengths, source_ids).clone()
        logits[lengths == 4, :1] = -math.inf
        logits[lengths == 4, 2:] = -math.inf
        return logits

    model.fn = ends_at_length_4
    result = pybeam.Decoder(model, build(64), backend=backend).decode([[1]])[0]
    sequences = every_sequence(ranked_log_probs(model, 0, backend), 4)
    assert len(sequences) == 1 + 4 + 16 + 64
    best = max(sequences, key=lambda found: found.score)
    assert result.hypotheses[0].tokens == best.tokens
    assert result.hypotheses[0].score == float(best.score)


@pytest.mark.parametrize(
    "rule",
    [
        {"threshold": 0.5},
        {"relative_threshold": 0.6},
        {"local_threshold": 0.6},
        {"max_candidates": 1},
    ],
    ids=lambda rule: next(iter(rule)),
)
def test_a_rule_that_leaves_the_best_token_alone(backend, rule):
    """p(2) = 0.6 and p(3) = 0.3, whatever came before; asked of the algorithm, or by one request of two."""
    model = constant_model([math.log(p) for p in (0.04, 0.06, 0.6, 0.3)])
    plain = pybeam.variable_beam(4, n_best=4, max_length=3)
    ruled = pybeam.variable_beam(4, n_best=4, max_length=3, **rule)
    decode = pybeam.Decoder(model, plain, backend=backend).decode
    free, pruned = decode([pybeam.Request([1]), pybeam.Request([1], **rule)])
    [same] = pybeam.Decoder(model, ruled, backend=backend).decode([[1]])
    assert len(free.hypotheses) == 4
    assert {token for found in free.hypotheses for token in found.tokens} == {2, 3}
    assert [found.tokens for found in pruned.hypotheses] == [[2, 2, 2]]
    assert same.hypotheses == pruned.hypotheses


@pytest.mark.parametrize("rule", [{"threshold": 1.0}, {"local_threshold": math.exp(-1)}], ids=str)
def test_ties_at_a_threshold(backend, rule):
    """Token 3 is always exactly at the threshold; the option is the algorithm's, or the request's."""
    model = constant_model([-9.0, -9.0, 0.0, -1.0])
    raw = dict(n_best=4, max_length=1)
    build = lambda **more: pybeam.variable_beam(4, **rule, **raw, **more)  # noqa: E731
    request = pybeam.Request([1], keep_ties=True)
    first = lambda algorithm, source: {  # noqa: E731
        found.tokens[0]
        for found in pybeam.Decoder(model, algorithm, backend=backend)
        .decode([source])[0]
        .hypotheses
    }
    assert (
        first(build(), [1])
        == first(build(keep_ties=True), pybeam.Request([1], keep_ties=False))
        == {2}
    )
    assert first(build(keep_ties=True), [1]) == first(build(), request) == {2, 3}
