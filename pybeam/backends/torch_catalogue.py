"""The operators of catalogues in plain torch, on any device and in float64 too."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.backends.arrays import CatalogueArrays
from pybeam.contracts import ColumnRules, Normalise

INF = float("inf")
INT = torch.int32
WORD = 32


def edges_of(arrays: CatalogueArrays, node: Tensor) -> tuple[Tensor, Tensor]:
    """The edges of nodes [...], int64: the first one and the one behind the last. -1 has none."""
    last = arrays.first.numel() - 1
    begin = arrays.first[node.long().clamp(0, last)].long()
    end = arrays.first[(node.long() + 1).clamp(0, last)].long()
    return begin, torch.where(node < 0, begin, end)


def catalogue_child(arrays: CatalogueArrays, node: Tensor, token: Tensor) -> Tensor:
    low, high = edges_of(arrays, node)
    end, last = high, arrays.token.numel() - 1
    # the first edge whose token is not smaller lies from `low` to `high`
    for _ in range(int(last + 1).bit_length()):
        middle = (low + high) // 2
        is_smaller = arrays.token[middle.clamp(max=last)] < token
        is_open = low < high
        low = torch.where(is_open & is_smaller, middle + 1, low)
        high = torch.where(is_open & ~is_smaller, middle, high)
    is_there = (low < end) & (arrays.token[low.clamp(max=last)] == token)
    return torch.where(is_there, low + 1, -1).to(INT)


def catalogue_columns(
    arrays: CatalogueArrays, logits: Tensor, node: Tensor, line: Tensor, rules: ColumnRules
) -> Tensor:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    begin, end = edges_of(arrays, node)
    # as many as any node needs, because torch sums in an order that depends on the number
    num = rules.num_columns or max(1, int(arrays.first.diff().max()))
    edge = begin[:, None] + torch.arange(num, device=node.device)  # [R, M]
    is_edge = edge < end[:, None]
    edge = torch.where(is_edge, edge, 0)
    words = arrays.words.shape[1] // 2
    is_alive = is_edge & _bit(arrays.words, line[:, None], 0, edge + 1)
    is_end = (node >= 0) & _bit(arrays.words, line, words, node.clamp(min=0).long())
    value = logits.gather(1, arrays.token[edge].long()).to(dtype).masked_fill(~is_alive, -INF)
    eos = logits[:, rules.eos_id].to(dtype).masked_fill(~is_end, -INF)[:, None]
    out = torch.cat((eos, value) if rules.eos_first else (value, eos), 1)  # [R, M + 1]
    if rules.normalise == Normalise.NOTHING:
        return out
    return _less(out, logits.to(dtype) if rules.normalise == Normalise.VOCABULARY else out)


def _bit(words: Tensor, line: Tensor, offset: int, node: Tensor) -> Tensor:
    return (words[line.long(), offset + node // WORD] >> (node % WORD) & 1).bool()


def _less(out: Tensor, logits: Tensor) -> Tensor:
    """out - log(sum(exp(logits))), row by row; -inf stays."""
    peak = logits.amax(1, keepdim=True)
    # a row that allows nothing stays -inf
    floor = torch.where(peak == -INF, 0.0, peak)
    log_sum = (logits - floor).exp().sum(1, keepdim=True).log()
    is_sound = (logits.isnan() | (logits == INF)).any(1, keepdim=True).logical_not()
    value = torch.where(is_sound, (out - floor) - log_sum, float("nan"))
    return torch.where(is_sound & (out == -INF), out, value)


def catalogue_token(
    arrays: CatalogueArrays, node: Tensor, column: Tensor, rules: ColumnRules, width: int
) -> Tensor:
    """The tokens [...] of these columns of the rows at these nodes, of `width` columns in all."""
    eos_column = 0 if rules.eos_first else width - 1
    begin = arrays.first[node.long().clamp(0, arrays.first.numel() - 1)].long()
    edge = begin + column - int(rules.eos_first)
    token = arrays.token[edge.clamp(0, arrays.token.numel() - 1)]
    return torch.where(column == eos_column, rules.eos_id, token)
