"""Steps that follow one another without the engine: the same bits, and it is asked as soon as it must be."""

import dataclasses
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import pybeam
from pybeam import backends, processors
from pybeam.catalogue import allowed_items
from pybeam.engine.arrivals import IterableArrivals
from pybeam.engine.engine import Engine
from pybeam.engine.live_sources import LiveSources
from pybeam.engine.stats import Stats
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from pybeam.models.transformer.model import TransformerSession
from pybeam.processors.chain import ProcessorChain
from pybeam.shortlist import allowed_translations
from pybeam.speech import whisper_timestamps
from pybeam.state.step import Step
from support.built_in_models import saved
from support.laws import ALGORITHMS, CPU, CheckedEngine, essence

pytestmark = pytest.mark.skipif(
    "native" not in backends.available(), reason="other backends do one step after another"
)
# items of several lengths, of tokens that every model has and that end nothing
ITEMS = pybeam.Catalogue.build(
    [[10 + i % 4, 15 + i % 3, *range(20, 20 + i % 3)] for i in range(24)]
)
# lists of several lengths
SHORTLIST = pybeam.Shortlist({(i,): range(5 + i % 3, 8 + i) for i in range(3, 17)}, [30])
SEARCHES = {
    **ALGORITHMS,
    "items": pybeam.fixed_beam(4, n_best=4, processors=(allowed_items(ITEMS),)),
    "translations": pybeam.fixed_beam(
        4, n_best=4, max_length=9, processors=(allowed_translations(SHORTLIST),)
    ),
}
SOURCES = [[3 + (5 * i + 3 * j) % 14 for j in range(1 + i * 7 % 5)] for i in range(7)]


@cache
def model_of(kind: str):
    with tempfile.TemporaryDirectory() as folder:
        return load_model(saved(kind, Path(folder) / "model"), device=CPU)


@pytest.fixture
def counts(monkeypatch) -> list[int]:
    """How many steps each call has done."""
    found, go_on = [], Step.go_on

    def noted(*given):
        done = go_on(*given)
        found.append(done[0])
        return done

    monkeypatch.setattr(Step, "go_on", noted)
    return found


def run(kind: str, name: str, arrivals=None, schedule=None, edits=()):
    """The results and the statistics of an algorithm, and the workspace of its engine."""
    algorithm = SEARCHES[name]
    algorithm = dataclasses.replace(algorithm, processors=(*edits, *algorithm.processors))
    workspace = Workspace(model_of(kind), algorithm, backends.load("native"))
    engine = CheckedEngine(workspace, schedule or pybeam.Fifo(3), Stats())
    results = list(engine.stream(SOURCES if arrivals is None else arrivals))
    return sorted(results, key=lambda result: result.index), engine.stats, workspace


@pytest.fixture
def checked(counts, monkeypatch):
    """Run, as `run` does, and compare what many steps give with the steps one by one."""

    def check(*given, steps_alone=False, **more):
        counts.clear()
        many, stats, _ = run(*given, **more)
        assert steps_alone or max(counts) > 1
        num_calls = len(counts)
        monkeypatch.setattr(Engine, "_most_steps", lambda engine: 1)
        alone, expected, _ = run(*given, **more)
        assert essence(many) == essence(alone) and len(counts) == num_calls
        for name in ("steps", "expansions", "refills", "pages"):
            assert getattr(stats, name) == getattr(expected, name)
        return many

    return check


# positions of padding, positions that layers see; behind prompts: tables of positions, rotary embeddings,
# windows and biases
KINDS = ["m2m_100", "t5", "causal-gpt2", "causal-qwen3", "causal-gemma3", "causal-bloom"]
BANS = (
    processors.repetition_penalty(1.3, counts_start=True),
    processors.no_repeat_ngram(2),
    processors.suppress_tokens([4, 9]),
    processors.min_length(3),
)
# processors that C++ knows
EDITS = {
    "none": (),
    "of logits": BANS,
    "of log-probs": (
        processors.first_token(5),
        processors.suppress_sequences([[6], [5, 7]], counts_start=True, stage="log_probs"),
        processors.eos_penalty(0.7),
        processors.force_eos(is_scored=False),
    ),
    "of both": (
        *BANS,
        processors.biased_prefix(0.4, [8, 6, 3]),
        processors.token_penalty(7, 0.6),
        processors.suppress_tokens_at_start([11], stage="log_probs"),
    ),
    "of marks": (whisper_timestamps(25, max_initial=4), processors.suppress_tokens([4, 30])),
}

