"""Slots have room for what their sources may need, and not for the widest beam of the longest outputs."""

from __future__ import annotations

import gc

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine import room
from pybeam.engine import workspace as workspaces
from pybeam.engine.engine import Engine, StreamOptions
from pybeam.engine.source import Source
from pybeam.engine.stats import Stats
from pybeam.engine.streaming import Stream
from pybeam.engine.workspace import Workspace
from support.device_loop import assert_alike, run, torch_beams
from support.graph_memory import Replays
from support.laws import ALGORITHMS, decoded, essence
from support.search_models import random_model
from support.tiny_models import save_tiny_model

ENDLESS = random_model(1, 9, eos_bonus=-99.0)

CPU = torch.device("cpu")


def workspace(algorithm) -> Workspace:
    return Workspace(ENDLESS, algorithm, backends.load("reference"))


@pytest.mark.slow
@pytest.mark.parametrize("build", [pybeam.fixed_beam, pybeam.variable_beam])
def test_short_outputs_reserve_no_room_for_long_ones(build):
    algorithm = build(100, max_length=4)
    work = workspace(algorithm)
    decoded(ENDLESS, algorithm, pybeam.Fifo(2), "reference", [[1]] * 5, work)
    assert work.tree.length == 5  # the start token counts
    assert work.tree.token.shape[1] == 100 * 5
    assert work.state.width_capacity == 100


@pytest.mark.slow
def test_wide_and_long_at_once():
    """Wide beams have short outputs and narrow ones long ones, so neither needs room for both."""
    algorithm = pybeam.fixed_beam(2, max_length=90)
    requests = [[1], pybeam.Request([1], width=80, max_length=3), [1]]
    work = workspace(algorithm)
    results = decoded(ENDLESS, algorithm, pybeam.Fifo(3), "reference", requests, work)
    assert work.tree.length == 91 and work.state.width_capacity == 80
    assert work.tree.token.shape[1] == max(80 * 4, 2 * 91)
    alone = decoded(ENDLESS, algorithm, pybeam.Batch(1), "reference", requests)
    assert essence(results) == essence(alone)


@pytest.mark.slow
def test_room_that_is_there_may_be_too_small_for_a_newcomer():
    """Width and length have been reserved before, but never for the same source."""
    algorithm = pybeam.fixed_beam(2, max_length=40)
    wide, both = (pybeam.Request([1], width=50, max_length=n) for n in (2, 12))
    work = workspace(algorithm)
    for request in ([1], wide, both):
        (result,) = decoded(ENDLESS, algorithm, pybeam.Batch(1), "reference", [request], work)
        (fresh,) = decoded(ENDLESS, algorithm, pybeam.Batch(1), "reference", [request])
        assert essence([result]) == essence([fresh])
    assert work.tree.token.shape[1] == 50 * 13


def test_widths_by_step_reserve_the_widest():
    algorithm = pybeam.fixed_beam([3, 60, 5], max_length=4)
    work = workspace(algorithm)
    decoded(ENDLESS, algorithm, pybeam.Fifo(2), "reference", [[1]], work)
    assert work.state.width_capacity == 60


def test_a_wide_beam_under_a_row_budget():
    """The budget counts the widest step, whichever that is."""
    algorithm = pybeam.fixed_beam([2, 9, 3], max_length=4)
    results = decoded(
        ENDLESS, algorithm, pybeam.Fifo(4, row_budget=8), "reference", [[1]], workspace(algorithm)
    )
    assert "`row_budget` must be at least the width 9, but is 8" in str(results[0].error)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ["fixed", "variable", "adaptive"])
def test_arrays_that_begin_small_grow_before_they_are_full(name, monkeypatch):
    algorithm = ALGORITHMS[name]
    expected = decoded(ENDLESS, algorithm, pybeam.Fifo(2), "reference", [[1]] * 3)
    assert max(result.steps for result in expected) > 8
    monkeypatch.setattr(room, "FIRST_LENGTH", 1)
    work = workspace(algorithm)
    found = decoded(ENDLESS, algorithm, pybeam.Fifo(2), "reference", [[1]] * 3, work)
    assert essence(found) == essence(expected)


def test_a_peak_is_looked_for_after_so_many_sources_or_a_few_more():
    """Sources come several at a time."""
    work = workspace(pybeam.greedy(max_length=4))
    for num, is_over in ((workspaces.LOOK_AFTER - 1, False), (2, True), (1, False)):
        work.room.needed.length = 7
        assert len(work.take_slots(num)) == num
        assert (work.room.needed.length == 0) == is_over


def test_cells_that_could_not_be_had_are_asked_for_again(monkeypatch):
    algorithm = pybeam.greedy(max_length=4)
    work, asked = workspace(algorithm), []
    decoded(ENDLESS, algorithm, pybeam.Fifo(2), "reference", [[1]], work)

    def refuse(*sizes):
        raise RuntimeError("no memory")

    monkeypatch.setattr(work.session, "reserve", refuse)
    with pytest.raises(RuntimeError, match="no memory"):
        work.room.claim(50)
    # all of them are free, so no page is added
    work.room.read_report(work.tree.num_total_pages, work.room.claimed_pages)
    monkeypatch.setattr(work.session, "reserve", lambda *sizes: asked.append(sizes))
    for _ in range(2):
        work.room.claim(1)
    assert asked == [(work.slots.num, work.state.width_capacity, work.tree.num_cells)]


