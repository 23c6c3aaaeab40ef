"""Checks at the door: shapes, dtypes, devices and index ranges, before any kernel sees them.

An error names the argument, what it must be, what it is, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.contracts import MAX_WIDTH, Cells, Distances, Paths

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WORD_BITS = 64


def _fail(name: str, expected: object, actual: object, remedy: str = "") -> None:
    raise ValueError(f"`{name}` must be {expected}, but is {actual}{remedy and '; ' + remedy}")


def _shape(
    name: str, value: Tensor, dims: str, shape: Sequence[int | None], remedy: str = ""
) -> None:
    """Check that `value` has this shape; None stands for any size."""
    actual = list(value.shape)
    if len(actual) != len(shape) or any(
        want is not None and want != got for want, got in zip(shape, actual, strict=True)
    ):
        sizes = ", ".join("*" if want is None else str(want) for want in shape)
        _fail(name, f"{dims} = [{sizes}]", actual, remedy)


def _dtype(name: str, value: Tensor, *dtypes: torch.dtype) -> None:
    if value.dtype not in dtypes:
        _fail(name, " or ".join(str(dtype) for dtype in dtypes), value.dtype, "convert it")


def _device(name: str, value: Tensor, device: torch.device) -> None:
    if value.device != device:
        _fail(name, f"on {device}", f"on {value.device}", f"move it with `.to('{device}')`")


def _ints(
    name: str, value: Tensor, dims: str, shape: Sequence[int | None], device, remedy: str = ""
) -> None:
    _dtype(name, value, torch.int32)
    _device(name, value, device)
    _shape(name, value, dims, shape, remedy)


def _range(name: str, value: Tensor, low: int, high: int, remedy: str = "") -> None:
    """Check that every element is at least `low` and below `high`."""
    if value.numel() == 0:
        return
    least, most = (int(bound) for bound in value.aminmax())
    if least < low or most >= high:
        _fail(name, f"from {low} to {high - 1}", least if least < low else most, remedy)


def _distinct(name: str, value: Tensor) -> None:
    ordered = value.sort().values
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if again.numel():
        _fail(name, "free of repeats", f"{int(again[0])} more than once")


def _unit_stride(name: str, value: Tensor) -> None:
    if value.shape[-1] > 1 and value.stride(-1) != 1:
        _fail(name, "of last stride 1", value.stride(-1), "call `.contiguous()`")


def _contiguous_rows(name: str, value: Tensor) -> None:
    if value.dim() == 0:
        _fail(name, "a tensor of rows", "a scalar")
    if value.shape[0] and not value[0].is_contiguous():
        strides = list(value.stride())
        _fail(
            name,
            "contiguous in all but the first dimension",
            f"of strides {strides}",
            "call `.contiguous()`",
        )


def _separate_rows(name: str, value: Tensor) -> None:
    """Check that rows that are written to lie apart in memory."""
    _contiguous_rows(name, value)
    if value.shape[0] > 1 and value.stride(0) < value[0].numel():
        _fail(name, "of rows apart in memory", f"of strides {list(value.stride())}", "copy it")


def _offsets(name: str, value: Tensor, end: int, of: str) -> None:
    """Check that `value` starts at 0, never falls and ends at `end`."""
    first, last = int(value[0]), int(value[-1])
    if first != 0:
        _fail(name, "0 at the start", first)
    if last != end:
        _fail(name, f"{end} at the end, the number of {of}", last)
    if bool((value[1:] < value[:-1]).any()):
        _fail(name, "without a fall", value.tolist())


def select(
    logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, is_ended: Tensor | None
) -> int:
    """Check the arguments that every call of `ops.select` has; returns the number of beams."""
    device = logits.device
    _dtype("logits", logits, *FLOATS)
    _shape("logits", logits, "[R, V]", (None, None))
    _unit_stride("logits", logits)
    # tests use float64 logits, and then scores may be float64 too
    exact = (torch.float64,) if logits.dtype == torch.float64 else ()
    _dtype("score", score, torch.float32, *exact)
    _device("score", score, device)
    _shape("score", score, "[B]", (None,))
    _ints("width", width, "[S]", (None,), device)
    num_beams, num_entries = width.numel(), score.numel()
    _ints("offset", offset, "[S + 1]", (num_beams + 1,), device, "one more than `width` has")
    _offsets("offset", offset, num_entries, "entries in `score`")
    _range("width", width, 0, MAX_WIDTH + 1)
    num_rows = num_entries
    if is_ended is not None:
        _dtype("is_ended", is_ended, torch.bool)
        _device("is_ended", is_ended, device)
        _shape("is_ended", is_ended, "[B]", (num_entries,), "one for every entry of `score`")
        num_rows -= int(is_ended.sum())
    _shape(
        "logits", logits, "[R, V]", (num_rows, None), "one row for every entry that has not ended"
    )
    if num_rows and logits.shape[1] == 0:
        _fail("logits", "at least one column wide", list(logits.shape))
    if bool(score.isnan().any()):
        _fail("score", "free of NaN", "NaN somewhere")
    return num_beams


def per_beam(
    name: str, value: Tensor | None, num_beams: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Check an optional argument [S]."""
    if value is None:
        return
    _dtype(name, value, dtype)
    _device(name, value, device)
    _shape(name, value, "[S]", (num_beams,), "one for every entry of `width`")
    if dtype.is_floating_point and bool(value.isnan().any()):
        _fail(name, "free of NaN", "NaN somewhere")
    # `forced` below 0 is no token, but there is no such number of candidates
    if dtype == torch.int32 and name != "forced":
        _range(name, value, 0, 2**31)