CASES = [(kind, "none") for kind in KINDS]
CASES += [(kind, edits) for kind in ("m2m_100", "causal-gpt2") for edits in EDITS if EDITS[edits]]


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize(("kind", "edits"), CASES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_many_steps_are_the_steps_one_by_one(kind, name, edits, checked):
    checked(kind, name, edits=EDITS[edits], steps_alone=bool(ALGORITHMS[name].processors))


@pytest.mark.parametrize("name", ["fixed", "adaptive"])
def test_requests_with_edits_of_their_own_follow_one_another(name, checked):
    """Their prefixes, limits and lists differ."""
    edits = (
        processors.no_repeat_ngram(2, counts_start=True),
        processors.suppress_tokens_at_start([11, 12], skips=1),
        processors.min_length(3, counts_prefix=True),
        processors.biased_prefix(0.4, [8, 6, 3]),
        processors.suppress_sequences([[6], [5, 7]], counts_start=True, stage="log_probs"),
        processors.force_eos(is_scored=False),
    )
    requests = [
        pybeam.Request(
            source,
            prefix=[8, 9, 10][: i % 4],
            min_length=i % 3,
            max_length=6 + i,
            processors=[
                processors.biased_prefix(0.2 + 0.1 * i, [30 + i] * i),
                processors.suppress_sequences(
                    [[1 + i, 2]] * i, counts_start=True, stage="log_probs"
                ),
            ],
        )
        for i, source in enumerate(SOURCES)
    ]
    many = checked("m2m_100", name, requests, edits=edits)
    assert not any(result.error for result in many)


@pytest.mark.parametrize(
    ("kind", "edits"), [("m2m_100", "of both"), ("m2m_100", "of logits"), ("causal-gemma3", "none")]
)
def test_columns_follow_one_another(kind, edits, checked):
    """Requests have filters of their own, prefixes, or neither. Edits come before the columns."""
    filters = [ITEMS.filter(deny=[0]), ITEMS.filter(allow=range(5)), None]
    rules = [allowed_items(ITEMS, filters[i % 3]) for i in range(len(SOURCES))]
    requests = [
        pybeam.Request(source, prefix=[8, 9] * (i % 2), processors=[rules[i]])
        for i, source in enumerate(SOURCES)
    ]
    many = checked(kind, "items", requests, edits=EDITS[edits])
    assert all(result.hypotheses[0].items for result in many)


@pytest.mark.parametrize("edits", ["none", "of both"])
def test_lists_of_sources_follow_one_another(edits, checked):
    """A target, which ends that, changes no bit of the others."""
    requests = [pybeam.Request(source, prefix=[8, 9] * (i % 2)) for i, source in enumerate(SOURCES)]
    given, targets = ("m2m_100", "translations"), [*requests, pybeam.Request([3], target=[9])]
    targeted, *_ = run(*given, targets, edits=EDITS[edits])
    many = checked(*given, requests, edits=EDITS[edits])
    assert essence(targeted[:-1]) == essence(many)
    for request, result in zip(requests, many, strict=True):
        listed = {8, 9, *SHORTLIST.tokens_of(request.source)}
        assert listed.issuperset(result.hypotheses[0].tokens)


def test_what_is_neutral_is_left_out_until_a_request_uses_it(counts, checked):
    edits = processors.suppress_tokens([4]), processors.sample()
    drawing = pybeam.Request(SOURCES[2], processors=[processors.sample(0.7)])
    run("m2m_100", "fixed", [drawing], edits=edits)
    assert counts == []
    many, *_ = run("m2m_100", "fixed", edits=edits)
    found = checked("m2m_100", "fixed", [drawing, *SOURCES], edits=edits)
    assert [one.hypotheses for one in found[1:]] == [one.hypotheses for one in many]


def test_experts_are_asked_for_every_step(counts):
    """The layers are no program, because the host sends rows to experts."""
    run("causal-mixtral", "fixed")
    assert counts == []


class Crowd(IterableArrivals):
    """Requests that all wait from the beginning on, and are taken when there is room, as a service's are."""

    keeps_order = True

    def __init__(self):
        super().__init__(SOURCES)
        self.has_news, self.must_leave = np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.bool_)


