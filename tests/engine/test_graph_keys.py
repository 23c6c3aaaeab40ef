"""A decoder that has seen one stream replays nearly every step of the next one."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import torch

import pybeam
from pybeam.backends import load, pinned
from pybeam.backends.arrays import NULL_SLOT
from pybeam.engine.cuda_graphs import StepGraphs, _Numbers
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from pybeam.models.transformer.model import TransformerSession
from pybeam.triton_kernels import counters
from support.device_loop import REQUESTS, run, torch_beams
from support.graph_memory import Recomputed
from support.laws import ALGORITHMS, schedules
from support.paths import DATA, MODEL, ROOT
from support.tiny_models import save_tiny_model
from support.verse_lengths import verse_model, verses


@pytest.fixture
def replayed(monkeypatch):
    """Decodes streams of requests one after another. Returns the share of the last one's steps in replays."""

    def decode(model, algorithm, schedule, *streams, backend) -> float:
        workspace = Workspace(model, algorithm, backend)
        replays = Recomputed()
        workspace.graphs = StepGraphs(replays)
        for requests in streams:
            replays.num_replays = 0
            results, stats = run(workspace, schedule, requests, reads_late=True)
            assert not any(result.error for result in results)
        return replays.num_replays / stats.steps

    return decode


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("m2m_100")
    save_tiny_model(directory, "m2m_100")
    return load_model(directory)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("schedule", list(schedules(4))[::3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_was_seen_twice_is_replayed(transformer, replayed, name, schedule):
    """A step is captured when it comes for the second time."""
    algorithm = ALGORITHMS[name]
    own = schedules(algorithm.max_rows)[schedule]
    share = replayed(transformer, algorithm, own, *[REQUESTS] * 3, backend=torch_beams())
    assert share == 1


class Noted(pybeam.Fifo):
    """A plan of one's own, with a state that a replay would not change."""

    asked: ClassVar[list[int]] = []

    def plan(self, depth, num_rows, waited, limit=None):
        self.asked.append(len(depth))
        return num_rows > 0


def test_steps_with_a_plan_of_ones_own_are_not_captured(transformer, replayed):
    """It is asked in each step, and for sources alone."""
    streams = [REQUESTS[:5]] * 3
    share = replayed(transformer, ALGORITHMS["greedy"], Noted(5), *streams, backend=torch_beams())
    assert share == 0
    assert Noted.asked.count(5) > 9 and max(Noted.asked) == 5


def test_graphs_are_dropped_when_there_is_no_room_for_another():
    """And not before."""
    graphs, slot = StepGraphs(Recomputed(), max_graphs=2), torch.zeros(2, dtype=torch.int32)
    numbers = []
    for key in (1, 2, 1, 3):
        with graphs.watched(key):
            pass
        graphs.get(key, (), lambda slot: slot, slot)
        numbers.append(len(graphs))
    assert numbers == [1, 2, 2, 1]


def test_a_capture_without_memory_drops_the_graphs_there_are():
    """They keep memory, so that it may be captured when it comes again. Nobody goes on without graphs."""
    capture, memory = Recomputed(), {}

    def captured(step, slot):
        if memory["is full"]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Recomputed.__call__(capture, step, slot)

    captured.renew = capture.renew
    graphs, step = StepGraphs(captured), lambda slot: slot
    found = []
    for key, memory["is full"] in ((1, False), (2, True), (2, False)):
        slot = torch.zeros(key, dtype=torch.int32)
        with graphs.watched(key):
            pass
        graphs.get(key, (), step, slot)
        found.append((len(graphs), len(graphs._numbers)))
    assert found == [(1, 1), (0, 0), (1, 1)]


def test_graphs_follow_the_most_sources(transformer):
    workspace = Workspace(transformer, ALGORITHMS["greedy"], torch_beams())
    assert [workspace.padded_sources(n) for n in (1, 5, 2, 9, 7, 1)] == [1, 6, 6, 12, 12, 12]


def test_there_is_room_for_all_from_the_first_on(transformer):
    """Arrays grow at the first admission, and not again when the second source comes."""
    workspace = Workspace(transformer, ALGORITHMS["fixed"], torch_beams())
    workspace.graphs = StepGraphs(Recomputed())
    run(workspace, pybeam.Fifo(6), REQUESTS[:1], reads_late=True)
    before = workspace.state.buffers()
    run(workspace, pybeam.Fifo(6), [REQUESTS[0]] * 6, reads_late=True)
    after = workspace.state.buffers()
    assert all(one is other for one, other in zip(before, after, strict=True))


def test_pages_that_came_after_a_report_was_sent_are_free(transformer):
    """Else the pool would double once more, and every captured step with it would be lost."""
    workspace = Workspace(transformer, ALGORITHMS["greedy"], torch_beams())
    slots = workspace.take_slots(1)
    workspace.state.reserve(2, 1, 8)
    workspace.room.claim(3)
    sent, free = workspace.room.claimed_pages, int(workspace.tree.num_free_pages)
    workspace.room.claim(3)
    num_pages = workspace.tree.num_total_pages
    assert num_pages == 6
    workspace.room.read_report(free, sent)
    workspace.close(slots, 2)
    workspace.room.read_report(free, sent)
    # three that were free and were not claimed again, and two that came back
    workspace.room.claim(5)
    assert workspace.tree.num_total_pages == num_pages
    workspace.room.claim(1)
    assert workspace.tree.num_total_pages > num_pages


def test_slots_stay_on_the_device_until_sources_come_or_go(transformer, monkeypatch):
    """Steps of one set of sources upload nothing, whatever graph they are."""
    uploads, copies = [], []
    packed, give = pinned.packed, _Numbers.give
    monkeypatch.setattr(pinned, "packed", lambda *given: uploads.append(1) or packed(*given))
    copy = torch.Tensor.copy_

    def counted(slots, slot):
        monkeypatch.setattr(
            torch.Tensor, "copy_", lambda *own, **how: copies.append(1) or copy(*own)
        )
        give(slots, slot)
        monkeypatch.setattr(torch.Tensor, "copy_", copy)

    monkeypatch.setattr(_Numbers, "give", counted)
    workspace = Workspace(transformer, ALGORITHMS["fixed"], torch_beams())
    workspace.graphs = StepGraphs(Recomputed())
    for _ in range(2):
        uploads.clear(), copies.clear()
        _, stats = run(workspace, pybeam.Batch(4), REQUESTS, reads_late=True)
    changes = 3 * 4
    assert 0 < len(uploads) <= changes < stats.steps
    assert 0 < len(copies) <= changes


def test_counters_are_lent_to_the_launches_of_a_graph():
    device, held = torch.device("cpu"), torch.zeros(8, dtype=torch.int32)
    with counters.lent(held):
        assert counters.counters(8, device) is held
        assert counters.counters(9, device).numel() >= 9
        with counters.lent(held[:2]):
            assert counters.counters(3, device) is not held
        assert counters.counters(1, device) is held
    assert counters.counters(1, device) is not held


SEARCHES = {
    "greedy": pybeam.greedy(),
    "fixed_beam": pybeam.fixed_beam(5),
    "variable_beam": pybeam.variable_beam(5, threshold=1.5, max_candidates=5),
    "optimal_beam": pybeam.optimal_beam(5, length_reward=0.5),
    "stochastic_beam": pybeam.stochastic_beam(5, seed=1),
    "jacobi": pybeam.jacobi(),
    "hybrid_jacobi": pybeam.hybrid_jacobi(8, 32),
}
N = 16
SCHEDULES = {
    "batch": pybeam.Batch(N),
    "streaming": pybeam.Streaming(N),
    "fifo": pybeam.Fifo(N),
    "fifo, late refill": pybeam.Fifo(N, 1 / 6),
    "fifo, budget": pybeam.Fifo(N, row_budget=2 * N),
}


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", SEARCHES)
def test_other_verses_need_hardly_any_graph_of_their_own(
    tmp_path, monkeypatch, replayed, name, schedule
):
    model, own = verse_model(tmp_path, monkeypatch), SCHEDULES[schedule]
    if own.row_budget is not None:
        # a beam moves as a whole
        most = SEARCHES[name].max_rows
        own = dataclasses.replace(own, row_budget=max(own.row_budget, most))
    share = replayed(model, SEARCHES[name], own, *verses(), backend=load("native"))
    # that stream has 71 steps of 128 to 2,048 rows: three of its sizes are new, and each is new once
    assert share >= (0.95 if (name, schedule) == ("jacobi", "fifo") else 0.98)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "every", "most"), [(5, 1, 1.06), (50, 1, 1.06), (5, 4, 1.2)])
