"""Scores of given targets: by hand, by teacher forcing, by CTranslate2, and as the search scores them."""

import math
import random

import numpy as np
import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine.workspace import Workspace
from pybeam.models import Ensemble, FunctionModel, load_model
from pybeam.search.overrides import for_target, overridden
from pybeam.state.beam_state import BeamState
from pybeam.state.new_beam import NewBeam
from pybeam.stopping import Stop
from support.device_loop import REQUESTS, run, torch_beams
from support.laws import ALGORITHMS, SOURCES, THIRDS, decoded, essence, some_schedules
from support.search_models import BOS, EOS, next_logits, random_model
from support.tiny_models import KINDS, save_tiny_model

VOCAB = 7


def random_targets(num: int, vocab_size: int = VOCAB, longest: int = 9, seed: int = 0) -> list:
    rng = random.Random(seed)
    ids = [token for token in range(vocab_size) if token != EOS]
    return [[rng.choice(ids) for _ in range(rng.randint(0, longest))] for _ in range(num)]


def by_hand(model: FunctionModel, source: int, target: list[int], prefix=()) -> list[float]:
    """Log-probs of the target's tokens and EOS."""
    log_probs = []
    for i, token in enumerate([*target, model.eos_id]):
        logits = next_logits(model, source, [*prefix, *target[:i]]).double()
        log_probs.append(logits.log_softmax(0)[token].item())
    return log_probs


