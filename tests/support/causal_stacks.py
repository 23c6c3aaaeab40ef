"""Random decoder-only stacks, and what one call per operator computes with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.int4 import quantise_groups
from pybeam.backends.packing import INTEGERS, quantise
from pybeam.contracts import Cells, Distances
from pybeam.models.int4 import Int4Linear
from pybeam.models.linear import GatedLinear, PackedLinear
from pybeam.models.transformer.layers import Layer, Stack
from pybeam.models.transformer.norms import Norm, Norms

NUM_POSITIONS = 300


@dataclass(frozen=True)
class Table:
    """Cosines and sines of all positions."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class Shape:
    """The numbers of a stack, which stand for no model."""

    hidden: int = 24
    inner: int = 40
    heads: int = 4
    key_heads: int = 2
    head_size: int = 10
    vocab: int = 70
    layers: int = 2
    activation: str = "silu"
    has_head_norms: bool = True
    has_after_norms: bool = False
    has_bias: bool = False
    windows: tuple[int | None, ...] = (None,)
    soft_cap: float | None = None
    is_tied: bool = True
    is_rounded: bool = False  # bfloat16 holds the weights exactly, and float16 does not


SHAPES = {
    "qwen3": Shape(),
    "qwen2": Shape(has_head_norms=False, has_bias=True, head_size=6, is_tied=False),
    "llama": Shape(has_head_norms=False, key_heads=4, inner=64),
    "mistral": Shape(has_head_norms=False, key_heads=1, windows=(7,)),
    "gemma3": Shape(activation="gelu_new", has_after_norms=True, windows=(5, None, 20), layers=3),
    "gemma2": Shape(
        has_head_norms=False, has_after_norms=True, windows=(4, None), soft_cap=2.0, head_size=16
    ),
}


def stack_of(shape: Shape, dtype: torch.dtype, seed: int = 0) -> tuple[Stack, PackedLinear]:
    """Return a random stack with weights of this dtype, int8 and int4 included, and its output layer."""
    generator = torch.Generator().manual_seed(seed)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator)

    def linear(columns: int, depth: int, has_bias: bool = False) -> PackedLinear:
        weight = random(columns, depth) * depth**-0.5
        if shape.is_rounded:
            weight = weight.mul_(2.0**-16).bfloat16().float()
        bias = random(columns) if has_bias else None
        if dtype == torch.int4 and columns != shape.vocab:
            return Int4Linear(quantise_groups(weight), bias)
        packed = quantise(weight) if dtype in INTEGERS else weight.to(dtype)
        return PackedLinear(packed, bias, keeps_large=True)

    def norm(size: int, is_there: bool = True) -> Norm | None:
        return Norm(1 + 0.1 * random(size), None, 1e-6, is_packed=True) if is_there else None

    d, size = shape.hidden, shape.head_size
    layers = [
        Layer(
            self_norms=Norms(norm(d), norm(d, shape.has_after_norms)),
            qkv=linear((shape.heads + 2 * shape.key_heads) * size, d, shape.has_bias),
            query_norm=norm(size, shape.has_head_norms),
            key_norm=norm(size, shape.has_head_norms),
            self_out=linear(d, shape.heads * size),
            inner_norms=Norms(norm(d), norm(d, shape.has_after_norms)),
            inner=GatedLinear(linear(2 * shape.inner, d), shape.activation),
            inner_out=linear(d, shape.inner),
            window=shape.windows[i % len(shape.windows)],
            rotary=i % 2,
        )
        for i in range(shape.layers)
    ]
    output = linear(shape.vocab, d)
    stack = Stack(
        token_table=output if shape.is_tied else random(shape.vocab, d),
        position_table=torch.empty(0, d),
        embedding_scale=2.0,
        layers=layers,
        final_norm=norm(d),
        num_heads=shape.heads,
        num_key_heads=shape.key_heads,
        head_size=size,
        rotary=[_table(size // 2, base) for base in (100.0, 5000.0)],
        scale=size**-0.5,
        soft_cap=shape.soft_cap,
        output_soft_cap=shape.soft_cap,
    )
    return stack, output


def _table(half: int, base: float) -> Table:
    angle = torch.arange(NUM_POSITIONS)[:, None] * base ** -(torch.arange(half) / half)
    return Table(angle.cos(), angle.sin())


@dataclass
class Call:
    """The rows of one call, and what they see."""

    token: Tensor  # [R]
    position: Tensor  # [R]
    cell: Tensor  # [R]
    cells: tuple[Tensor, ...]  # offset, slot, cell, num_cells, and mask and entry for steps
    cell_position: Tensor | None = None  # [cells], for steps


def one_by_one(
    backend: Backend, stack: Stack, output: PackedLinear, pool: Tensor, call: Call
) -> Tensor:
    """Return the logits [R, V] of one call per operator. Keys and values go to the pool."""
    stack, output = stack.with_backend(backend), output.with_backend(backend)
    x, _ = stack.embed(backend, call.token, call.position)
    for i, layer in enumerate(stack.layers):
        y = layer.self_norms.before(x)
        query, key, value = stack.project(layer, y, call.position)
        backend.scatter_rows(pool[i], call.cell, torch.stack((key, value), 1))
        y = _attended(backend, stack, layer, call, (query, pool[i, :, 0], pool[i, :, 1]))
        x = _added(layer.self_out, layer.self_norms.added, x, y.flatten(1))
        y = layer.inner(layer.inner_norms.before(x))
        x = _added(layer.inner_out, layer.inner_norms.added, x, y)
    logits = output(stack.final_norm(x))
    if stack.output_soft_cap is not None:
        backend.soft_cap(logits, stack.output_soft_cap)
    return logits


def _attended(
    backend: Backend,
    stack: Stack,
    layer: Layer,
    call: Call,
    tensors: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    window, soft_cap = layer.window or 0, stack.soft_cap or 0.0
    if len(call.cells) == 4:
        facts = call.position, stack.scale, window, soft_cap
        return backend.prompt_attention(*tensors, *call.cells, *facts)
    distances = Distances(call.position, call.cell_position, window=window, soft_cap=soft_cap)
    return backend.tree_attention(*tensors, Cells(*call.cells), stack.scale, distances)


def _added(linear: PackedLinear, norm: Norm | None, x: Tensor, y: Tensor) -> Tensor:
    return linear.add(x, y) if norm is None else x.add_(norm(linear(y)))
