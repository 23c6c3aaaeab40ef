"""`Builder`: write a graph operator by operator, on the tape of the package onnx-ir."""

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
DOUBLE = ir.DataType.DOUBLE
Given: TypeAlias = Value | int | float | Sequence[int] | None  # what an operator takes
Recorded = tuple[list[Value], list[tuple[Value, Value]]]  # inputs, and outputs with their names


def value(name: str, dtype: ir.DataType, *shape: int | str) -> Value:
    """Make an input or an output; sizes that are names may differ from call to call."""
    return ir.val(name, dtype=dtype, shape=shape)


class Builder:
    """Record operators: ``op.Gather(x, index, axis=1)``.

    Numbers among the inputs become constants: ints and lists of ints are int64, floats are float32. Names
    begin with `prefix`, because a graph within another must not reuse names.

    Attributes:
        facts: the metadata of the model that is saved.
    """

    def __init__(self, prefix: str = "") -> None:
        self._tape = ir.tape.Tape()
        self._prefix = prefix
        self._defaults: list[Value] = []
        self.facts: dict[str, str] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def record(
            *inputs: Value | int | float | Sequence[int] | None, outputs: int = 1, **given: Any
        ) -> Any:
            recorded = self._tape.op_multi_out(
                name, [self._value(one) for one in inputs], given, num_outputs=outputs
            )
            node = self._tape.nodes[-1]
            node.name = f"{self._prefix}{name}.{len(self._tape.nodes)}"
            for i, one in enumerate(recorded):
                one.name = f"{node.name}.{i}"
            return recorded[0] if outputs == 1 else recorded

        return record

    def size(self, x: Value, axis: int) -> Value:
        """Return the length of an axis as [1], so that `sizes` can join it with others."""
        return self.Shape(x, start=axis, end=axis + 1)

    def sizes(self, *parts: Value | int) -> Value:
        """Make a shape of numbers and of results of `size`."""
        return self.Concat(*[[one] if isinstance(one, int) else one for one in parts], axis=0)

    def range(self, size: Value) -> Value:
        """Return [0, 1, …), with as many numbers as `size` [1] says."""
        return self.Range(0, self.Squeeze(size), 1)

    def mask(self, size: Value, length: Value) -> Value:
        """Return [B, size] bool, true in the first length[b] places of every line."""
        return self.Less(self.range(size), self.Unsqueeze(length, [1]))

    def bias(self, mask: Value) -> Value:
        """Return 0 where the mask is true and -inf elsewhere, to be added to attention scores."""
        return self.Where(mask, 0.0, float("-inf"))

    def weight(self, tensor: Tensor, name: str) -> Value:
        """Store a tensor. Graphs within this one may use it too."""
        return self._tape.initializer(TorchTensor(tensor.detach().contiguous(), name=name))

    def constant(self, content: Tensor) -> Value:
        """Return a tensor of any dtype as a value of this graph alone."""
        return self.Constant(value=TorchTensor(content))

    def double(self, number: float) -> Value:
        """Return a number in float64."""
        return self.constant(torch.tensor(number, dtype=torch.float64))

    @property
    def optional_inputs(self) -> list[Value]:
        """Those that callers may leave out, in the order in which they were made."""
        return list(self._defaults)

    def number(self, name: str, default: float) -> Value:
        """Make an input [] that callers may leave out, int64 or float32 as its default is."""
        dtype = torch.int64 if isinstance(default, int) else torch.float32
        return self.optional(name, torch.tensor(default, dtype=dtype))

    def optional(self, name: str, default: Tensor, *shape: int | str) -> Value:
        """Make an input that callers may leave out. ONNX has it as an input that is an initializer too."""
        content = TorchTensor(default, name=name)
        type_ = ir.TensorType(content.dtype)
        given = ir.Value(name=name, shape=ir.Shape(shape), type=type_, const_value=content)
        self._defaults.append(given)
        return given

    def graph(self, name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> ir.Graph:
        """The recorded operators as a graph."""
        return ir.Graph(
            inputs,
            outputs,
            nodes=self._tape.nodes,
            initializers=[*self._tape.initializers, *self._defaults],
            opset_imports={"": OPSET},
            name=name,
        )

    def save(
        self,
        path: Path,
        inputs: Sequence[Value],
        outputs: Sequence[tuple[Value, Value]],
    ) -> None:
        """Write the graph; each output is a value and its name. Large weights go into a file beside it."""
        for recorded, named in outputs:
            recorded.name, recorded.shape, recorded.dtype = named.name, named.shape, named.dtype
        graph = self.graph(path.stem, inputs, [recorded for recorded, _ in outputs])
        model = ir.Model(graph, ir_version=IR_VERSION, producer_name="pybeam")
        model.metadata_props.update(self.facts)
        num_bytes = sum(one.const_value.nbytes for one in self._tape.initializers)
        ir.save(model, path, external_data=f"{path.name}.data" if num_bytes > MAX_BYTES else None)

    def _value(self, given: Given) -> Value | None:
        if given is None or isinstance(given, Value):
            return given
        is_float = isinstance(given, float)
        tensor = torch.tensor(given, dtype=torch.float32 if is_float else torch.int64)
        return self.Constant(value=TorchTensor(tensor))