def tree_attention(query: Tensor, key: Tensor, value: Tensor, cells: Cells) -> None:
    """Check the tensors of `ops.tree_attention`."""
    offset, slot, cell, num_cells, mask, entry, paths = cells
    device = query.device
    _dtype("query", query, *FLOATS)
    _shape("query", query, "[R, H, D]", (None, None, None))
    num_rows, num_heads, size = query.shape
    _shape("key", key, "[cells, G, D]", (None, None, size), "D is that of `query`")
    _shape("value", value, "[cells, G, D]", tuple(key.shape), "as `key`")
    is_rounded = query.dtype == torch.float32 and key.dtype == torch.bfloat16
    for name, tensor in (("key", key), ("value", value)):
        _dtype(name, tensor, torch.bfloat16 if is_rounded else query.dtype)
        _device(name, tensor, device)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _unit_stride(name, tensor)
    if key.shape[1] == 0 or num_heads % key.shape[1]:
        _fail("query", f"of a multiple of the {key.shape[1]} heads of `key`", f"of {num_heads}")
    _ints("slot", slot, "[A]", (None,), device)
    _ints("offset", offset, "[A + 1]", (slot.numel() + 1,), device, "one more than `slot` has")
    _offsets("offset", offset, num_rows, "rows of `query`")
    _ints("cell", cell, "[S, U]", (None, None), device)
    num_slots, max_cells = cell.shape
    _ints("num_cells", num_cells, "[S]", (num_slots,), device, "one for every row of `cell`")
    _range("slot", slot, 0, num_slots, "`cell` lists the cells of every slot")
    used = num_cells[slot.long()]
    _range("num_cells", used, 0, max_cells + 1, "`cell` has that many columns")
    is_used = torch.arange(max_cells, device=device) < used[:, None]
    _range("cell", cell[slot.long()][is_used], 0, key.shape[0], "`key` has that many cells")
    if paths is not None:
        _paths(paths, cells, num_rows)
    elif (mask is None) != (entry is None):
        missing = "mask" if mask is None else "entry"
        raise ValueError(f"`mask` and `entry` go together, but `{missing}` is None")
    elif mask is not None and entry is not None:
        _dtype("mask", mask, torch.int64)
        _device("mask", mask, device)
        _shape("mask", mask, "[S, U, W]", (num_slots, max_cells, None), "as `cell`")
        _ints("entry", entry, "[R]", (num_rows,), device, "one for every row of `query`")
        _range("entry", entry, 0, WORD_BITS * mask.shape[2], "`mask` has that many bits")


def distances(given: Distances, query: Tensor, key: Tensor) -> None:
    """Check what `ops.tree_attention` takes beside its tensors."""
    num_rows, num_heads, _ = query.shape
    position, cell_position, bias = given.position, given.cell_position, given.bias
    if (position is None) != (cell_position is None):
        missing = "position" if position is None else "cell_position"
        raise ValueError(f"`position` and `cell_position` go together, but `{missing}` is None")
    if position is None and (bias is not None or given.window is not None):
        raise ValueError("`bias` and `window` need `position` and `cell_position`, which are None")
    if position is not None and cell_position is not None:
        _ints("position", position, "[R]", (num_rows,), query.device, "as `query`")
        _ints("cell_position", cell_position, "[cells]", (len(key),), query.device, "as `key`")
    if bias is not None:
        _dtype("bias", bias, torch.float32)
        _device("bias", bias, query.device)
        _shape("bias", bias, "[H, L]", (num_heads, None), "H is that of `query`")
        if bias.shape[1] == 0:
            _fail("bias", "at least one column wide", list(bias.shape))
    if given.window is not None and given.window < 1:
        _fail("window", "at least 1", given.window, "give None for no window")
    if given.soft_cap is not None and not 0 < given.soft_cap < float("inf"):
        _fail("soft_cap", "positive and finite", given.soft_cap, "give None for no cap")


