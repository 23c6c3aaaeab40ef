"""`select` in CUDA graphs and on several streams at once, without a wait of the host."""

from __future__ import annotations

import pytest
import torch

from pybeam import backends, ops
from pybeam.contracts import SelectOptions
from support.asserts import assert_same_survivors
from support.select_cases import oracle, random_case

NAMES = ("native", "triton")
CAPACITY = 12


@pytest.fixture(params=NAMES)
def name(request, device) -> str:
    if device.type != "cuda":
        pytest.skip("needs --device cuda")
    if request.param not in backends.available():
        pytest.skip(f"backend {request.param!r} is not available")
    is_built = torch._C._dispatch_has_kernel_for_dispatch_key("pybeam::select", "CUDA")
    if request.param == "native" and not is_built:
        pytest.skip("the extension was built without CUDA")
    return request.param


def case_of(seed: int, device, vocab_size: int = 40000) -> tuple[dict, tuple]:
    """A case on the CPU for the oracle, and its arguments on the device."""
    case = random_case(seed, vocab_size, (5, 5, 1), (5, 5, 5), dtype=torch.bfloat16)
    names = ("logits", "score", "offset", "width")
    return case, tuple(case[name].to(device) for name in names)


def launch(name: str, arguments: tuple, eos_id: int) -> tuple[torch.Tensor, ...]:
    options = SelectOptions(CAPACITY, (eos_id,), int(ops.Finishing.REFILL))
    return backends.load(name).select(*arguments, options)


def assert_right(results: tuple[torch.Tensor, ...], case: dict) -> None:
    expected = oracle(case, finishing=ops.Finishing.REFILL, capacity=CAPACITY)
    assert_same_survivors(ops.Survivors(*(field.cpu() for field in results)), expected)


def test_a_graph_is_replayed_between_other_launches(name, device):
    case, arguments = case_of(0, device)
    launch(name, arguments, case["eos_id"])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = launch(name, arguments, case["eos_id"])
        second = launch(name, arguments, case["eos_id"])
    for seed in range(1, 5):
        case, other = case_of(seed, device)
        for old, new in zip(arguments, other, strict=True):
            old.copy_(new)
        graph.replay()
        eager = launch(name, other, case["eos_id"])
        for results in (first, second, eager):
            assert_right(results, case)


def test_graphs_and_launches_on_several_streams_at_once(name, device):
    cases = [case_of(seed, device) for seed in range(4)]
    graphs, captured = [], []
    for case, arguments in cases:
        launch(name, arguments, case["eos_id"])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured.append(launch(name, arguments, case["eos_id"]))
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    launched: list[list[tuple[torch.Tensor, ...]]] = [[] for _ in cases]
    for _ in range(20):
        for stream, graph, (case, arguments), results in zip(
            streams, graphs, cases, launched, strict=True
        ):
            with torch.cuda.stream(stream):
                graph.replay()
                results.append(launch(name, arguments, case["eos_id"]))
    torch.cuda.synchronize()
    for (case, _), results, last in zip(cases, launched, captured, strict=True):
        assert_right(last, case)
        for one in results:
            for field, expected in zip(one, last, strict=True):
                assert torch.equal(field, expected)


def test_the_host_never_waits(name, device):
    case, arguments = case_of(7, device)
    launch(name, arguments, case["eos_id"])
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = launch(name, arguments, case["eos_id"])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_right(results, case)