@pytest.mark.parametrize("has_flag", [True, False])
def test_who_must_leave_ends_them(has_flag, counts):
    """Where no flag says so, news of any kind do."""
    arrivals = Crowd()
    arrivals.must_leave, arrivals.patience = arrivals.has_news if has_flag else None, 1.0
    results, *_ = run("m2m_100", "fixed", arrivals)
    assert set(counts) == {1}
    assert essence(results) == essence(run("m2m_100", "fixed")[0])
    assert max(counts) > 1


@pytest.mark.parametrize("name", ["fixed", "adaptive"])
def test_a_patient_call_settles_several(name, counts, monkeypatch):
    """Who has stopped, and who comes, ends it later."""
    expected, *_ = run("m2m_100", name, Crowd())
    num_calls = len(counts)
    monkeypatch.setattr(Crowd, "patience", 1.0)
    assert essence(run("m2m_100", name, Crowd())[0]) == essence(expected)
    assert len(counts) < 2 * num_calls


SCHEDULES = [pybeam.Fifo(3), pybeam.Fifo(3, epsilon=0.4), pybeam.Batch(3), pybeam.Fifo(tokens=6)]


@pytest.fixture
def began(monkeypatch) -> list[tuple[int, list[int]]]:
    """At which steps which sources have begun."""
    found, add = [], LiveSources.add

    def noted(live, sources, num_rows, step):
        found.append((step, [source.index for source in sources]))
        add(live, sources, num_rows, step)

    monkeypatch.setattr(LiveSources, "add", noted)
    return found


def check_beginnings(arrivals, schedule, counts, began, monkeypatch) -> None:
    """Nobody begins at a later step than if the schedule were asked at each."""
    many, *_ = run("m2m_100", "fixed", arrivals(), schedule)
    assert max(counts) > 1 and len(began) > 1
    monkeypatch.setattr(Engine, "_most_steps", lambda engine: 1)
    num_begun = len(began)
    alone, *_ = run("m2m_100", "fixed", arrivals(), schedule)
    assert essence(many) == essence(alone) and began[:num_begun] == began[num_begun:]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_who_waits_ends_them_only_where_there_is_room(schedule, counts, began, monkeypatch):
    check_beginnings(Crowd, schedule, counts, began, monkeypatch)


@pytest.mark.parametrize(
    ("arrivals", "schedule"),
    [(Crowd, pybeam.Fifo(tokens=6)), (lambda: IterableArrivals(SOURCES), pybeam.Fifo(3))],
)
def test_who_waits_takes_the_place_of_one_that_fails(
    arrivals, schedule, counts, began, monkeypatch
):
    """In a later refill, when memory has grown and a call could do many steps."""
    encode = TransformerSession.encode

    def failing(session, sources, *given):
        if SOURCES[3] in [source.tolist() for source in sources]:
            raise ValueError("this one is broken")
        encode(session, sources, *given)

    monkeypatch.setattr(TransformerSession, "encode", failing)
    monkeypatch.setattr("pybeam.engine.intake.ENCODE_AHEAD", 1)
    check_beginnings(arrivals, schedule, counts, began, monkeypatch)
    assert 3 not in {index for _, indices in began for index in indices}


