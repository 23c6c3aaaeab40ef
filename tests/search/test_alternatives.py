"""Alternatives at a position: by hand, one after another, beside the batched search."""

import math

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.catalogue import allowed_items
from pybeam.models import FunctionModel
from support.search_models import BOS, EOS, constant_model, next_logits, random_model

ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=9),
    "fixed": pybeam.fixed_beam(3, n_best=2, max_length=9),
    "pruned": pybeam.variable_beam(4, threshold=0.5, max_candidates=1, max_length=9),
    "shrinking": pybeam.shrinking_beam(3, max_length=9),
    "late EOS": pybeam.fixed_beam(3, min_length=3, max_length=9),
    "power": pybeam.variable_beam(3, max_length=9, scoring=pybeam.scoring.power(0.7)),
    "reward": pybeam.optimal_beam(3, 0.5, 1.5, max_length=9),
    "cut": pybeam.compat.fireredasr.beam_search(3, decode_max_len=9, length_penalty=0.7),
}
PREFIXES = [[], [4], [2, 6, 3]]


def next_tokens(model, source: int, prefix: list[int]) -> list[tuple[float, int]]:
    """(log_prob, token) of all tokens that can follow but EOS, best first, lower tokens before equal ones."""
    log_prob = next_logits(model, source, prefix).double().log_softmax(0).tolist()
    pairs = [(p, token) for token, p in enumerate(log_prob) if token != EOS and p > -math.inf]
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("num", [1, 3, 20])
def test_by_hand(backend, name, num):
    model, algorithm = random_model(3, eos_bonus=0.7), ALGORITHMS[name]
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(4), backend, log_probs=True)
    requests = [pybeam.Request([1, 1], prefix=prefix, id=str(prefix)) for prefix in PREFIXES]
    results = decoder.alternatives(requests, num)
    for i, (prefix, result) in enumerate(zip(PREFIXES, results, strict=True)):
        expected = next_tokens(model, i, prefix)[:num]
        assert [h.tokens[: len(prefix) + 1] for h in result.hypotheses] == [
            [*prefix, token] for _, token in expected
        ]
        assert (result.index, result.id, result.stop_reason) == (i, str(prefix), "alternatives")
        rests = []
        for (log_prob, token), found in zip(expected, result.hypotheses, strict=True):
            request = pybeam.Request(
                [1, 1],
                prefix=[*prefix, token],
                source_id=i,
                max_length=8,
                min_length=max(algorithm.min_length - 1, 0),
            )
            rests += decoder.decode([request])
            alone = rests[-1].hypotheses[0]
            assert found.tokens == alone.tokens and found.ended == alone.ended
            assert found.score == pytest.approx(log_prob + alone.score, abs=1e-5)
            assert found.log_probs == pytest.approx([log_prob, *alone.log_probs], abs=1e-6)
            length = len(found.tokens) - len(prefix) + found.ended
            final = algorithm.scoring.final_score(found.score, length, 2, has_ended=found.ended)
            assert found.final_score == pytest.approx(final)
        # the prefix and the alternative itself, then all of them side by side
        assert result.steps == len(prefix) + 1 + max(rest.steps for rest in rests)
        assert result.expansions == len(prefix) + 1 + sum(rest.expansions for rest in rests)


def test_the_best_alternative_of_greedy_is_its_output(backend):
    """Unless that is empty."""
    model = random_model(5, eos_bonus=-1.0)
    decoder = pybeam.Decoder(model, ALGORITHMS["greedy"], backend=backend)
    outputs, results = decoder.decode([[1]] * 8), decoder.alternatives([[1]] * 8, 2)
    for output, result in zip(outputs, results, strict=True):
        assert result.hypotheses[0].tokens == output.hypotheses[0].tokens
        assert result.hypotheses[0].score == pytest.approx(output.hypotheses[0].score, abs=1e-6)


def test_improbable_tokens_are_left_out(backend):
    """p = [0, .4, .3, .2, .1] of EOS and four tokens; EOS is no alternative, and keeps its share."""
    model = constant_model([-math.inf, *map(math.log, (0.4, 0.3, 0.2, 0.1))])
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=3), backend=backend)

    def tokens(**options) -> list[int]:
        return [h.tokens[0] for h in decoder.alternatives([[1]], **options)[0].hypotheses]

    assert tokens() == [2, 3, 4]
    assert tokens(num=2) == [2, 3]
    assert tokens(min_probability=0.15) == [2, 3]
    assert tokens(min_probability=0.25) == [2]
    assert tokens(min_probability=1.0) == []
    score = decoder.alternatives([[1]], 1)[0].hypotheses[0].score
    assert score == pytest.approx(math.log(0.3 * 0.4), abs=1e-6)


def test_the_length_limit_counts_the_alternative(backend):
    model = random_model(3, eos_bonus=-9.0)
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=4), backend=backend, log_probs=True)
    one = pybeam.Request([1], prefix=[2, 3], max_length=1)
    long, short = (r.hypotheses for r in decoder.alternatives([[1], one], 2))
    assert [len(h.tokens) for h in long] == [4, 4]
    assert [len(h.tokens) for h in short] == [3, 3]
    assert not any(h.ended for h in (*long, *short))
    for hypothesis in short:
        assert hypothesis.score == hypothesis.final_score == hypothesis.log_probs[0]