def assert_scored(result, target, log_probs, scoring=None, abs=2e-5, drafts=False):
    (found,) = result.hypotheses
    assert found.tokens == list(target)
    assert found.ended
    assert found.log_probs == pytest.approx(log_probs, abs=abs)
    assert found.score == pytest.approx(sum(log_probs), abs=abs * len(log_probs))
    assert found.final_score == pytest.approx(found.score, abs=1e-6) or scoring
    assert result.stop_reason == "target"
    if drafts:
        assert result.steps <= len(log_probs) <= result.expansions
    else:
        assert (result.steps, result.expansions) == (len(log_probs), len(log_probs))


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_by_hand(backend, name):
    """Whatever the algorithm, only its scoring plays a part."""
    model, algorithm = random_model(3), ALGORITHMS[name]
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(5), backend)
    targets = random_targets(len(SOURCES), longest=20)
    results = decoder.score(SOURCES, targets)
    for i, (result, target) in enumerate(zip(results, targets, strict=True)):
        log_probs = by_hand(model, i, target)
        is_score = algorithm.scoring.is_raw and not algorithm.perturbs
        drafts = algorithm.draft is not None
        assert_scored(result, target, log_probs, scoring=not is_score, drafts=drafts)
        if algorithm.perturbs:  # ranks by something else
            continue
        final = algorithm.scoring.final_score(sum(log_probs), len(target) + 1, len(SOURCES[i]))
        assert result.hypotheses[0].final_score == pytest.approx(final, abs=1e-4)


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_found_gets_the_score_it_was_found_with(backend, name):
    """To the last bit: the search and the scoring of one target read logits by the same rules."""
    model, algorithm = random_model(7, eos_bonus=0.5), ALGORITHMS[name]
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(5), backend, log_probs=True)
    compared = 0
    found = decoder.decode(SOURCES)
    for rank in range(0, algorithm.n_best, 1 + algorithm.n_best // 8):
        # a source's logits depend on its position in the list, so all are scored
        hypotheses = [result.hypotheses[min(rank, len(result.hypotheses) - 1)] for result in found]
        scored = decoder.score(SOURCES, [hypothesis.tokens for hypothesis in hypotheses])
        for hypothesis, result in zip(hypotheses, scored, strict=True):
            if hypothesis.ended:
                assert result.hypotheses == [hypothesis]
                compared += 1
    assert compared >= len(SOURCES) or name == "wide"


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("name", ["greedy", "fixed", "variable", "power", "shrinking", "optimal"])
@pytest.mark.parametrize("third", THIRDS)
def test_scores_do_not_depend_on_the_schedule_nor_searches_on_scoring(backend, name, late, third):
    """Targets and searches side by side in one batch."""
    model, algorithm = random_model(7, eos_bonus=0.5), ALGORITHMS[name]
    targets = random_targets(len(SOURCES))
    requests = [
        pybeam.Request(source, target=target if i % 3 else None, prefix=[4] * (i % 2))
        for i, (source, target) in enumerate(zip(SOURCES, targets, strict=True))
    ]
    expected = essence(decoded(model, algorithm, pybeam.Batch(1), backend, requests))
    for schedule in some_schedules(name, third):
        results = decoded(model, algorithm, schedule, backend, requests, reads_late=late)
        assert essence(results) == expected, schedule
    plain = [pybeam.Request(r.source, prefix=r.prefix) for r in requests]
    searched = essence(decoded(model, algorithm, pybeam.Fifo(5), backend, plain))
    assert [e for i, e in enumerate(expected) if i % 3 == 0] == searched[::3]


@pytest.mark.thinned(most=1)
def test_tokens_that_cannot_follow(backend):
    """-inf for them and for the whole, while what comes behind keeps its own log-prob."""
    model = random_model(5, minus_inf=0.5)
    targets = random_targets(30, longest=8)
    for name in ("greedy", "variable", "shrinking"):
        results = decoded(
            model,
            ALGORITHMS[name],
            pybeam.Fifo(4),
            backend,
            [pybeam.Request([1], target=target) for target in targets],
            log_probs=True,
        )
        for i, (result, target) in enumerate(zip(results, targets, strict=True)):
            assert_scored(result, target, by_hand(model, i, target))
    scores = [result.hypotheses[0].score for result in results]
    assert -math.inf in scores and any(map(math.isfinite, scores))


@pytest.mark.parametrize("stop", ["optimal", "end", "top_finished"])
def test_impossible_targets_where_the_best_are_kept(backend, stop):
    model = random_model(5, minus_inf=0.5)
    algorithm = pybeam.fixed_beam(4, stop=getattr(pybeam.stopping, stop)())
    targets = random_targets(20)
    for i, result in enumerate(
        pybeam.Decoder(model, algorithm, backend=backend).score([[1]] * 20, targets)
    ):
        assert_scored(result, targets[i], by_hand(model, i, targets[i]))


def test_a_row_without_any_token(backend):
    def fn(prefixes, lengths, source_ids):
        logits = torch.zeros(len(prefixes), 4)
        logits[lengths == 2] = -math.inf
        return logits

    decoder = pybeam.Decoder(FunctionModel(fn, 4, BOS, EOS), pybeam.greedy(), backend=backend)
    (found,) = decoder.score([[1]], [[2, 3]])[0].hypotheses
    quarter = pytest.approx(math.log(0.25))
    assert found.log_probs == [quarter, -math.inf, quarter]
    assert found.score == -math.inf


def test_nan_fails_its_request_alone(backend):
    model = random_model(3)
    fn = model.fn

    def broken(prefixes, lengths, source_ids):
        logits = fn(prefixes, lengths, source_ids).clone()
        logits[(source_ids == 1) & (lengths == 3), 5] = math.nan
        return logits

    targets = [[2, 3, 4], [2, 3, 4], [5]]
    expected = pybeam.Decoder(model, pybeam.greedy(), backend=backend).score([[1]] * 3, targets)
    model.fn = broken
    decoder = pybeam.Decoder(model, pybeam.greedy(), backend=backend)
    results = decoder.score([[1]] * 3, targets, on_error="return")
    assert "NaN or +inf logits for request 1 at generated token 3" in str(results[1].error)
    assert results[1].hypotheses == [] and results[1].stop_reason == "error"
    assert essence(results[::2]) == essence(expected[::2])


def test_a_prefix_is_not_scored(backend):
    """And what follows it is scored as it would be behind those tokens."""
    model = random_model(9)
    decoder = pybeam.Decoder(model, pybeam.greedy(), backend=backend)
    whole = decoder.score([[1]], [[4, 5, 2, 3]])[0].hypotheses[0]
    request = pybeam.Request([1], prefix=[4, 5], scoring=pybeam.scoring.power(1.0))
    behind = decoder.score([request], [[2, 3]])[0].hypotheses[0]
    assert behind.tokens == whole.tokens
    assert behind.log_probs == whole.log_probs[2:]
    assert behind.score == pytest.approx(sum(whole.log_probs[2:]), abs=1e-6)
    assert behind.final_score == pytest.approx(behind.score / 3)


def test_limits_of_a_search_play_no_part(backend):
    model = random_model(9)
    # half of a beam of one row would be none at all
    algorithm = pybeam.variable_beam(
        5, threshold=0.1, min_length=3, max_length=4, stop=Stop(patience=0.5)
    )
    decoder = pybeam.Decoder(model, algorithm, backend=backend)
    request = pybeam.Request([1], width=4, max_candidates=1, max_length=2)
    target = [2, 3, 4, 5, 6, 2, 3]
    for source in ([1], request):
        assert_scored(decoder.score([source], [target])[0], target, by_hand(model, 0, target))
    assert_scored(decoder.score([[1]], [[]])[0], [], by_hand(model, 0, []))


def test_processors_are_part_of_the_probabilities(backend):
    model = random_model(9)
    colder = pybeam.greedy(processors=[lambda logits, rows: logits * 2])
    result = pybeam.Decoder(model, colder, backend=backend).score([[1]], [[2, 3]])[0]
    fn = model.fn
    model.fn = lambda *rows: fn(*rows) * 2
    assert_scored(result, [2, 3], by_hand(model, 0, [2, 3]))


PROCESSORS = {
    "on logits": [pybeam.processors.temperature(0.7), pybeam.processors.repetition_penalty(1.4)],
    "on log-probs": [pybeam.processors.eos_penalty(0.6)],
    "that forbid": [pybeam.processors.no_repeat_ngram(2), pybeam.processors.suppress_tokens([3])],
    "a function": [lambda logits, rows: logits * (1 + rows.position[:, None] % 2)],
}


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("build", [pybeam.fixed_beam, pybeam.variable_beam])
def test_what_is_found_under_processors_gets_its_score(backend, name, build):
    model = random_model(7, eos_bonus=0.5)
    algorithm = build(4, max_length=12, processors=PROCESSORS[name])
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(5), backend, log_probs=True)
    requests = [pybeam.Request(source, prefix=[4, 2]) for source in SOURCES]
    found = [result.hypotheses[0] for result in decoder.decode(requests)]
    scored = decoder.score(requests, [hypothesis.tokens[2:] for hypothesis in found])
    assert all(hypothesis.ended for hypothesis in found)
    assert [result.hypotheses[0] for result in scored] == found


