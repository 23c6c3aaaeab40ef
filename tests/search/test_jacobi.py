"""Draft and verify: whatever is guessed, the output is that of greedy decoding, after no more steps."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import pybeam
from pybeam import backends, drafts, processors
from pybeam.backends.arrays import tree_survivors
from pybeam.engine.workspace import Workspace
from pybeam.models import FunctionModel, load_model
from pybeam.models.huggingface import wrap
from pybeam.models.rnn import Rnn
from pybeam.state.new_beam import NewBeam
from support import laws
from support.huggingface_models import tiny_network
from support.laws import SOURCES, schedules
from support.search_models import BOS, EOS, random_model
from support.tiny_models import favour_eos, tiny_model

ALGORITHMS = {
    "jacobi": pybeam.jacobi,
    "jacobi, too short a length": lambda **options: pybeam.jacobi(length=4, **options),
    "block 1": lambda **options: pybeam.gauss_seidel_jacobi(1, **options),
    "block 4": lambda **options: pybeam.gauss_seidel_jacobi(4, **options),
    "hybrid": lambda **options: pybeam.hybrid_jacobi(3, 5, **options),
    "adaptive": lambda **options: pybeam.adaptive_jacobi(5, **options),
    "adaptive, free guesses": lambda **options: pybeam.adaptive_jacobi(
        5, price=0.0, **dict(initialiser=drafts.pad()) | options
    ),
}
INITIALISERS = {
    "pad": drafts.pad(),
    "last": drafts.repeat_last(),
    "source": drafts.copy_source(1),
    "n-gram": drafts.ngram_lookup(2),
    "no tokens": drafts.function(lambda request: [-5, 10**6, 3]),
}


def decoded(model, algorithm, schedule=None, requests=SOURCES, backend="native", **options):
    """Results through an engine that checks the state's invariants after every step."""
    if backend not in backends.available():
        pytest.skip(f"the {backend} backend is not installed")
    schedule = pybeam.Fifo(5) if schedule is None else schedule
    return laws.decoded(model, algorithm, schedule, backend, requests, log_probs=True, **options)


def assert_greedy(results, greedy, approx=None) -> None:
    for ours, theirs in zip(results, greedy, strict=True):
        assert str(ours.error) == str(theirs.error)
        assert ours.stop_reason == theirs.stop_reason
        assert ours.steps <= theirs.steps
        if approx is None:
            assert ours.hypotheses == theirs.hypotheses
            continue
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert (one.tokens, one.ended) == (other.tokens, other.ended)
            assert one.log_probs == pytest.approx(other.log_probs, abs=approx)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_is_greedy_on_any_function(name):
    """With ties, impossible tokens, prefixes, length limits and NaN; scores too, to the last bit."""
    build = ALGORITHMS[name]
    for seed, options in enumerate(
        [dict(levels=3), dict(minus_inf=0.5, eos_bonus=-9.0), dict(contexts=11)]
    ):
        model = random_model(seed, **options)
        requests = [
            *SOURCES,
            pybeam.Request([1, 2], prefix=[4, 5, 2, 3, 6]),
            pybeam.Request([1], prefix=[2], min_length=9),
            pybeam.Request([3], max_length=1),
            pybeam.Request([2], max_length=30),
            pybeam.Request([2, 3], target=[3, 2, 2, 5, 6]),
        ]
        greedy = decoded(model, pybeam.greedy(max_length=15), requests=requests)
        schedule = list(schedules(30).values())[seed::3]
        for late in (False, True):
            results = decoded(
                model, build(max_length=15), schedule[late], requests, reads_late=late
            )
            assert_greedy(results, greedy)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("initialiser", INITIALISERS)