def test_few_rows_are_padding(tmp_path, monkeypatch, width, every, most):
    """Most of those are of beams that are done, until the host has read so and others have their slots."""
    model, replays = verse_model(tmp_path, monkeypatch), Recomputed()
    step, slots = TransformerSession.step, []

    def noted(session, rows):
        slots.append(rows.row_slot.long())
        return step(session, rows)

    monkeypatch.setattr(TransformerSession, "step", noted)
    workspace = Workspace(model, pybeam.fixed_beam(width), load("native"))
    workspace.graphs = StepGraphs(replays)
    for requests in verses():
        slots.clear()
        replays.num_replays = 0
        late = dict(reads_late=True, reports_every=(every, 0))
        run(workspace, pybeam.Fifo(64), 4 * requests, **late)
    assert replays.num_replays >= 0.98 * len(slots)
    assert sum(map(len, slots)) <= most * sum(int((slot != NULL_SLOT).sum()) for slot in slots)
    # [steps, slots]; the slot of a beam that is done is empty for longer than a step
    moves = torch.stack([torch.zeros(128).index_fill(0, slot, 1) for slot in slots])[
        :, NULL_SLOT + 1 :
    ]
    assert not (moves[:-2] * (1 - moves[1:-1]) * moves[2:]).any(), "beams wait for room"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "schedule"), [("fixed_beam", "fifo"), ("variable_beam", "streaming")]
)
def test_nor_do_they_with_a_real_translator(monkeypatch, replayed, name, schedule):
    monkeypatch.syspath_prepend(ROOT)
    benchmarks = pytest.importorskip("benchmarks.corpus")
    if not DATA.exists():
        pytest.skip(f"{DATA} is not there")
    sources = benchmarks.load(DATA).sources
    streams = sources[:240:2], sources[1:160:2]
    model = load_model(MODEL, device="cpu")
    own = SCHEDULES[schedule]
    share = replayed(model, SEARCHES[name], own, *streams, backend=load("native"))
    assert share >= 0.98