def test_processors_of_a_request(backend):
    model = random_model(9)
    algorithm = pybeam.greedy(processors=[pybeam.processors.temperature(1.0)])
    decoder = pybeam.Decoder(model, algorithm, backend=backend)
    own = pybeam.Request([1], processors=[pybeam.processors.temperature(0.5)])
    plain, colder = decoder.score([[1], own], [[2, 3], [2, 3]])
    assert_scored(plain, [2, 3], by_hand(model, 0, [2, 3]))
    fn = model.fn
    model.fn = lambda *rows: fn(*rows) * 2
    assert_scored(colder, [2, 3], by_hand(model, 1, [2, 3]))


def test_float64(backend):
    fn = random_model(9, eos_bonus=0.5).fn
    model = FunctionModel(lambda *rows: fn(*rows).double() * 3, VOCAB, BOS, EOS)
    for algorithm in (pybeam.greedy(), pybeam.variable_beam(3)):
        decoder = pybeam.Decoder(model, algorithm, backend=backend)
        found = decoder.decode([[1]])[0].hypotheses[0]
        result = decoder.score([[1]], [found.tokens])[0]
        assert result.hypotheses[0].score == found.score
        assert_scored(result, found.tokens, by_hand(model, 0, found.tokens), abs=2e-6)


def test_ensembles(backend):
    members = [random_model(seed) for seed in range(3)]

    def fn(*rows):
        return torch.stack([member.fn(*rows).double().softmax(1) for member in members]).mean(0)

    mean = FunctionModel(lambda *rows: fn(*rows).log(), VOCAB, BOS, EOS)
    targets = random_targets(12)
    decoder = pybeam.Decoder(Ensemble(members), pybeam.fixed_beam(3), pybeam.Fifo(5), backend)
    for i, result in enumerate(decoder.score([[1]] * 12, targets)):
        assert_scored(result, targets[i], by_hand(mean, i, targets[i]))


