"""FlashInfer is called so that it computes what ours do. It needs a GPU, so torch stands in for it here."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("pytest_benchmark")
pytest.importorskip("pybeam.backends.native", exc_type=ImportError)

from benchmarks.kernels import bench_select
from benchmarks.kernels.bench_select import Select
from benchmarks.kernels.kernel import FLASHINFER, Case, Kernel, all_kernels, same


def rmsnorm(input: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return F.rms_norm(input, weight.shape, weight, eps)


def silu_and_mul(input: Tensor) -> Tensor:
    size = input.shape[-1] // 2
    return F.silu(input[:, :size]) * input[:, size:]


def apply_rope_with_cos_sin_cache(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor
) -> tuple[Tensor, Tensor]:
    assert positions.dtype == torch.int64 and key.shape[1] % head_size == 0
    cos, sin = cos_sin_cache[positions][:, None].chunk(2, -1)

    def turned(x: Tensor) -> Tensor:
        one, other = x.view(len(x), -1, head_size).chunk(2, -1)
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1).view(x.shape)

    return turned(query), turned(key)


def top_k(input: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return input.topk(k)


class BatchDecodeWithPagedKVCacheWrapper:
    """Requests of one query, and pages of the layout NHD."""

    def __init__(self, float_workspace_buffer: Tensor) -> None:
        assert float_workspace_buffer.dtype == torch.uint8

    def plan(self, indptr, indices, last_page_len, *sizes, q_data_type="float16") -> None:
        assert indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        self._planned = indptr.tolist(), indices.long(), last_page_len, sizes, q_data_type

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        indptr, indices, last, (num_heads, num_key_heads, size, page), dtype = self._planned
        assert q.dtype == dtype and q.shape[1:] == (num_heads, size) and page == 1
        assert all(pool.shape[1:] == (page, num_key_heads, size) for pool in paged_kv_cache)
        assert last.tolist() == [page] * len(q)
        rows = []
        for row, begin, end in zip(q, indptr[:-1], indptr[1:], strict=True):
            key, value = (
                pool[indices[begin:end]].flatten(0, 1).transpose(0, 1) for pool in paged_kv_cache
            )
            rows.append(F.scaled_dot_product_attention(row[:, None], key, value)[:, 0])
        return torch.stack(rows)


PLACES = {
    "": (top_k, BatchDecodeWithPagedKVCacheWrapper),
    ".norm": (rmsnorm,),
    ".activation": (silu_and_mul,),
    ".rope": (apply_rope_with_cos_sin_cache,),
}


@pytest.fixture
def flashinfer(monkeypatch):
    for place, functions in PLACES.items():
        module = ModuleType(FLASHINFER + place)
        vars(module).update({each.__name__: each for each in functions})
        monkeypatch.setitem(sys.modules, FLASHINFER + place, module)


def others(kernel: type[Kernel], case: Case) -> list[str]:
    """FlashInfer's systems among those that are beside ours on a GPU."""
    return [name for name in kernel.peers("cuda", case) if name.startswith(FLASHINFER)]


COMPARED = [
    kernel
    for kernel in all_kernels()
    if kernel.cases.cuda and any(others(kernel, case) for case in kernel.cases.cuda)
]


@pytest.mark.parametrize("own", COMPARED, ids=lambda own: own.op)
def test_its_result_is_that_of_the_reference(own, flashinfer):
    torch.manual_seed(1)
    tiny = next(case for case in own.cases.tiny if others(own, Case("bfloat16", case.size)))
    given = own(torch.device("cpu"), tiny.dtype, *tiny.size)
    name, *_ = others(own, Case("bfloat16", tiny.size))
    result = given.calls(name)[0]()
    if own is Select:  # it has logits, and neither scores nor log-probs
        [logits] = given.copies[0]
        return same(result[0], logits.topk(result[0].shape[1]).values)
    expected = given.result("reference")
    if own.op != "turn_heads":
        result = [result]
    # heads lie one behind another in a row
    found = [one.view_as(other) for one, other in zip(result, expected, strict=True)]
    same(found, expected, given.tolerance)


@pytest.mark.parametrize("columns", [0, 10_000], ids=["FlashInfer", "torch"])
def test_beams_are_selected_as_in_tensorrt_llm(columns, flashinfer, monkeypatch):
    """Rows of few columns are left to torch."""
    monkeypatch.setattr(bench_select, "RADIX_COLUMNS", columns)
    calls = []
    monkeypatch.setattr(
        sys.modules[FLASHINFER], "top_k", lambda *given: calls.append(given) or top_k(*given)
    )
    given = Select(torch.device("cpu"), "float32", 2, 3, 50, 5, None)
    score, parent, token = given.calls(bench_select.IN_TENSORRT_LLM)[0]()
    best = given.in_torch(*given.copies[0])
    same(score, best.values[:, :3])
    same(50 * parent + token, best.indices[:, :3])
    assert len(calls) == (columns == 0)


def test_attention_gates_norms_rotations_and_selection_are_compared():
    ops = {kernel.op.partition(",")[0] for kernel in COMPARED}
    assert ops == {"tree_attention", "gated", "rms_norm", "turn_heads", "select"}


def test_it_is_left_out_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, FLASHINFER, None)
    assert Select.absence(f"{FLASHINFER} top_k") == "flashinfer is not installed"
    assert Select.absence("torch") is None