def test_what_fails_fails_alone(backend):
    model = random_model(3)
    fn = model.fn

    def broken(prefixes, lengths, source_ids):
        logits = fn(prefixes, lengths, source_ids).clone()
        logits[(source_ids == 2) & (lengths == 2)] = math.nan  # behind the alternatives
        return logits

    model.fn = broken
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=5), backend=backend)
    requests = [[1], pybeam.Request([1], prefix=[EOS]), [1], [], [1]]
    results = decoder.alternatives(requests, 2, on_error="return")
    assert [r.stop_reason for r in results] == [
        "alternatives",
        "error",
        "error",
        "empty_source",
        "alternatives",
    ]
    assert "`prefix` must not hold EOS" in str(results[1].error)
    assert "NaN or +inf logits for request 2" in str(results[2].error)
    assert [r.index for r in results] == [0, 1, 2, 3, 4]
    with pytest.raises(pybeam.DecodeError, match="2 of 5 requests failed"):
        decoder.alternatives(requests, 2)


def test_functions_know_the_source_by_its_own_number(backend):
    """Alternatives are more requests than the caller has made."""
    asked = set()

    def fn(prefixes, lengths, source_ids):
        asked.update(source_ids.tolist())
        return torch.zeros(len(prefixes), 5)

    decoder = pybeam.Decoder(
        FunctionModel(fn, 5, BOS, EOS), pybeam.greedy(max_length=3), backend=backend
    )
    decoder.alternatives([[1], pybeam.Request([1], source_id=40)], 4)
    assert asked == {0, 40}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num=0), "`num` must be 1 to 4095, but is 0"),
        (dict(num=4096), "`num` must be 1 to 4095, but is 4096"),
        (dict(num=2.0), "`num` must be an int, but is 2.0"),
        (dict(min_probability=1.5), "`min_probability` must be 0 to 1, but is 1.5"),
        (dict(min_probability="1"), "`min_probability` must be a number, but is '1'"),
        (dict(on_error="ignore"), "`on_error` must be 'return' or 'raise'"),
    ],
)
def test_wrong_arguments(options, message):
    decoder = pybeam.Decoder(random_model(0), pybeam.greedy())
    with pytest.raises((TypeError, ValueError), match=message):
        decoder.alternatives([[1]], **options)
    several = FunctionModel(lambda prefixes, *_: torch.zeros(len(prefixes), 5), 5, BOS, [EOS, 4])
    with pytest.raises(ValueError, match="`num` must be 1 to 4094, but is 4095"):
        pybeam.Decoder(several, pybeam.greedy()).alternatives([[1]], 4095)
    (result,) = pybeam.Decoder(several, pybeam.greedy(max_length=2)).alternatives([[1]], 5)
    assert [h.tokens[0] for h in result.hypotheses] == [0, 2, 3]
    with pytest.raises(ValueError, match="but the algorithm guesses ahead"):
        pybeam.Decoder(random_model(0), pybeam.jacobi()).alternatives([[1]])
    for rule in (
        processors.allowed_sequences([[2, 3]]),
        allowed_items(pybeam.Catalogue.build([[2, 3]])),
    ):
        allowing = pybeam.Decoder(random_model(0), pybeam.greedy(processors=[rule]))
        with pytest.raises(ValueError, match="begins anew, but the algorithm has"):
            allowing.alternatives([[1]])
    covered = pybeam.Request([1], scoring=pybeam.scoring.power(1, coverage=0.1))
    with pytest.raises(ValueError, match="request 0 has a `scoring` with coverage"):
        decoder.alternatives([covered])
    with pytest.raises(ValueError, match="request 1 has a `target`"):
        decoder.alternatives([[1], pybeam.Request([1], target=[2])])


@pytest.mark.parametrize(
    "rule",
    [
        pybeam.limits.PrefixRule(in_length=True),
        pybeam.limits.PrefixRule(in_limits=True),
        pybeam.compat.ctranslate2.HardPrefix(),
    ],
)
def test_a_prefix_that_counts_is_refused(rule):
    with pytest.raises(ValueError, match="whose prefixes count for nothing, but `prefix` is"):
        decoder = pybeam.Decoder(random_model(0), pybeam.fixed_beam(2, prefix=rule))
        decoder.alternatives([[1]])


def test_the_score_of_one_token_is_that_of_one_token():
    """Also where there is room for no more, so that nothing is decoded behind it."""
    algorithm = pybeam.fixed_beam(2, max_length=1, scoring=pybeam.scoring.gnmt(1.0))
    (result,) = pybeam.Decoder(random_model(3, 9), algorithm).alternatives([[1]], 3)
    for found in result.hypotheses:
        one, two = (
            algorithm.scoring.final_score(found.score, n, 1, has_ended=False) for n in (1, 2)
        )
        assert found.final_score == one != two