def test_guesses_change_steps_alone(initialiser):
    model = random_model(5, contexts=5)
    requests = [[2 + i % 4, 3, 5] * 3 for i in range(9)]
    greedy = decoded(model, pybeam.greedy(max_length=25), requests=requests)
    for build in (
        ALGORITHMS["jacobi"],
        ALGORITHMS["block 4"],
        ALGORITHMS["adaptive, free guesses"],
    ):
        algorithm = build(max_length=25, initialiser=INITIALISERS[initialiser])
        results = decoded(model, algorithm, pybeam.Batch(1), requests)
        assert_greedy(results, greedy)
    in_torch = decoded(model, algorithm, pybeam.Batch(1), requests[:2], "reference")
    for ours, theirs in zip(in_torch, results, strict=False):
        assert ours.hypotheses[0].tokens == theirs.hypotheses[0].tokens
        assert (ours.steps, ours.expansions) == (theirs.steps, theirs.expansions)


@pytest.mark.slow
def test_beyond_one_word_of_the_mask():
    model = random_model(3, eos_bonus=-9.0, contexts=7)
    greedy = decoded(model, pybeam.greedy(max_length=140), requests=[[1]])
    algorithm = pybeam.jacobi(max_length=140)
    assert algorithm.max_rows == 128
    assert_greedy(decoded(model, algorithm, requests=[[1]]), greedy)


KINDS = ("m2m_100", "bart", "marian-separate", "t5")


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", KINDS)
def test_transformers(kind, tmp_path):
    """Keys and values of what is accepted stay, of what is not are overwritten: scores are greedy's."""
    original = tiny_model(kind)
    favour_eos(original, 2.0)
    original.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    requests = [[5 + i % 20, 7, 9] * (1 + i % 3) for i in range(8)]
    requests.append(pybeam.Request([5, 8], prefix=[4, 9, 9]))
    greedy = decoded(model, pybeam.greedy(max_length=25), requests=requests)
    for name in ("jacobi", "block 4", "adaptive, free guesses"):
        algorithm = ALGORITHMS[name](max_length=25, initialiser=drafts.repeat_last())
        results = decoded(model, algorithm, pybeam.Fifo(3), requests)
        assert_greedy(results, greedy, approx=1e-4)
        assert sum(r.steps for r in results) < sum(r.steps for r in greedy)
    ensemble = pybeam.models.Ensemble([model, model])
    results = decoded(ensemble, ALGORITHMS["block 4"](max_length=25), None, requests)
    assert_greedy(results, greedy, approx=1e-4)


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_models_of_hugging_face(kind):
    model = wrap(tiny_network(kind))
    algorithm = ALGORITHMS["block 4"](max_length=10)
    requests = [[5 + i, 7, 9] for i in range(3)]
    greedy = decoded(model, pybeam.greedy(max_length=10), requests=requests)
    assert_greedy(decoded(model, algorithm, requests=requests), greedy, approx=1e-4)
    with pytest.raises(ValueError, match="this HuggingFaceModel cannot score guesses behind one"):
        pybeam.Decoder(wrap(tiny_network(kind), cache="dense"), algorithm)