def test_a_limit_of_memory_counts_the_pages_of_sources_of_any_length(monkeypatch):
    """The bytes of a source beside its pages follow from its length."""
    session = type(ENDLESS.session(backends.load("reference")))
    monkeypatch.setattr(session, "max_bytes", lambda self, cells, length: 5 * cells + 7 * length)
    work = Workspace(
        ENDLESS, pybeam.greedy(max_length=4), backends.load("reference"), memory_limit=1000
    )
    assert work.tree.max_pages == 1000 // (5 * 16)
    assert work.room.free_bytes(300) == 700
    source = Source(
        index=0,
        request=pybeam.Request([1]),
        content=None,
        algorithm=pybeam.fixed_beam(3, max_length=4),
        source_length=2,
    )
    # three rows of five tokens, which may begin within a page
    assert work.room.max_bytes(source) == 5 * (2 * 16) + 7 * 2


def test_a_slot_without_a_beam_is_released_where_the_session_has_room_for_it(monkeypatch):
    """There may have been no memory."""
    work, released = workspace(pybeam.greedy(max_length=4)), []
    monkeypatch.setattr(work.session, "release", released.append)
    (slot,) = work.take_slots(1)
    work.free_slot(slot)
    assert not released and work.slots.free == [slot]
    work.room._reserve_session()
    assert work.take_slots(1) == [slot]
    work.free_slot(slot)
    assert released == [[slot]] and work.slots.free == [slot]


BACKEND = backends.load("native" if "native" in backends.available() else "reference")
PEAKS = {
    "wide": dict(width=100, max_length=3),
    "long": dict(max_length=100),
    "long prefix": dict(prefix=[3] * 100),
}


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", PEAKS)
@pytest.mark.parametrize("model", [ENDLESS, "m2m_100"], ids=["function", "transformer"])
def test_memory_is_given_back_after_a_peak(name, model, late, monkeypatch, tmp_path):
    """The first request is the peak. Results are the same, whenever the memory begins anew."""
    if model == "m2m_100":
        save_tiny_model(tmp_path, model, max_position_embeddings=120)
        model = pybeam.load_model(tmp_path)
    monkeypatch.setattr(workspaces, "LOOK_AFTER", 8)
    algorithm = pybeam.fixed_beam(3, max_length=4, n_best=2)
    requests = [
        pybeam.Request([5, 6], source_id=i, **PEAKS[name] if not i else {}) for i in range(180)
    ]
    sizes, found = {}, {}
    for kept in (0, 1 << 40):
        monkeypatch.setattr(workspaces, "KEPT_BYTES", kept)
        work = Workspace(model, algorithm, BACKEND)
        running = Engine(work, pybeam.Fifo(4), Stats(), StreamOptions(reads_late=late))
        found[kept] = sorted(Stream(running.run(requests), CPU), key=lambda result: result.index)
        sizes[kept] = sum(buffer.nbytes for buffer in work.buffers())
    assert not any(result.error for result in found[0])
    assert essence(found[0]) == essence(found[1 << 40])
    assert 1.5 * sizes[0] < sizes[1 << 40]


@pytest.mark.slow
@pytest.mark.parametrize("graph_memory", ["2.11"], indirect=True)
def test_captured_steps_go_with_the_memory_that_is_given_back(graph_memory, monkeypatch, tmp_path):
    """Steps are captured anew in the new memory, and no graph of the old one is replayed."""
    save_tiny_model(tmp_path, "m2m_100", max_position_embeddings=120)
    model = pybeam.load_model(tmp_path, device="cpu")
    monkeypatch.setattr(workspaces, "LOOK_AFTER", 8)
    monkeypatch.setattr(workspaces, "KEPT_BYTES", 0)
    captures: list[Replays] = []
    works: list[Workspace] = []

    def capture(device) -> Replays:
        captures.append(Replays(works[0] if works else None))
        return captures[-1]

    monkeypatch.setattr("pybeam.engine.cuda_graphs.CudaCapture", capture)
    algorithm = pybeam.fixed_beam(3, max_length=4, n_best=2)
    requests = [pybeam.Request([5, 6 + i % 9], **PEAKS["wide"] if not i else {}) for i in range(90)]
    works.append(Workspace(model, algorithm, torch_beams(), uses_graphs=True))
    captures[0].workspace = works[0]
    found, _ = run(works[0], pybeam.Fifo(4), requests, reads_late=True)
    expected, _ = run(Workspace(model, algorithm, torch_beams()), pybeam.Fifo(4), requests)
    assert_alike(found, expected)
    assert len(captures) > 1 and all(one.num_replays for one in captures)
    assert captures[0].num_captures and works[0].state.width_capacity == 3
    # nothing else holds the old graphs
    del captures[:-1]
    gc.collect()
    assert sum(graph_memory.users.values()) == len(works[0].graphs)


def test_a_decoder_keeps_what_it_needs_again_and_again(monkeypatch):
    monkeypatch.setattr(workspaces, "LOOK_AFTER", 4)
    monkeypatch.setattr(workspaces, "KEPT_BYTES", 0)
    decoder = pybeam.Decoder(ENDLESS, pybeam.fixed_beam(3, max_length=4))
    begun = []
    give_back = Workspace.give_back
    monkeypatch.setattr(Workspace, "give_back", lambda self: (begun.append(1), give_back(self)))
    for _ in range(3):
        decoder.decode([[1]] * 9)
    assert len(begun) == 1
    decoder.decode([pybeam.Request([1], width=200)])
    for _ in range(2):
        decoder.decode([[1]] * 9)
    assert len(begun) == 1
    decoder.decode([[1]])
    assert len(begun) == 2
    decoder.release()
    decoder.decode([[1]])
    assert len(begun) == 3
