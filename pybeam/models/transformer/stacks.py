"""Read the layers of a stack out of a checkpoint, by the names and the facts of its family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pybeam.backends.packing import Quantised
from pybeam.models.linear import GatedLinear, Linear, PackedLinear, PlainLinear
from pybeam.models.transformer.facts import ExpertFacts, StackFacts
from pybeam.models.transformer.layers import Cross, Layer
from pybeam.models.transformer.norms import Norm, Norms
from pybeam.models.weights import WeightReader

if TYPE_CHECKING:
    from pybeam.models.transformer.experts import Experts


class StackReader:
    """Reads layers and norms of one stack."""

    def __init__(self, reader: WeightReader, facts: StackFacts) -> None:
        self._reader, self._facts = reader, facts

    def layers(self) -> tuple[Layer, ...]:
        """Read all layers."""
        return tuple(self._layer(i) for i in range(self._facts.num_layers))

    def norm(self, name: str, size: int | None = None) -> Norm:
        """Read a norm [size] of this name behind the prefix; None: of states."""
        reader, facts = self._reader, self._facts.norm
        name, size = self._facts.prefix + name, size or self._facts.hidden_size
        dtype = reader.dtype
        if facts.is_wide and dtype != torch.float64:
            dtype = torch.float32
        weight = reader.taken(f"{name}.weight", dtype, size)
        if facts.offset:
            weight = weight + facts.offset
        bias = reader.taken(f"{name}.bias", dtype, size) if facts.has_bias else None
        return Norm(weight, bias, facts.epsilon, is_packed=reader.is_packed)

    def cross_key_value(self) -> Linear:
        """Read the keys and values of encoder states, of all layers at once."""
        facts = self._facts
        names = [
            facts.names.layer.format(i) + name
            for i in range(facts.num_layers)
            for name in facts.names.cross_key_value
        ]
        num = 2 // len(facts.names.cross_key_value)  # of keys and values in a matrix
        rows = [num * facts.qkv_rows[1]] * len(names)
        has_bias = [facts.has_key_bias, facts.has_qkv_bias][num - 1 :] * facts.num_layers
        return self._linear(names, rows, facts.hidden_size, has_bias)

    def _layer(self, i: int) -> Layer:
        facts, names = self._facts, self._facts.names
        prefix, d, attended = names.layer.format(i), facts.hidden_size, facts.qkv_rows[0]
        has_bias, experts = facts.has_qkv_bias, facts.experts

        def head_norm(name: str | None) -> Norm | None:
            return None if name is None else self.norm(prefix + name, facts.head_size)

        def linear(name: str, rows: int, columns: int, has_bias: bool) -> Linear:
            return self._linear([prefix + name], [rows], columns, [has_bias])

        # matrices stand in memory in the order in which a step reads them
        qkv = self._qkv(prefix)
        self_out = self._self_out(prefix)
        inner: Linear | GatedLinear | Callable[[Tensor], Tensor]
        inner_out: Linear | Experts
        if experts is not None and i in experts.layers:
            inner, inner_out = self._experts(prefix, experts)
        else:
            inner = self._inner(prefix)
            inner_out = linear(names.inner_out, d, facts.inner_size, facts.has_inner_bias)

        return Layer(
            self_norms=self._norms(prefix, names.self_norm, names.after_self_norm),
            qkv=qkv,
            query_norm=head_norm(names.query_norm),
            key_norm=head_norm(names.key_norm),
            self_out=self_out,
            inner_norms=self._norms(prefix, names.inner_norm, names.after_inner_norm),
            inner=inner,
            inner_out=inner_out,
            cross=Cross(
                norms=self._norms(prefix, names.cross_norm),
                query=linear(names.cross_query, attended, d, has_bias),
                out=linear(names.cross_out, d, attended, facts.has_out_bias),
            )
            if facts.has_cross
            else None,
            window=facts.windows[i] if facts.windows else None,
            rotary=facts.rotary[i] if facts.rotary else None,
        )

    def _norms(self, prefix: str, name: str, after: str | None = None) -> Norms:
        norm = self.norm(prefix + name)
        added = None if after is None else self.norm(prefix + after)
        return Norms(norm, added) if self._facts.is_pre_norm else Norms(behind=norm)

    def _qkv(self, prefix: str) -> Linear:
        facts = self._facts
        names, rows = [prefix + name for name in facts.names.qkv], facts.qkv_rows
        has_bias = [facts.has_qkv_bias, facts.has_key_bias, facts.has_qkv_bias]
        if len(names) == 1:
            rows, has_bias = [sum(rows)], [facts.has_qkv_bias]
        order = None
        if facts.is_grouped:
            order = _grouped(facts.num_heads, facts.num_key_heads, facts.head_size)
        return self._linear(names, rows, facts.hidden_size, has_bias, order=order)

    def _self_out(self, prefix: str) -> Linear:
        facts = self._facts
        name, columns = prefix + facts.names.self_out, facts.qkv_rows[0]
        return self._linear([name], [facts.hidden_size], columns, [facts.has_out_bias])

    def _inner(self, prefix: str) -> Linear | GatedLinear:
        facts = self._facts
        names = [prefix + name for name in facts.names.inner]
        num = (1 + facts.is_gated) // len(names)
        rows, has_bias = [num * facts.inner_size] * len(names), [facts.has_inner_bias] * len(names)
        if not facts.is_gated:
            return self._linear(names, rows, facts.hidden_size, has_bias, facts.activation)
        return GatedLinear(self._linear(names, rows, facts.hidden_size, has_bias), facts.activation)

    def _experts(
        self, prefix: str, experts: ExpertFacts
    ) -> tuple[Callable[[Tensor], Tensor], Experts]:
        from pybeam.models.transformer.experts import Expert, Experts, unchanged

        d, names, size = self._facts.hidden_size, experts.names, experts.inner_size
        # never in 8 bits: rows would go to other experts
        weight = self._reader.vector(
            f"{self._facts.prefix}{prefix}{names.router}.weight", experts.num, d
        )
        router = (PackedLinear if self._reader.is_packed else PlainLinear)(weight, None)

        def expert(e: int) -> Expert:
            own = prefix + names.expert.format(e)
            inner = [own + name for name in names.inner]
            both = self._linear(inner, [size, size], d, [False, False])
            out = self._linear([own + names.inner_out], [d], size, [False])
            return Expert(GatedLinear(both, self._facts.activation), out)

        parts = [expert(e) for e in range(experts.num)]
        return unchanged, Experts(router, parts, experts.num_chosen, experts.is_normalised)

    def _linear(
        self,
        names: Sequence[str],
        rows: Sequence[int],
        columns: int,
        has_bias: Sequence[bool],
        activation: str | None = None,
        order: Tensor | None = None,
    ) -> Linear:
        """Join several linear layers into one: their outputs one after another, or in an order [rows]."""
        reader, names = self._reader, [self._facts.prefix + name for name in names]
        weight = reader.matrix(
            [f"{name}.weight" for name in names],
            rows,
            columns,
            is_transposed=self._facts.is_transposed,
            is_layer=True,
        )
        bias = None
        if any(has_bias):
            bias = torch.cat(
                [
                    reader.vector(f"{name}.bias", num)
                    if own
                    else torch.zeros(num, dtype=reader.dtype, device=reader.device)
                    for name, num, own in zip(names, rows, has_bias, strict=True)
                ]
            )
        if order is not None:
            order = order.to(reader.device)
            bias = None if bias is None else bias[order]
            weight = _reordered(weight, order)
        return reader.linear(weight, bias, activation)


def _reordered(weight: Tensor | Quantised, order: Tensor) -> Tensor | Quantised:
    if isinstance(weight, Quantised):
        return Quantised(weight.q[order], weight.scale[order])
    return weight[order]


def _grouped(num_heads: int, num_key_heads: int, head_size: int) -> Tensor:
    """Return where the rows of queries, keys and values stand that are grouped by key head."""
    group = num_heads // num_key_heads
    row = torch.arange((num_heads + 2 * num_key_heads) * head_size)
    row = row.view(num_key_heads, group + 2, head_size)
    return torch.cat((row[:, :group].flatten(), row[:, group].flatten(), row[:, -1].flatten()))
