"""Graphs written down operator by operator: `Builder`, on the tape of the package onnx-ir."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir as ir
import torch
from onnx_ir import Value
from onnx_ir.tensor_adapters import TorchTensor
from torch import Tensor

OPSET = 20  # the first with Gelu
IR_VERSION = 9  # the one that came with it
# of weights within the file: protobuf allows a file of twice that
MAX_BYTES = 1 << 30

INT, FLOAT, BOOL = ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.BOOL
INT32 = ir.DataType.INT32
Given: TypeAlias = Value | int | float | Sequence[int] | None  # what an operator takes
Recorded = tuple[list[Value], list[tuple[Value, Value]]]  # inputs, and outputs with their names


def value(name: str, dtype: ir.DataType, *shape: int | str) -> Value:
    """An input or output; letters are sizes that calls choose."""
    return ir.val(name, dtype=dtype, shape=shape)


class Builder:
    """Records operators: ``op.Gather(x, index, axis=1)``.

    Numbers among the inputs become constants: ints and lists of ints int64, floats float32. Names begin
    with `prefix`, because a graph within another must not reuse names.
    """

    def __init__(self, prefix: str = "") -> None:
        self._tape = ir.tape.Tape()
        self._prefix = prefix

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def record(
            *inputs: Value | int | float | Sequence[int] | None, outputs: int = 1, **given: Any
        ) -> Any:
            recorded = self._tape.op_multi_out(
                name, [self._value(one) for one in inputs], given, num_outputs=outputs
            )
            for i, one in enumerate(recorded):
                one.name = f"{self._prefix}{name}.{len(self._tape.nodes)}.{i}"
            return recorded[0] if outputs == 1 else recorded

        return record

    def size(self, x: Value, axis: int) -> Value:
        """Length of an axis, [1], so that `sizes` can join it with others."""
        return self.Shape(x, start=axis, end=axis + 1)

    def sizes(self, *parts: Value | int) -> Value:
        """A shape of numbers and of what `size` returns."""
        return self.Concat(*[[one] if isinstance(one, int) else one for one in parts], axis=0)

    def range(self, size: Value) -> Value:
        """[0, 1, …) of this size [1]."""
        return self.Range(0, self.Squeeze(size), 1)

    def mask(self, size: Value, length: Value) -> Value:
        """[B, size] bool, the first length[b] of every line."""
        return self.Less(self.range(size), self.Unsqueeze(length, [1]))

    def bias(self, mask: Value) -> Value:
        """0 where the mask is true, -inf elsewhere: what is added to attention scores."""
        return self.Where(mask, 0.0, float("-inf"))

    def weight(self, tensor: Tensor, name: str) -> Value:
        """A stored tensor; the graphs within this one may use it too."""
        return self._tape.initializer(TorchTensor(tensor.detach().contiguous(), name=name))

    def graph(self, name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> ir.Graph:
        """The recorded operators as a graph."""
        return ir.Graph(
            inputs,
            outputs,
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports={"": OPSET},
            name=name,
        )

    def save(
        self,
        path: Path,
        inputs: Sequence[Value],
        outputs: Sequence[tuple[Value, Value]],
    ) -> None:
        """Write it; each output is what was recorded and what it is called. Large weights go beside it."""
        for recorded, named in outputs:
            recorded.name, recorded.shape, recorded.dtype = named.name, named.shape, named.dtype
        graph = self.graph(path.stem, inputs, [recorded for recorded, _ in outputs])
        model = ir.Model(graph, ir_version=IR_VERSION, producer_name="pybeam")
        num_bytes = sum(one.const_value.nbytes for one in self._tape.initializers)
        ir.save(model, path, external_data=f"{path.name}.data" if num_bytes > MAX_BYTES else None)

    def _value(self, given: Given) -> Value | None:
        if given is None or isinstance(given, Value):
            return given
        is_float = isinstance(given, float)
        tensor = torch.tensor(given, dtype=torch.float32 if is_float else torch.int64)
        return self.Constant(value=TorchTensor(tensor))
