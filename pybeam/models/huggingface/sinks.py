"""Attention with sinks (gpt-oss, Flint) in plain torch, which tree attention does not know."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.cells import Cells
from pybeam.models.plain_cells import is_used, of_sources, with_masks
from pybeam.models.rows import Rows


class SinkAttention:
    """Attention of the R rows of a step over the cells of A sources, with a sink per head.

    Cells are gathered once per source into a table [A, U], rows stand in a table [A, K] by their entries.

    Args:
        rows: the rows.
        cells: what they attend over, with masks or paths.
        window: how many positions a row sees; None: all.
        positions: [R] int32, of each row, and [cells] int32, of the token in each cell; None without windows.
    """

    def __init__(
        self,
        rows: Rows,
        cells: Cells,
        window: int | None = None,
        positions: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        cells = with_masks(of_sources(cells, cells.cell.shape[1]))
        assert cells.mask is not None
        self._cell, device = cells.cell, cells.cell.device
        self._shape = rows.slot.numel(), rows.tree.row_cell.shape[1]
        number = torch.arange(rows.token.numel(), dtype=torch.int32, device=device)
        source = torch.searchsorted(rows.offset, number, right=True) - 1
        # [R], in A * K lines of the table; that of a row of padding is behind it
        self._place = source * self._shape[1] + rows.entry
        bit = torch.arange(self._shape[1], device=device)
        is_seen = ((cells.mask.index_select(2, bit >> 6) >> (bit & 63)) & 1).bool()  # [A, U, K]
        is_seen &= is_used(cells)[..., None]
        if window is not None:
            assert positions is not None
            of_row, of_cell = self._table(positions[0]), positions[1][cells.cell.long()]
            is_seen &= of_row[:, None] - of_cell[..., None] < window
        self._is_seen = is_seen.transpose(1, 2)  # [A, K, U]
        self._unseen: dict[torch.dtype, Tensor] = {}

    def __call__(
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
        table = self._table(query).transpose(1, 2)  # [A, H, K, D]
        # a sink is one more cell, whose key and value are zero
        unseen = self._added(query.dtype)
        sink = sink.to(query.dtype)[None, :, None, None]
        shape = unseen.shape[0], sink.shape[1], unseen.shape[2]
        added = torch.cat((unseen.expand(*shape, -1), sink.expand(*shape, 1)), 3)
        key, value = (self._gathered(pool) for pool in (key, value))
        if softcap is None:
            is_grouped = key.shape[1] != query.shape[1]
            out = F.scaled_dot_product_attention(
                table, key, value, added, scale=scale, enable_gqa=is_grouped
            )
        else:
            out = _capped_attention(table, key, value, added, scale, softcap)
        out = out.transpose(1, 2).flatten(0, 1)  # [A * K, H, D]
        return out.index_select(0, self._place.clamp(max=out.shape[0] - 1))

    def _table(self, values: Tensor) -> Tensor:
        """Put values [R, ...] of rows into a table [A, K, ...], zero where there is no row."""
        num_sources, width = self._shape
        # one more line, for rows of padding
        table = values.new_zeros((num_sources + 1) * width, *values.shape[1:])
        table = table.index_copy_(0, self._place, values)[: num_sources * width]
        return table.view(num_sources, width, *values.shape[1:])

    def _added(self, dtype: torch.dtype) -> Tensor:
        """Return [A, 1, K, U]: the dtype's lowest number where a row does not see a cell, and 0 elsewhere.

        It is not -inf, because unused entries see nothing and would become NaN.
        """
        if dtype not in self._unseen:
            zero = torch.zeros((), dtype=dtype, device=self._is_seen.device)
            self._unseen[dtype] = torch.where(self._is_seen, zero, torch.finfo(dtype).min)[:, None]
        return self._unseen[dtype]

    def _gathered(self, pool: Tensor) -> Tensor:
        """Gather the cells as [A, G, U + 1, D], the last one zero."""
        cell = F.pad(self._cell, (0, 1))
        found = pool.index_select(0, cell.flatten()).view(*cell.shape, *pool.shape[1:])
        found[:, -1] = 0
        return found.transpose(1, 2)


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, added: Tensor, scale: float, softcap: float
) -> Tensor:
    """Attend with a soft cap: [A, H, K, D] from queries [A, H, K, D], keys and values [A, G, U, D]."""
    grouped = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)  # [A, G, H / G * K, D]
    scores = grouped @ key.transpose(2, 3) * (scale / softcap)
    scores = softcap * scores.tanh().reshape(*query.shape[:3], -1) + added  # [A, H, K, U]
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return (weights.reshape(*grouped.shape[:3], -1) @ value).reshape(query.shape)