CHAINS = {
    "functions of the history": (
        processors.repetition_penalty(1.7),
        processors.no_repeat_ngram(2),
        processors.suppress_tokens_at_start([2, 3]),
        processors.suppress_sequences([[4, 5], [6]]),
        processors.allowed_tokens(lambda rows: rows.num_generated[:, None] % 6 != torch.arange(7)),
        processors.biased_prefix(0.4, [2, 5, 4]),
        processors.eos_penalty(0.8),
    ),
    "state": (processors.allowed_sequences([[2, 3, i, 4] for i in range(2, 7)] + [[5, 5, 5, 6]]),),
}


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("late", [False, True])
def test_processors(chain, late):
    model = random_model(9, contexts=61)
    options = dict(max_length=12, min_length=2, processors=CHAINS[chain])
    greedy = decoded(model, pybeam.greedy(**options))
    assert any(len(result.hypotheses[0].tokens) > 2 for result in greedy if result.hypotheses)
    # as good as they can be, so that it would show if a guess were processed as something else
    outputs = [result.hypotheses[0].tokens if result.hypotheses else [] for result in greedy]
    right = drafts.function(lambda request: outputs[request.id])
    requests = [pybeam.Request(source, id=i) for i, source in enumerate(SOURCES)]
    for name in ("jacobi", "block 4"):
        results = decoded(model, ALGORITHMS[name](**options), reads_late=late)
        assert_greedy(results, greedy)
        algorithm = ALGORITHMS[name](initialiser=right, **options)
        results = decoded(model, algorithm, requests=requests, reads_late=late)
        assert_greedy(results, greedy)
        most = 12 if name == "jacobi" else 4
        assert {result.steps for result in results} == {-(-r.steps // most) for r in greedy}


def test_a_nan_counts_where_greedy_would_have_seen_it():
    def logits(prefixes, lengths, source_ids):
        table = torch.eye(9).mul(4)[(lengths + 1).clamp(max=8)]  # token t + 1 at place t
        table[(source_ids == 1) & (lengths == 4)] = math.nan
        table[(source_ids == 2) & (prefixes == 0).sum(1).gt(1)] = math.nan  # after a wrong guess
        table[(source_ids == 3) & (lengths == 3)] = -math.inf
        return table

    model = FunctionModel(logits, 9, 0, 8)
    greedy = decoded(model, pybeam.greedy(), requests=[[1]] * 4)
    assert [r.stop_reason for r in greedy] == ["width", "error", "width", "empty_beam"]
    results = decoded(model, pybeam.jacobi(), requests=[[1]] * 4)
    assert_greedy(results, greedy)


def by_position(tokens: list[int]) -> FunctionModel:
    """A model whose tokens do not depend on each other."""
    table = torch.eye(12).mul(5)[[*tokens, EOS]]

    def logits(prefixes, lengths, source_ids):
        return table[(lengths - 1).clamp(max=len(tokens))]

    return FunctionModel(logits, 12, BOS, EOS)


OUTPUT = [5, 6, 7, 8, 9, 10, 11]
TWO, FEEDS_ALL = drafts.function(lambda request: OUTPUT[:2]), dict(feeds_all=True, max_length=8)


@pytest.mark.parametrize(
    ("algorithm", "steps", "expansions"),
    [
        # the first step says all, the second proves it; EOS ends the draft
        pytest.param(pybeam.jacobi(max_length=20), 2, 20 + 7, id="jacobi"),
        # 3 + 2 rows for each block of three, and the last one is cut at EOS
        pytest.param(pybeam.gauss_seidel_jacobi(3), 6, 5 + 5 + (3 + 1), id="block 3"),
        pytest.param(pybeam.hybrid_jacobi(3, 3), 2 + 5, 5 + 5, id="hybrid"),
        pytest.param(pybeam.hybrid_jacobi(4, 6), 2 + 2 + 2, 4 + 3 + 2 + 1 + 2, id="cut at horizon"),
        pytest.param(pybeam.jacobi(length=8), 2, 8 + 7, id="length"),
        pytest.param(pybeam.gauss_seidel_jacobi(1), 8, 8, id="greedy"),
        # all places, although two guesses are given; nothing to look up
        pytest.param(pybeam.jacobi(initialiser=TWO, **FEEDS_ALL), 2, 8 + 5, id="feeds all"),
        pytest.param(pybeam.adaptive_jacobi(), 8, 8, id="adaptive"),
    ],
)
def test_steps_by_hand(algorithm, steps, expansions):
    for backend in ("native", "reference"):
        (result,) = decoded(by_position(OUTPUT), algorithm, requests=[[1]], backend=backend)
        assert result.hypotheses[0].tokens == OUTPUT
        assert (result.steps, result.expansions) == (steps, expansions)


def test_a_horizon_may_follow_from_the_request():
    """Each is asked for its own, also where they are alike in all that others share."""
    algorithm = pybeam.hybrid_jacobi(4, 6)
    draft = dataclasses.replace(algorithm.draft, horizon=lambda request: 6 * request.source_id)
    algorithm = dataclasses.replace(algorithm, draft=draft)
    requests = [pybeam.Request([1], source_id=i) for i in (0, 1)]
    results = decoded(by_position(OUTPUT), algorithm, requests=requests)
    assert [result.hypotheses[0].tokens for result in results] == [OUTPUT] * 2
    # one token at a time, and as "cut at horizon" above
    assert [result.steps for result in results] == [8, 6]


@pytest.mark.parametrize(
    ("initialiser", "steps"),
    [
        pytest.param(drafts.function(lambda request: OUTPUT), 3, id="right"),
        pytest.param(drafts.function(lambda request: [5, 6, 7, 8]), 5, id="half"),
        pytest.param(drafts.copy_source(2), 3, id="copied"),
        pytest.param(drafts.ngram_lookup(1), 3, id="looked up"),
    ],
)
def test_good_guesses(initialiser, steps):
    """Three rows a step at most, and none behind the last guess: eight tokens, and no row too many."""
    request = [3, 0, *OUTPUT]
    algorithm = pybeam.gauss_seidel_jacobi(3, initialiser=initialiser)
    (result,) = decoded(by_position(OUTPUT), algorithm, requests=[request])
    assert result.hypotheses[0].tokens == OUTPUT
    assert (result.steps, result.expansions) == (steps, 8)


@pytest.mark.slow
def test_a_window_that_adapts():
    """Doubles its guesses while all hold; where none holds, they cost no more than what they may."""
    right = drafts.function(lambda request: OUTPUT)
    algorithm = pybeam.adaptive_jacobi(8, initialiser=right)
    (result,) = decoded(by_position(OUTPUT), algorithm, requests=[[1]])
    assert (result.steps, result.expansions) == (2, 3 + 5)
    model = random_model(4, vocab_size=400, eos_bonus=-9.0)
    for price in (0.1, 0.25, 1.0):
        options = dict(initialiser=drafts.pad(), max_length=200)
        algorithm = pybeam.adaptive_jacobi(8, price=price, **options)
        (result,) = decoded(model, algorithm, requests=[[1]])
        guesses, hits = result.expansions - result.steps, 200 - result.steps
        assert guesses >= 2
        assert price * guesses <= hits + 0.5 + 0.02 * result.steps + 1e-6


def test_guesses_cost_more_where_many_sources_share_a_step():
    algorithm = pybeam.adaptive_jacobi()
    prices = [
        pybeam.Decoder(random_model(1), algorithm, pybeam.Batch(n)).algorithm.draft.price
        for n in (1, 8, 64)
    ]
    assert prices == pytest.approx([0.25, 2 / 2.75, 16 / 16.75])
    given = pybeam.Decoder(random_model(1), pybeam.adaptive_jacobi(price=0.1), pybeam.Batch(8))
    assert given.algorithm.draft.price == 0.1


@pytest.mark.parametrize("search", [pybeam.greedy(), pybeam.jacobi(max_length=9)])
def test_a_target_ends_in_the_first_of_several_eos(search, backend):
    row = torch.tensor([0.0, 0.25, 0.5, 0.25]).log()
    model = FunctionModel(lambda prefixes, *_: row.repeat(len(prefixes), 1), 4, BOS, [3, EOS])
    (result,) = pybeam.Decoder(model, search, backend=backend).score([[1]], [[2, 2]])
    [found] = result.hypotheses
    assert (found.tokens, found.ended, found.eos_id) == ([2, 2], True, model.eos_ids[0])


def test_targets_are_scored_in_blocks():
    model = random_model(2)
    targets = [[2 + i % 4, 3, 5, 2, 6] for i in range(6)]
    expected = pybeam.Decoder(model, pybeam.greedy()).score(SOURCES[:6], targets)
    decoder = pybeam.Decoder(model, pybeam.gauss_seidel_jacobi(4))
    results = decoder.score(SOURCES[:6], targets)
    assert [r.hypotheses for r in results] == [r.hypotheses for r in expected]
    assert {r.steps for r in results} == {2}
    assert {r.stop_reason for r in results} == {"target"}
    of_source = pybeam.Decoder(model, pybeam.jacobi(length=lambda request: len(request.source)))
    results = of_source.score(SOURCES[:6], targets)
    assert [r.hypotheses for r in results] == [r.hypotheses for r in expected]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pybeam.gauss_seidel_jacobi(0), "`block` must be 1 to 128, but is 0"),
        (lambda: pybeam.gauss_seidel_jacobi(129), "`block` must be 1 to 128, but is 129"),
        (lambda: pybeam.gauss_seidel_jacobi(2.5), "`block` must be an int, but is 2.5"),
        (
            lambda: pybeam.hybrid_jacobi(3, -1),
            "`horizon` or `length` must be at least 0, but is -1",
        ),
        (lambda: pybeam.adaptive_jacobi(price=-1.0), "`price` must be 0 to 100 steps"),
        (lambda: pybeam.jacobi(initialiser="pad"), "`initialiser` must be made by pybeam.drafts"),
        (lambda: pybeam.adaptive_jacobi(price="1"), "`price` must be a number, but is '1'"),
        (lambda: pybeam.jacobi(length=2.5), "`horizon` or `length` must be an int, but is 2.5"),
        (lambda: drafts.function(lambda _: None).guesses([1]), "`function` must return a list of"),
        (lambda: pybeam.jacobi(stop=pybeam.stopping.optimal()), r"`stop` count\(\)"),
        (lambda: drafts.ngram_lookup(9), "`n` must be 1 to 4, but is 9"),
        (
            lambda: pybeam.jacobi(initialiser=drafts.Fill("first")),
            "must be None, 'pad', 'last' or a token",
        ),
        (lambda: pybeam.jacobi(initialiser=drafts.Fill(-2)), "`fill` must be at least 0, but is"),
        (lambda: pybeam.jacobi(initialiser=drafts.Fill(1 << 31)), "`fill` must be at most "),
        (lambda: drafts.function([3]), "`function` must be a function"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build()


def test_what_does_not_go_together():
    model = random_model(1)
    requests = [pybeam.Request([1], width=3)]
    (result,) = pybeam.Decoder(model, pybeam.jacobi()).decode(requests, on_error="return")
    assert "`width` must be 1" in str(result.error)
    with pytest.raises(ValueError, match=r"`fill` must be 0 to .*; it is a token id of the model"):
        pybeam.Decoder(model, pybeam.jacobi(initialiser=drafts.Fill(model.vocab_size)))
    assert not Rnn.can_draft
    stateful = random_model(1)
    stateful.can_draft = False
    with pytest.raises(
        ValueError, match="this FunctionModel cannot score guesses behind one another"
    ):
        pybeam.Decoder(stateful, pybeam.jacobi())
    with pytest.raises(ValueError, match="`row_budget` must be at least"):
        pybeam.Decoder(model, pybeam.gauss_seidel_jacobi(9), pybeam.Fifo(4, row_budget=8))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("num_guesses", 99, "the guesses of a slot are out of range"),
        ("ngram", -1, "the guesses of a slot are out of range"),
        ("max_rows", 99, "no room for more rows or nodes"),
    ],
)
def test_the_operator_refuses_what_would_be_a_wrong_address(column, value, message):
    algorithm = pybeam.gauss_seidel_jacobi(3, max_length=5)
    if "native" not in backends.available():
        pytest.skip("the native backend is not installed")
    workspace = Workspace(random_model(1), algorithm, backends.load("native"))
    state = workspace.state
    state.reserve(2, 3, 6)
    state.tree.reserve_pages(4)
    limits = dataclasses.replace(algorithm, max_length=5)
    prefix = [4] * 90 if column == "max_rows" else []
    beam = NewBeam(slot=1, algorithm=limits, source_length=3, prefix=prefix)
    state.open([beam], BOS)
    getattr(state.drafts, column)[1] = value
    slot, token = torch.tensor([1], dtype=torch.int32), torch.ones(3, 1, dtype=torch.int32)
    program = state.program
    program.take(slot, tree_survivors(torch.full_like(token, 4), token, torch.zeros(3, 1)))
    with pytest.raises(RuntimeError, match=message):
        program.commit(slot)