def test_who_waits_does_not_end_them_before_memory_is_given_back(counts, began):
    workspace = Workspace(model_of("m2m_100"), ALGORITHMS["fixed"], backends.load("native"))

    class Peak(Crowd):
        """One request comes when all others have left, and leaves too much memory behind."""

        may_get_more = True

        def next(self, may_wait):
            return super().next(may_wait) if may_wait else None

        def enter(self, phase, indices):
            workspace.is_too_large = True

    results = list(CheckedEngine(workspace, pybeam.Fifo(3), Stats()).stream(Peak()))
    assert len(results) == len(began) == len(SOURCES)
    assert max(counts) > 1


def test_a_service_goes_on_while_others_wait(counts):
    requests = SOURCES[:4]
    decoder = pybeam.Decoder(model_of("m2m_100"), ALGORITHMS["fixed"], pybeam.Fifo(1))
    with pybeam.Service(decoder) as service:
        counts.clear()
        with service._groups["default"].queue.changed:
            futures = [service.submit(request) for request in requests]
        steps = [future.result(20).result.steps for future in futures]
    assert 2 * len(counts) <= sum(counts) == sum(steps)


def test_who_has_no_word_for_news_is_asked_after_every_step(counts):
    arrivals = IterableArrivals(SOURCES)
    arrivals.has_news = None
    run("m2m_100", "fixed", arrivals)
    assert counts == []


def test_a_subclass_is_asked_between_steps(counts, monkeypatch):
    """Whoever overrides what stands between two steps, or the step, hears of each."""

    class Watched(IterableArrivals):
        def between_steps(self, load):
            return {}

    class Own(TransformerSession):
        def step(self, rows):
            return super().step(rows)

    results, *_ = run("m2m_100", "fixed", Watched(SOURCES))
    kind = type(model_of("m2m_100"))
    monkeypatch.setattr(kind, "session", lambda model, backend: Own(model, backend))
    own, *_ = run("m2m_100", "fixed")
    assert counts == []
    assert essence(results) == essence(own)


def test_a_call_that_raises_has_done_no_step(counts, monkeypatch):
    """Whoever does the step by itself hears why, or succeeds."""
    expected, *_ = run("m2m_100", "fixed")
    counts.clear()
    call = TransformerSession.call

    def broken(session, rows):
        program, (out, *others) = call(session, rows)
        return program, (out[:, :1], *others)

    monkeypatch.setattr(TransformerSession, "call", broken)
    results, *_ = run("m2m_100", "fixed")
    assert essence(results) == essence(expected) and set(counts) == {0}


def test_steps_that_raise_in_a_commit_fail_for_all(monkeypatch):
    def raising(*given):
        raise MemoryError("no page")

    monkeypatch.setattr(Step, "go_on", raising)
    results, _, workspace = run("m2m_100", "fixed")
    assert [str(result.error) for result in results] == ["no page"] * len(SOURCES)
    tree = workspace.state.tree
    assert int(tree.num_free_pages) == tree.num_total_pages


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda given: [*given], "expected StepColumns, but got list"),
        (lambda given: given._replace(node=given.node[None]), "`node` must have 1 dimension"),
        (lambda given: given._replace(line=given.line[1:]), "`line` must be"),
        (
            lambda given: given._replace(rules=given.rules._replace(normalise=3)),
            "`normalise` must be 0 to 2",
        ),
    ],
)
def test_wrong_columns_of_steps(wrong, message, monkeypatch):
    columns = ProcessorChain.step_columns
    monkeypatch.setattr(ProcessorChain, "step_columns", lambda *given: wrong(columns(*given)))
    results, *_ = run("m2m_100", "items")
    assert all(message in str(result.error) for result in results)


def test_layers_must_be_a_program():
    state = Workspace(model_of("m2m_100"), ALGORITHMS["fixed"], backends.load("native")).state
    state.reserve(2, 4, 8)
    program = state.program
    with pytest.raises(TypeError, match="expected a LayerProgram, but got object"):
        program.run(object(), (), None, None, None, 1, None, None, 0.0)