def batch_of(model, num: int = 10, seed: int = 1) -> tuple[list, list]:
    rng = random.Random(seed)
    ids = [token for token in range(3, 36) if token != model.eos_id]
    draw = lambda least: [rng.choice(ids) for _ in range(rng.randint(least, 12))]  # noqa: E731
    return [draw(1) for _ in range(num)], [draw(0) for _ in range(num)]


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", ["m2m_100", "mbart", "bart", "marian", "fsmt-tied"])
def test_teacher_forcing(kind, tmp_path, backend, device):
    """The original decodes the whole target in one pass."""
    assert kind in KINDS
    original = save_tiny_model(tmp_path, kind)
    model = load_model(tmp_path, device=device)
    sources, targets = batch_of(model)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(4), pybeam.Fifo(4), backend)
    for source, target, result in zip(
        sources, targets, decoder.score(sources, targets), strict=True
    ):
        with torch.inference_mode():
            logits = original(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([[model.start_id, *target]]),
                use_cache=False,
            ).logits[0]
        labels = torch.tensor([*target, model.eos_id])
        log_probs = logits.double().log_softmax(-1).gather(1, labels[:, None])[:, 0]
        assert_scored(result, target, log_probs.tolist(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed", "variable"])
def test_a_step_never_waits(name, tmp_path, guard):
    save_tiny_model(tmp_path, "m2m_100")
    model, algorithm = load_model(tmp_path), ALGORITHMS[name]
    requests = [
        pybeam.Request(source, target=[4 + i, 9] if i % 2 else None, prefix=[5] * (i % 3))
        for i, source in enumerate(REQUESTS)
    ]
    workspace = Workspace(model, algorithm, torch_beams())
    options = dict(requests=requests, reads_late=True)
    results, stats = run(workspace, pybeam.Streaming(5), **options)
    assert not any(result.error for result in results)
    assert guard.steps == stats.steps
    assert [r.stop_reason == "target" for r in results] == [i % 2 == 1 for i in range(12)]


def test_a_graph_of_searches_is_not_replayed_with_targets():
    """The differences of a step are part of the key under which it is captured."""
    algorithm = pybeam.greedy()
    limits = for_target(algorithm, pybeam.Request([1], target=[3]), None)
    state = BeamState(algorithm, (EOS,), backends.load("reference"), torch.device("cpu"))
    state.reserve(3, 1, 4)
    state.tree.reserve_pages(4)
    before = state.options
    plain = overridden(algorithm, pybeam.Request([1]), None, 1)
    state.open([NewBeam(slot=1, algorithm=plain, source_length=1)], BOS)
    assert state.options == before
    state.open([NewBeam(slot=2, algorithm=limits, source_length=1, target=[3, EOS])], BOS)
    assert state.options != before


def test_empty_sources(backend):
    """Their only output is the empty one."""
    decoder = pybeam.Decoder(random_model(3), pybeam.greedy(), backend=backend)
    empty, wrong, whole = decoder.score([[], [], [1]], [[], [2], [2]], on_error="return")
    assert empty.hypotheses == [pybeam.Hypothesis([], 0.0, 0.0, True, [], eos_id=EOS)]
    assert str(wrong.error).startswith("`target` must be empty for an empty source, ")
    assert "but has 1 tokens" in str(wrong.error)
    assert whole.error is None


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([2, 9], "`target` must hold token ids from 0 to 6, but holds 9"),
        ([2, EOS], r"`target` must not hold EOS \(1\): it is added at the end"),
        ("abc", "`target` must be a list of token ids, but is 'abc'"),
        (5, "`target` must be a list of token ids, but is 5"),
        (iter([2]), "`target` must be a list of token ids, but is <list_iterator"),
        ([2.5], "`target` must hold token ids, which are ints, but holds 2.5"),
        ([True], "`target` must hold token ids, which are ints, but holds True"),
    ],
)
def test_wrong_targets_fail_alone(target, message):
    decoder = pybeam.Decoder(random_model(3), pybeam.greedy())
    for kind in (torch.tensor, np.array):
        right, wrong = decoder.score([[1], [1]], [kind([2, 3]), target], on_error="return")
        assert right.hypotheses[0].tokens == [2, 3]
    with pytest.raises((TypeError, ValueError), match=message):
        raise wrong.error
    with pytest.raises(pybeam.DecodeError, match="1 of 2 requests failed; the first is request 1"):
        decoder.score([[1], [1]], [[2], target])


def test_too_long_a_target(tmp_path):
    save_tiny_model(tmp_path, "m2m_100")
    decoder = pybeam.Decoder(load_model(tmp_path), pybeam.greedy())
    longest, longer = decoder.score([[5], [5]], [[7] * 31, [7] * 32], on_error="return")
    assert len(longest.hypotheses[0].log_probs) == 32
    message = "`target` with EOS and the prefix must be at most the model's 32 positions"
    assert f"{message}, but is 33 + 0" in str(longer.error)


def test_one_target_for_every_request():
    decoder = pybeam.Decoder(random_model(3), pybeam.greedy())
    with pytest.raises(ValueError, match="there are more requests than targets"):
        decoder.score([[1], [1]], [[2]])
    with pytest.raises(ValueError, match="there are more targets than requests"):
        decoder.score([[1]], iter([[2], [3]]))
    assert decoder.score([], []) == []


def test_targets_beside_searches_in_a_stream(backend):
    """`Request.target` in `decode`, with log-probs only if the decoder gives them."""
    model = random_model(3)
    requests = [[1], pybeam.Request([1], target=[2, 3], id="scored")]
    for log_probs in (False, True):
        decoder = pybeam.Decoder(model, pybeam.greedy(), backend=backend, log_probs=log_probs)
        search, scored = decoder.decode(requests)
        assert scored.id == "scored"
        assert (scored.hypotheses[0].log_probs is not None) == log_probs
        assert scored.hypotheses[0].score == pytest.approx(sum(by_hand(model, 1, [2, 3])), abs=1e-5)
        assert search.stop_reason != "target"
