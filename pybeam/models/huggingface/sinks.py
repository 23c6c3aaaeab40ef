"""Attention with sinks in plain torch, which tree attention does not know."""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.cells import Cells
from pybeam.models.distances import Distances, by_entry
from pybeam.models.rows import Rows


class GatheredCells:
    """The cells of A sources, gathered once per source, for attention in plain torch.

    Cells stand in a table [A, U], rows in a table [A, K] by their entries.

    Args:
        rows: the rows of a step.
        cells: what they attend over, with masks or paths and a line per source (`Cells.of_sources`), padded.
    """

    def __init__(self, rows: Rows, cells: Cells) -> None:
        cells = cells.with_masks()
        assert cells.mask is not None
        self._rows, self._cells, self._mask = rows, cells, cells.mask
        self._unseen: dict[torch.dtype, Tensor] = {}

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None,
        sink: Tensor,
    ) -> Tensor:
        """Compute ``softmax(cap(scale * query . key)) value`` of every row, over the cells it sees.

        ``cap(x) = softcap * tanh(x / softcap)``, or x without a soft cap.

        Args:
            query: [R, H, D].
            key, value: [cells, G, D], pools.
            scale: multiplies the products of queries and keys.
            softcap: the bound of scores; None: there is none.
            sink: [H], one more score per head, which has no value (gpt-oss).

        Returns:
            [R, H, D].
        """
        table, place = by_entry(self._rows, query)  # [A, K, H, D]
        table = table.transpose(1, 2)
        # a sink is one more cell, whose key and value are zero
        sink = sink.to(query.dtype)[None, :, None, None]
        unseen = self.unseen(query.dtype)
        shape = unseen.shape[0], sink.shape[1], unseen.shape[2]
        added = torch.cat((unseen.expand(*shape, -1), sink.expand(*shape, 1)), 3)
        key, value = (self._gathered(pool, added.shape[3]) for pool in (key, value))
        if softcap is None:
            is_grouped = key.shape[1] != query.shape[1]
            out = F.scaled_dot_product_attention(
                table, key, value, added, scale=scale, enable_gqa=is_grouped
            )
        else:
            out = _capped_attention(table, key, value, added, scale, softcap)
        out = out.transpose(1, 2).flatten(0, 1)  # [A * K, H, D]
        return out.index_select(0, place.clamp(max=out.shape[0] - 1))

    def unseen(self, dtype: torch.dtype) -> Tensor:
        """Return [A, 1, K, U]: the dtype's lowest number where a row does not see a cell, and 0 elsewhere.

        It is not -inf, because unused entries see nothing and would become NaN.
        """
        if dtype not in self._unseen:
            zero = torch.zeros((), dtype=dtype, device=self.is_seen.device)
            self._unseen[dtype] = torch.where(self.is_seen, zero, torch.finfo(dtype).min)[:, None]
        return self._unseen[dtype]

    @cached_property
    def is_seen(self) -> Tensor:
        """[A, K, U] bool, which cells a row sees."""
        mask, width = self._mask, self._rows.tree.row_cell.shape[1]
        bit = torch.arange(width, device=mask.device)
        is_seen = (mask.index_select(2, bit >> 6) >> (bit & 63)) & 1  # [A, U, K]
        return (is_seen.bool() & self._cells.is_used[..., None]).transpose(1, 2)

    def _gathered(self, pool: Tensor, num: int) -> Tensor:
        """Gather the cells as [A, G, num, D], with zeros behind them."""
        num_cells = self._cells.cell.shape[1]
        cell = F.pad(self._cells.cell, (0, num - num_cells))
        found = pool.index_select(0, cell.flatten()).view(*cell.shape, *pool.shape[1:])
        found[:, num_cells:] = 0
        return found.transpose(1, 2)


def within(window: int, cells: Cells, rows: Rows, position: Tensor, cell_position: Tensor) -> Cells:
    """Return these cells, a line per source, with masks: rows see only their last `window` positions.

    Args:
        window, cells, rows: of one step.
        position: [R] int32, of each row.
        cell_position: [cells] int32, of the token in each cell of the pool.
    """
    distances = Distances(cell_position[cells.cell.long()], by_entry(rows, position)[0])
    return distances.within(cells, window)


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, added: Tensor, scale: float, softcap: float
) -> Tensor:
    """Attend with a soft cap: [A, H, K, D] from queries [A, H, K, D], keys and values [A, G, U, D]."""
    grouped = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)  # [A, G, H / G * K, D]
    scores = grouped @ key.transpose(2, 3) * (scale / softcap)
    scores = softcap * scores.tanh().reshape(*query.shape[:3], -1) + added  # [A, H, K, U]
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return (weights.reshape(*grouped.shape[:3], -1) @ value).reshape(query.shape)
