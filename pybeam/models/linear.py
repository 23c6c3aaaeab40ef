"""Linear layers with what follows them: y = act(x W^T + b), or y = residual + x W^T + b.

On a CPU the weights are packed once into oneDNN's layout, which saves packing them at every product
and fuses what follows. oneDNN compiles a kernel for every number of rows it meets, so rows are
padded to few different numbers (`padded_rows`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# name in config.json -> (torch function, oneDNN's name, oneDNN's variant)
ACTIVATIONS = {
    "relu": (F.relu, "relu", ""),
    "gelu": (F.gelu, "gelu", "none"),
    "gelu_python": (F.gelu, "gelu", "none"),
    "gelu_new": (lambda x: F.gelu(x, approximate="tanh"), "gelu", "tanh"),
    "gelu_fast": (lambda x: F.gelu(x, approximate="tanh"), "gelu", "tanh"),
    "gelu_pytorch_tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu", "tanh"),
    "silu": (F.silu, "swish", ""),
    "swish": (F.silu, "swish", ""),
}


class PlainLinear:
    """A linear layer through torch, for any device and dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> None:
        self._weight, self._bias = weight, bias  # [out, in], [out]
        self._activation = ACTIVATIONS[activation][0] if activation else None

    def __call__(self, x: Tensor) -> Tensor:
        y = F.linear(x, self._weight, self._bias)  # [n, out]
        return y if self._activation is None else self._activation(y)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + x W^T + b; the residual's memory may be used for it."""
        return residual.add_(F.linear(x, self._weight, self._bias))  # [n, out]


class PackedLinear:
    """A linear layer with oneDNN's packed weights, on a CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
        self._bias = bias
        _, self._activation, self._variant = ACTIVATIONS.get(activation, (None, "none", ""))
        self._apply = torch.ops.mkldnn._linear_pointwise.default
        self._apply_add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        return self._apply(x, self._weight, self._bias, self._activation, [], self._variant)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + x W^T + b; the residual's memory may be used for it."""
        return self._apply_add(x, residual, self._weight, self._bias, "add")  # [n, out]


Linear = PlainLinear | PackedLinear


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `PackedLinear` works here: oneDNN is not in every torch, nor every dtype in a CPU."""
    if device.type != "cpu":
        return False
    x = torch.zeros(8, 8, dtype=dtype)
    try:
        PackedLinear(x, None)(x)
    except (AttributeError, RuntimeError):
        return False
    return True


def padded_rows(num_rows: int) -> int:
    """The next of at most 16 numbers per octave, all multiples of 8."""
    step = max(8, 1 << num_rows.bit_length() >> 5)
    return -(-num_rows // step) * step


def padded(index: Tensor, num_rows: int) -> Tensor:
    """[n] with zeros up to that many."""
    missing = num_rows - index.numel()
    return F.pad(index, (0, missing)) if missing else index
