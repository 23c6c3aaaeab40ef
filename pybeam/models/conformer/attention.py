"""Self-attention with relative positions, as Transformer-XL has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pybeam.models.conformer.parts import Kernels
from pybeam.models.conformer.places import Places
from pybeam.models.linear import Linear
from pybeam.models.transformer.layers import Part
from pybeam.models.transformer.norms import Norm


@dataclass(frozen=True, slots=True)
class RelativeAttention(Part):
    """``x + W_o softmax(s ((q_i + u) k_j + (q_i + v) p_(i - j))) v_j`` over all j of the same source.

    p_m is a projection of the sinusoid at distance m, and s is ``D ** -0.5``. u and v are learned. Queries,
    keys and values have norms of their own.

    See Dai et al. 2019 (arXiv:1901.02860), section 3.3, and Gulati et al. 2020 (arXiv:2005.08100).
    """

    query_norm: Norm
    key_norm: Norm
    value_norm: Norm
    query: Linear  # [d, d]
    key: Linear
    value: Linear
    position: Linear  # [d, d], of sinusoids
    out: Linear
    content_bias: Tensor  # u [H, D]
    position_bias: Tensor  # v [H, D]
    kernels: Kernels

    def __call__(
        self, x: Tensor, sinusoids: Tensor, places: Places, lengths: Sequence[int]
    ) -> Tensor:
        """Add the attention to x [n, d]; `sinusoids` are those of `distances` for the longest source."""
        num_heads, head_size = self.content_bias.shape
        shape = -1, num_heads, head_size
        query = self.query(self.query_norm(x)).view(shape)  # [n, H, D]
        key = self.key(self.key_norm(x)).view(shape)
        value = self.value(self.value_norm(x)).view(shape)
        position = self.position(sinusoids).view(shape)  # [2 T - 1, H, D]
        by_content, by_position = query + self.content_bias, query + self.position_bias
        if not self.kernels.is_packed:
            y = attend_in_tables(by_content, by_position, key, position, value, places)
            return self.out.add(x, y)
        longest = max(lengths)
        y = torch.empty_like(query)
        first = 0
        for length in lengths:
            rows = slice(first, first + length)
            own = slice(longest - length, longest + length - 1)
            for h in range(num_heads if length else 0):
                y[rows, h] = self._attend(
                    (by_content[rows, h], by_position[rows, h]),
                    (key[rows, h], position[own, h]),
                    value[rows, h],
                )
            first += length
        return self.out.add(x, y.flatten(1))

    def _attend(
        self, query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], value: Tensor
    ) -> Tensor:
        """Attend with one head over one source of T rows: [T, D].

        Args:
            query: [T, D] each, for contents and for distances.
            key: [T, D] of contents, and [2 T - 1, D] of the distances T - 1 to 1 - T.
            value: [T, D].
        """
        num = len(value)
        score = self.kernels.products(query[0], key[0])  # [T, T]
        by_distance = self.kernels.products(query[1], key[1])  # [T, 2 T - 1]
        # row i begins where the distance to key 0 is i, one column earlier than the row above it
        score += by_distance.as_strided((num, num), (2 * num - 2, 1), num - 1)
        score *= value.shape[1] ** -0.5
        return self.kernels.products(score.softmax(-1), value.t())


def attend_in_tables(
    by_content: Tensor,
    by_position: Tensor,
    key: Tensor,
    position: Tensor,
    value: Tensor,
    places: Places,
) -> Tensor:
    """Attend with all heads over all sources at once: [n, H D] for queries, keys and values [n, H, D].

    `position` [2 T - 1, H, D] are the keys of the distances T - 1 to 1 - T.
    """
    (num_sources, longest), num_heads = places.table.shape, key.shape[1]
    shape = num_heads * num_sources, longest, -1

    def in_tables(x: Tensor) -> Tensor:
        return x.index_select(0, places.table.view(-1)).transpose(0, 1)  # [H, A T, D]

    query, keys, values = (in_tables(x).reshape(shape) for x in (by_content, key, value))
    score = torch.bmm(query, keys.transpose(1, 2))  # [H A, T, T]
    by_distance = torch.bmm(in_tables(by_position), position.permute(1, 2, 0))  # [H, A T, 2 T - 1]
    # row i begins where the distance to key 0 is i, one column earlier than the row above it
    strides = longest * (2 * longest - 1), 2 * longest - 2, 1
    score += by_distance.as_strided(score.shape, strides, longest - 1)
    score *= key.shape[2] ** -0.5
    is_unseen = torch.arange(longest, device=key.device) >= places.length[:, None]  # [A, T]
    score.view(num_heads, num_sources, longest, longest).masked_fill_(
        is_unseen[:, None], -torch.inf
    )
    y = torch.bmm(score.softmax(-1), values).view(num_heads, -1, key.shape[2])
    return y.transpose(0, 1).flatten(1).index_select(0, places.cell)


def distances(table: Tensor, longest: int) -> Tensor:
    """Return the sinusoids [2 T - 1, d] of the distances T - 1 down to 1 - T.

    Args:
        table: [positions, d], sines and cosines of each position in turn.
        longest: T.
    """
    ahead = table[1:longest].clone()
    # sines are odd and cosines are even
    ahead[:, 0::2].neg_()
    return torch.cat((table[:longest].flip(0), ahead))