def _paths(paths: Paths, cells: Cells, num_rows: int) -> None:
    """Check the paths of `ops.tree_attention`, whose other tensors have been checked."""
    _, slot, _, num_cells, mask, entry, _ = cells
    place, length, num_shared = paths
    if mask is not None:
        raise ValueError("`mask` and `paths` exclude each other, but both are given; leave one out")
    if entry is None:
        raise ValueError("`paths` and `entry` go together, but `entry` is None")
    device, num_slots, index = slot.device, num_cells.numel(), slot.long()
    _ints("place", place, "[S, K, T]", (num_slots, None, None), device, "a line for every slot")
    _ints("entry", entry, "[R]", (num_rows,), device, "one for every row of `query`")
    _range("entry", entry, 0, place.shape[1], "`place` has that many lines")
    _ints("length", length, "[S]", (num_slots,), device, "one for every slot")
    _range("length", length[index], 0, place.shape[2] + 1, "`place` has that many columns")
    num_own = num_cells[index]
    if num_shared is not None:
        _ints("num_shared", num_shared, "[S]", (num_slots,), device, "one for every slot")
        num_own = num_own - num_shared[index]
        is_inside = (num_shared[index] >= 0) & (num_own >= 0)
        if not bool(is_inside.all()):
            wrong = int(num_shared[index][~is_inside][0])
            _fail("num_shared", "from 0 to `num_cells`", wrong)
    column = torch.arange(place.shape[2], device=device)
    is_used = column < length[index, None]  # [A, T]
    used = place[index].masked_fill(~is_used[:, None], -1)  # [A, K, T]
    is_outside = (used < -1) | (used >= num_own[:, None, None])
    if bool(is_outside.any()):
        wrong = int(used[is_outside][0])
        _fail("place", "-1 or the place of a cell behind the shared ones", wrong)


def gather_rows(tensors: list[Tensor], source: Tensor, target: Tensor) -> None:
    """Check the arguments of `ops.gather_rows`."""
    device = tensors[0].device if tensors else source.device
    _ints("source", source, "[n]", (None,), device)
    _ints("target", target, "[n]", (source.numel(),), device, "as `source`")
    for i, tensor in enumerate(tensors):
        name = f"tensors[{i}]"
        _separate_rows(name, tensor)
        _device(name, tensor, device)
        if tensor.shape[0] != tensors[0].shape[0]:
            _fail(name, f"of {tensors[0].shape[0]} rows, as tensors[0]", f"of {tensor.shape[0]}")
    if tensors:
        _range("source", source, -1, tensors[0].shape[0], "the tensors have that many rows")
        _range("target", target, -1, tensors[0].shape[0], "the tensors have that many rows")
    _distinct("target", target[target >= 0])


def scatter_rows(pool: Tensor, index: Tensor, rows: Tensor) -> None:
    """Check the arguments of `ops.scatter_rows`."""
    _separate_rows("pool", pool)
    _contiguous_rows("rows", rows)
    _ints("index", index, "[n]", (None,), pool.device)
    _dtype("rows", rows, pool.dtype)
    _device("rows", rows, pool.device)
    _shape("rows", rows, "[n, ...]", (index.numel(), *pool.shape[1:]), "rows like those of `pool`")
    _range("index", index, -1, pool.shape[0], "`pool` has that many rows")
    _distinct("index", index[index >= 0])


def backtrace(token: Tensor, parent: Tensor, slot: Tensor, node: Tensor) -> None:
    """Check the arguments of `ops.backtrace`."""
    device = token.device
    _ints("token", token, "[S, N]", (None, None), device)
    _ints("parent", parent, "[S, N]", tuple(token.shape), device, "as `token`")
    _ints("slot", slot, "[n]", (None,), device)
    _ints("node", node, "[n]", (slot.numel(),), device, "as `slot`")
    _range("slot", slot, 0, token.shape[0], "`token` has that many slots")
    _range("node", node, -1, token.shape[1], "`token` has that many nodes")
    used = parent[slot.long()]  # [n, N]
    node_number = torch.arange(token.shape[1], dtype=torch.int32, device=device)
    is_used = node_number <= node[:, None]
    if bool(((used >= node_number) & is_used).any()) or bool(((used < -1) & is_used).any()):
        _fail("parent", "-1 or smaller than the node it belongs to", "not for some node")
