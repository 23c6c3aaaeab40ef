"""Take the layers of a model out of its checkpoint, in the dtype that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.backends.memory import large_array
from pybeam.backends.packing import INTEGERS, Quantised
from pybeam.models.checkpoint import Checkpoint, sizes_of
from pybeam.models.linear import Linear, PackedLinear, PlainLinear, can_pack

FLOAT8 = torch.float8_e4m3fn


class WeightReader:
    """Reads tensors for one device and one dtype.

    Args:
        checkpoint: the files.
        device: where the tensors go.
        dtype: dtype of matrices and token tables. None is that of quantised files, else float32 on a CPU and
            the dtype of `table` on a GPU.
        table: a token table that the checkpoint should have.
        keeps_large: whether int8 layers keep more bits of the largest inputs, see `PackedLinear`.

    Raises:
        ValueError: `dtype` is not for this device, or not for these files.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype | None,
        table: str,
        keeps_large: bool = False,
    ) -> None:
        self.checkpoint, self.device, self._keeps_large = checkpoint, device, keeps_large
        is_on_cpu = device.type == "cpu"
        if dtype is None:
            if checkpoint.quantised and (is_on_cpu or not checkpoint.can_dequantise):
                dtype = checkpoint.quantised
            else:
                dtype = torch.float32 if is_on_cpu else checkpoint.dtype(table)
        if checkpoint.quantised not in (None, dtype) and not checkpoint.can_dequantise:
            raise ArgumentError(
                "dtype",
                f"must be 'auto' or {checkpoint.quantised} for {checkpoint.directory}, whose weights are "
                f"quantised, but is {dtype}; load the directory that it was made from",
            )
        self._has_few_bits = dtype in (FLOAT8, *INTEGERS)
        if self._has_few_bits:
            from pybeam.models import few_bits

            few_bits.check_device(dtype, device)
        self.weight_dtype = dtype
        self.is_packed = can_pack(device, dtype)
        # of everything but matrices and token tables, and of activations and logits
        self.dtype = torch.float32 if self.is_packed else dtype
        if self._has_few_bits:
            self.dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def vector(self, name: str, *shape: int) -> Tensor:
        """Return a bias, a norm's weights or a position table, in `dtype`."""
        return self.taken(name, self.dtype, *shape)

    def taken(self, name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        """Return a tensor in some dtype. Raises ValueError if it is missing or unfit, or not finite."""
        tensor = self.checkpoint.take(name, *shape).to(dtype)
        self.checkpoint.check_finite(name, tensor)
        return tensor.to(self.device)

    def matrix(
        self,
        names: Sequence[str],
        rows: int | Sequence[int],
        *columns: int,
        is_transposed: bool = False,
        is_layer: bool = False,
    ) -> Tensor | Quantised:
        """Return matrices or token tables, one below the other, in `weight_dtype`.

        In place of float32, those that are packed may be in the file's float16 or bfloat16. Those of 8-bit
        floating-point layers are in `dtype`: `linear` rounds them, and tables stay so. `rows` is the number
        of rows of all of them, or of each. `is_transposed` is whether files that are not quantised hold them
        turned, [columns, rows]. In int4 only what `is_layer` has 4 bits.
        """
        sizes = sizes_of(names, rows)
        if self.weight_dtype in INTEGERS:
            from pybeam.models import integers

            dtype = self.weight_dtype if is_layer else torch.int8
            given = self.checkpoint, names, sizes
            taken = integers.take(*given, *columns, is_transposed=is_transposed, dtype=dtype)
            return Quantised(*(part.to(self.device) for part in taken))
        self.checkpoint.check_shapes(names, sizes, *columns, is_transposed=is_transposed)
        dtype = self.dtype if self.weight_dtype == FLOAT8 else self.weight_dtype
        full = sum(sizes), *columns
        if self.is_packed and not is_transposed:
            mapped = self._mapped(names, sizes, dtype, *columns)
            if mapped is not None:
                return mapped
        joined = (
            large_array(full, dtype)
            if self.is_packed
            else torch.empty(full, dtype=dtype, device=self.device)
        )
        for name, out in zip(names, joined.split(sizes), strict=True):
            held = out.t() if is_transposed else out
            for some, part in self.checkpoint.take_parts(name, *held.shape):
                converted = part.to(dtype)
                self.checkpoint.check_finite(name, converted)
                held[some] = converted
        return joined

    def table(self, weight: Tensor | Quantised) -> Tensor | Quantised:
        """Return a token table as an embedding reads it: in `dtype`, where integers are not packed."""
        if self.is_packed or isinstance(weight, Tensor):
            return weight
        from pybeam.models import narrow

        return narrow.wide(weight, self.dtype)

    def _mapped(
        self, names: Sequence[str], sizes: Sequence[int], dtype: torch.dtype, *columns: int
    ) -> Tensor | None:
        """Return a matrix as the file's own memory, or a copy of several in the file's dtype.

        None: that dtype is none that the layers take, or a matrix is not aligned.
        """
        held, *others = {self.checkpoint.dtype(name) for name in names}
        widens = self.weight_dtype == torch.float32 and held in (torch.float16, torch.bfloat16)
        if others or (held != dtype and not widens):
            return None
        joined = large_array((sum(sizes), *columns), held) if len(names) > 1 else None
        for i, name in enumerate(names):
            # one at a time, because each takes addresses and a descriptor of the file
            part = self.checkpoint.take_mapped(name, sizes[i], *columns)
            if part is None:
                return None
            self.checkpoint.check_finite(name, part)
            if joined is None:
                return part
            joined.split(sizes)[i].copy_(part)
        return joined

    def linear(
        self, weight: Tensor | Quantised, bias: Tensor | None, activation: str | None = None
    ) -> Linear:
        """Make a layer of a matrix [out, in] and a bias [out]."""
        if self._has_few_bits:
            from pybeam.models import few_bits

            own = few_bits.linear(weight, bias, activation, self.is_packed)
            if own is not None:
                return own
        if self.is_packed:
            # inputs of float32 weights are not rounded, whatever holds these
            is_exact = self.weight_dtype == torch.float32
            if is_exact and isinstance(weight, Tensor) and weight.dtype == torch.bfloat16:
                weight = weight.view(torch.int16)
            return PackedLinear(weight, bias, activation, keeps_large=self._keeps_large)
        assert isinstance(weight, Tensor)
        return PlainLinear(weight, bias, activation)
