"""Graphs live as long as the buffers that they hold, and one that fails breaks nothing else."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from pybeam.engine.cuda_graphs import MAX_FAILURES, CudaCapture, StepGraphs


def captured_once(capture, key=1, buffers=(), slot=None):
    """Graphs in which a step was seen and captured, with that key."""
    graphs = StepGraphs(capture)
    slot = torch.zeros(2, dtype=torch.int32) if slot is None else slot
    assert graphs.get(key, buffers, product, slot) is None
    with graphs.watched(key):
        product(slot)
    return graphs, graphs.get(key, buffers, product, slot)


def tried(graphs, key, step, times=1):
    """Whether there is a graph of this step, which runs without one before each try."""
    slot = torch.zeros(2, dtype=torch.int32)
    for _ in range(times):
        assert graphs.get(key, (), step, slot) is None
        with graphs.watched(key):
            product(slot)
        found = graphs.get(key, (), step, slot)
    return found is not None


def product(slot):
    x = torch.ones(2, 2)
    return (x @ x)[0]


@pytest.mark.parametrize("order", [1, -1], ids=["behind", "before"])
def test_an_array_at_another_address_drops_graphs(graph_memory, order):
    array = torch.zeros(8)
    first, second = [array[:4], array[4:]][::order]
    slot = torch.zeros(2, dtype=torch.int32)
    graphs, captured = captured_once(CudaCapture(torch.device("cpu")), buffers=[first])
    assert graphs.get(1, [first], product, slot) is captured
    assert graphs.get(1, [second], product, slot) is None


def test_an_array_of_another_shape_at_the_same_address_drops_graphs(graph_memory):
    array = torch.zeros(4, 6)
    slot = torch.zeros(2, dtype=torch.int32)
    graphs, captured = captured_once(CudaCapture(torch.device("cpu")), buffers=[array])
    captured()
    assert graphs.get(1, [array], product, slot) is captured
    assert graphs.get(1, [array.view(6, 4)], product, slot) is None
    with pytest.raises(AssertionError, match="reset"):
        captured()
    # the old report still lives in its pool
    with graphs.watched(1):
        product(slot)
    graphs.get(1, [array.view(6, 4)], product, slot)()
    del captured
    another = captured_once(CudaCapture(torch.device("cpu")))  # empties the cache
    assert all(graph_memory.users.values()) and another


@pytest.mark.parametrize("graph_memory", ["2.11", "2.12", "2.13"], indirect=True)
@pytest.mark.parametrize("is_seen", [True, False], ids=["raises", "breaks"])
def test_a_capture_that_fails_says_why_and_breaks_nothing_else(graph_memory, is_seen):
    graphs, captured = captured_once(CudaCapture(torch.device("cpu")))
    slot = torch.zeros(2, dtype=torch.int32)
    assert captured is not None

    def fails(slot):
        if is_seen:
            return slot.sum().item()
        # as work of a stream that is never joined
        graph_memory.capturing.is_broken = True
        return product(slot)

    # another thread may have broken the first captures
    assert not tried(graphs, 2, fails, MAX_FAILURES - 1)
    assert graphs.get(1, (), product, slot) is captured
    cause = "operation not permitted" if is_seen else "operation failed"
    with pytest.warns(
        RuntimeWarning, match=rf"graphs: in cuda_graphs.py:\d+: AcceleratorError: {cause}"
    ):
        assert not tried(graphs, 2, fails)
    # and captures no other step
    assert graphs.get(1, (), product, slot) is graphs.get(1, (), product, slot) is None
    assert graph_memory.capturing is None and graph_memory.current not in graph_memory._streams
    torch.cuda.empty_cache()
    assert captured_once(CudaCapture(torch.device("cpu")))[1] is not None


@pytest.mark.parametrize("graph_memory", ["2.11", "2.12", "2.13"], indirect=True)
def test_a_capture_that_something_else_breaks_is_tried_again(graph_memory):
    """Be it the first capture of all, or one beside others."""
    graphs, broken = StepGraphs(CudaCapture(torch.device("cpu"))), []

    def breaks(slot):
        if len(broken) < num_broken:
            broken.append(slot)
            graph_memory.capturing.is_broken = True
        return product(slot)

    for key in range(2):
        for num_broken in (MAX_FAILURES - 1, 1):
            broken.clear()
            assert not tried(graphs, (key, num_broken), breaks, num_broken)
            assert tried(graphs, (key, num_broken), breaks)
    assert len(graphs) == 4
    graphs.get((0, 1), (), breaks, torch.zeros(2, dtype=torch.int32))()
    graphs._clear()
    torch.cuda.empty_cache()
    # before 2.13 a pool has users for good if a capture in it was broken
    assert sum(graph_memory.users.values()) == (0 if graph_memory.knows_broken_ends else 6)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_a_capture_that_fails_leaves_no_memory_to_the_garbage_collector(graph_memory, error):
    made = []

    def fails(slot):
        x = product(slot)
        made.append(weakref.ref(x))
        raise error("within")

    gc.disable()
    try:
        assert not tried(StepGraphs(CudaCapture(torch.device("cpu"))), 1, fails)
        assert made[0]() is None
    finally:
        gc.enable()


def test_the_error_that_came_first_is_told_first(graph_memory):
    def fails(slot):
        try:
            raise KeyError("first")
        finally:
            # as in code that ends what it has begun
            raise ValueError("second")

    graphs = StepGraphs(CudaCapture(torch.device("cpu")))
    assert not tried(graphs, 1, fails, MAX_FAILURES - 1)
    told = r"KeyError: 'first'; then in cuda_graphs.py:\d+: ValueError: second$"
    with pytest.warns(RuntimeWarning, match=f"without graphs: {told}"):
        assert not tried(graphs, 1, fails)


@pytest.mark.parametrize("is_on", [True, False])
def test_no_garbage_is_collected_while_a_step_is_captured(graph_memory, is_on):
    """A graph may be garbage, as that of a service is: its engines refer to each other."""
    graphs, capture = StepGraphs(CudaCapture(torch.device("cpu"))), weakref.WeakSet()

    def allocates(slot):
        # as many as a collection is worth
        kept = [[] for _ in range(10 * gc.get_threshold()[0])]
        assert capture, "a graph has died"
        return product(slot) if kept else slot

    slot = torch.zeros(2, dtype=torch.int32)
    with graphs.watched(1):
        product(slot)
    try:
        if not is_on:
            gc.disable()
        cycle = [CudaCapture(torch.device("cpu"))]
        capture.add(cycle[0])
        assert captured_once(cycle[0])[1] is not None
        cycle.append(cycle)
        del cycle
        assert graphs.get(1, (), allocates, slot) is not None
        assert gc.isenabled() == is_on
        gc.collect()
        assert not capture
    finally:
        gc.enable()


def test_a_step_that_waits_for_its_first_constants_is_captured(graph_memory):
    """It makes them again where its arrays are others."""
    graphs, slot = StepGraphs(CudaCapture(torch.device("cpu"))), torch.zeros(2, dtype=torch.int32)
    for buffers in ([torch.zeros(4)], [torch.zeros(5)]):
        for reads in (True, False):
            assert graphs.get(1, buffers, product, slot) is None
            with graphs.watched(1):
                slot.tolist() if reads else product(slot)
        assert graphs.get(1, buffers, product, slot) is not None


def test_every_decoder_captures_on_a_stream_of_its_own(graph_memory):
    captures = [CudaCapture(torch.device("cpu")) for _ in range(33)]
    for capture in captures[:32]:
        assert captured_once(capture)[1] is not None
    assert len({capture._stream for capture in captures[:32]}) == 32
    with pytest.warns(RuntimeWarning, match="all 32 streams of cpu belong to decoders"):
        assert not tried(StepGraphs(captures[32]), 1, product, MAX_FAILURES)
    del captures[7], capture
    assert captured_once(captures[-1])[1] is not None
