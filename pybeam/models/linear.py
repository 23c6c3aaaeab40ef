"""Linear layers with an activation or a residual: y = act(x W^T + b), or y = residual + x W^T + b."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam import backends
from pybeam.backends import Backend, torch_layers
from pybeam.backends.packing import INTEGERS, PANEL, Quantised, pack, unpack
from pybeam.backends.torch_layers import FUNCTIONS, Activation

# by their names in config.json
ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_new": Activation.TANH_GELU,
    "gelu_fast": Activation.TANH_GELU,
    "gelu_pytorch_tanh": Activation.TANH_GELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "tanh": Activation.TANH,
}

# those that cuBLASLt computes behind the bias, in the product's own kernel; its GELU is tanh's
IN_PRODUCT = (Activation.RELU, Activation.TANH_GELU)

# multiply-adds of all columns that take as long as finding some of them and copying their weights; a product
# of fewer rows than these takes as long as one of so many, because it reads the weights from memory
WORTH_SOME, LEAST_ROWS = 1 << 25, 16


class PlainLinear:
    """A linear layer through torch, for any device and dtype."""

    # whether weights are those of a product whose kernel may have the activation
    activates_in_product: ClassVar[bool] = True
    shares_weights: ClassVar[bool] = False

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> None:
        self.weight, self.bias = weight, bias  # [out, in], [out]
        self.num_columns = weight.shape[0]
        self.activation = activation
        self._activation_id = ACTIVATIONS[activation] if activation else Activation.NONE
        self._activation = FUNCTIONS[self._activation_id] if activation else None

    def with_backend(self, backend: Backend) -> PlainLinear:
        """Return this layer: torch computes it with every backend."""
        return self

    def __call__(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """act(x W^T + b) [n, out], in `memory` [at least n, out] where that is given."""
        fused = self.activates_in_product and self._activation_id in IN_PRODUCT
        # on a CPU the same call is two kernels
        if fused and memory is None and self.bias is not None and x.device.type != "cpu":
            gelu = self._activation_id == Activation.TANH_GELU
            return torch._addmm_activation(self.bias, x, self.weight.t(), use_gelu=gelu)
        y = self._product(x, memory)
        return y if self._activation is None else self._activation(y)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + x W^T + b; the residual's memory may be used for it."""
        return residual.add_(self._product(x))  # [n, out]

    def gated(self, x: Tensor) -> Tensor:
        """``a * sigmoid(g)`` [n, out / 2], where ``[a, g] = x W^T + b``."""
        return F.glu(self(x), dim=1)

    def without_bias(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return x W^T [n, out], and the bias if it is still to be added."""
        return torch.mm(x, self.weight.t()), self.bias

    def _product(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """x W^T + b [n, out]."""
        if memory is None:
            return F.linear(x, self.weight, self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight.t(), out=memory[: x.shape[0]])
        return torch.addmm(self.bias, x, self.weight.t(), out=memory[: x.shape[0]])


class PackedLinear:
    """A linear layer on a CPU, its weights packed for the kernels of the C++ extension.

    Decoding multiplies few rows by many weights, a shape that general libraries are slow at. A row's
    result does not depend on the other rows, bit for bit, which no general library promises.

    Activations keep that promise: every number goes through the same vector arithmetic, where torch
    gives the last numbers of a tensor to a scalar function that rounds differently. The error is at most
    that of moving the argument, and then the result, by 3 units in the last place. Results below 1e-35
    may be zero.

    Inputs, sums, bias and results are float32 whatever the weights' dtype:

    - float32: y = x W^T + b. Weights that float16 holds exactly, as those of most files, are kept in
      float16 and widened on the way: half the memory to read, the same result. So are those that bfloat16
      holds exactly (`pybeam.backends.packing.pack`), with inputs that are not rounded.
    - float16: the same with these weights.
    - bfloat16: y = bfloat16(x) W^T + b, x rounded to nearest, ties to even. AVX512_BF16 multiplies
      such pairs at twice the speed of float32 on some CPUs; others widen them. Subnormals may count as
      zero.
    - int8, given as `Quantised`: inputs become int8, too, row by row, and the sums of integers are exact;
      see `pybeam.backends.torch_layers.linear`. Given the inputs, every instruction set gives the same
      products, bit for bit. int4 has a class of its own, `pybeam.models.int4.Int4Linear`.

    Args:
        weight: W [out, in], or its integers and scales.
        bias: [out]; None: there is none.
        activation: its name in config.json.
        backend: who computes it; None: the best one here.
        keeps_large: whether the four largest inputs of a row of int8 keep more bits than the others.
    """

    # whether programs and token tables may take the packed weights
    shares_weights: ClassVar[bool] = True

    def __init__(
        self,
        weight: Tensor | Quantised,
        bias: Tensor | None,
        activation: str | None = None,
        backend: Backend | None = None,
        keeps_large: bool = False,
    ) -> None:
        self._scale: Tensor | None  # [out]
        matrix, self._scale = weight if isinstance(weight, Quantised) else (weight, None)
        self.num_columns, self._depth = matrix.shape
        self._backend = backend or backends.resolve("auto", torch.device("cpu"))
        self._weight = self._pack(weight, keeps_large)
        self.bias = bias  # [out]
        self.activation = activation
        self.activation_id = ACTIVATIONS[activation] if activation else Activation.NONE

    def _pack(self, weight: Tensor | Quantised, keeps_large: bool) -> Tensor:
        return pack(weight, self._backend.fill_panels, keeps_large)

    def with_backend(self, backend: Backend) -> PackedLinear:
        """Return a layer with the same weights that this backend module computes."""
        layer = copy.copy(self)
        layer._backend = backend
        return layer

    def __call__(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """act(x W^T + b) [n, out], in `memory` [at least n, out] where that is given."""
        n = x.shape[0]
        y = x.new_empty(n, self.num_columns) if memory is None else memory[:n]
        self._multiply(y, x, self.activation_id, False)
        return y

    def some(self, x: Tensor, column: Tensor, memory: Tensor) -> Tensor:
        """x W^T + b [n, out] in `memory` [at least n, out]; columns other than these [m] may be missing.

        Those that are there have the bits that `__call__` gives them.
        """
        out = memory[: x.shape[0]]
        if not column.numel():
            return out.zero_()
        if max(x.shape[0], LEAST_ROWS) * self.num_columns * self._depth < WORTH_SOME:
            return self(x, memory)
        panel = torch.unique(column.long() // PANEL)
        # their weights are copied first, so most of them are no gain
        if 2 * panel.numel() > self._weight.shape[0]:
            return self(x, memory)
        own = (panel[:, None] * PANEL + torch.arange(PANEL)).view(-1)  # [m * PANEL]
        place = own.clamp(max=self.num_columns - 1)
        scale, bias = (None if v is None else v[place] for v in (self._scale, self.bias))
        y = x.new_empty(x.shape[0], own.numel())
        given = self._read(x), self._weight[panel], scale, bias
        self._backend.linear(y, *given, self.activation_id, False)
        is_column = own < self.num_columns
        out[:, own[is_column]] = y[:, is_column]
        return out

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + x W^T + b; the residual's memory may be used for it."""
        self._multiply(residual, x, Activation.NONE, True)
        return residual  # [n, out]

    def gated(self, x: Tensor) -> Tensor:
        """``a * sigmoid(g)`` [n, out / 2], where ``[a, g] = x W^T + b``."""
        return self._backend.glu(self(x))

    def _multiply(self, y: Tensor, x: Tensor, activation: Activation, adds: bool) -> None:
        given = self._read(x), self._weight, self._scale, self.bias
        self._backend.linear(y, *given, activation, adds)

    def _read(self, x: Tensor) -> Tensor:
        """Return what is multiplied in place of x [n, in]."""
        return x

    @property
    def packed(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The packed weights, their scale [out] if they are int8, and the bias [out] if there is one."""
        return self._weight, self._scale, self.bias

    @property
    def weight(self) -> Tensor:
        """W [out, in] unpacked, float32."""
        return self.rows(torch.arange(self.num_columns)).float()

    def rows(self, index: Tensor) -> Tensor:
        """Return W[index] [n, in] in the dtype that holds it, or in float32 from int8.

        Tied embeddings look up tokens in this one copy.
        """
        rows = unpack(self._weight, index, self._depth)
        return rows if self._scale is None else rows * self._scale[index][:, None]


class GatedLinear:
    """``act(g) * u`` [n, F], where ``[g, u] = x W^T + b`` [n, 2 F]."""

    def __init__(self, linear: Linear, activation: str, kernels: Any = torch_layers) -> None:
        self.linear, self.activation = linear, activation
        self.kernels = linear._backend if isinstance(linear, PackedLinear) else kernels

    def with_backend(self, backend: Backend) -> GatedLinear:
        """Return a layer with the same weights that this backend module computes."""
        kernels = backend if backend.takes_plain else torch_layers
        return GatedLinear(self.linear.with_backend(backend), self.activation, kernels)

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.gated(self.linear(x), ACTIVATIONS[self.activation])


Linear = PlainLinear | PackedLinear


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `PackedLinear` takes such weights here and is faster. It is not with the portable kernels.

    Nothing else takes integers, so they are packed on every CPU. Without the C++ extension torch computes
    them.
    """
    if device.type != "cpu":
        return False
    if dtype in INTEGERS:
        return True
    if dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        return False
    try:
        backends.load("native")
    except ValueError:  # the extension is not built
        return False
    return bool(torch.ops.pybeam.isa() != "generic")
