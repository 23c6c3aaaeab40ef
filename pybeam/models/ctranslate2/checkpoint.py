"""The tensors of `model.bin` under the names by which an assembly asks for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pybeam.backends.packing import Quantised
from pybeam.models.checkpoint import FLOATS, SCALE, Checkpoint
from pybeam.models.ctranslate2.binary import Binary
from pybeam.models.integers import check_range, quantise_into
from pybeam.models.padded import PaddedTensor
from pybeam.models.tensor_files import StoredTensor

# what stands behind the last "/" of a name
ENDS = {"gamma": "weight", "beta": "bias", "encodings": "weight", "weight_scale": f"weight{SCALE}"}
# the tables of the words that are generated
TABLES = ("decoder/embeddings/weight", "decoder/projection/weight")
# the name of T5's biases by distance
RELATIVE = "{}.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"
# integers of 16 bits without a scale have this one
GLOBAL_INT16_SCALE = 1000.0


@dataclass(frozen=True)
class BinaryTensor(PaddedTensor):
    """A tensor of `model.bin`, which may be integers.

    Attributes:
        scale: of integers: a number is ``integer / scale``; of each row [rows], or of all [].
    """

    scale: Tensor | None = None

    def held(self, rows: slice = slice(None)) -> Tensor:
        held = super().held(rows)
        if self.scale is None:
            return held
        scale = self.scale[rows] if self.scale.ndim else self.scale
        return held / scale.view(-1, *[1] * (held.ndim - 1))

    def mapped(self) -> Tensor | None:
        return None if self.scale is not None else super().mapped()


class BinaryCheckpoint(Checkpoint):
    """Named tensors of `model.bin`. Integers are taken as they are, or as the floats that they stand for.

    Args:
        binary: the file.
        output: the name of the output layer.
        num_zeros: rows of zeros behind those of the decoder's token table and of the output layer.
        is_checked: see `Checkpoint`.
    """

    can_dequantise = True

    def __init__(
        self, binary: Binary, output: str, *, num_zeros: int = 0, is_checked: bool = True
    ) -> None:
        self.directory, self.is_checked = binary.path.parent, is_checked
        self.matrices, self.transposed, self.taken = {}, set(), set()
        self.stored, self.raw, self._prefix = {}, {}, ""
        self._same: dict[str, str] = {}  # another name of a tensor -> its own
        is_relative = any(name.endswith("/relative_attention_bias") for name in binary.tensors)
        names = _Names(output, is_relative)
        aliases = {one: name for one, name in binary.aliases.items() if binary.tensors[name].shape}
        tables = [aliases.get(name, name) for name in TABLES]
        for raw, tensor in binary.tensors.items():
            if tensor.shape and not raw.endswith("weight_scale"):
                more = num_zeros if raw in tables else 0
                name = names(raw)
                self.stored[name], self.raw[name] = _with_scale(binary, raw, tensor, more), raw
        for alias, raw in aliases.items():
            if not alias.endswith("weight_scale"):
                name, own = names(alias), names(raw)
                self.stored[name], self.raw[name], self._same[name] = self.stored[own], alias, own
        has_integers = any(one.dtype == torch.int8 for one in self.stored.values())
        self.quantised = torch.int8 if has_integers else None
        floats = (one.dtype for one in self.stored.values() if one.dtype in FLOATS)
        self._float_dtype = next(floats, torch.float32)

    def first(self, names: Sequence[str]) -> str:
        """Return the first of these names that the file has, or the name that it is another one of."""
        name = super().first(names)
        return self._same.get(name, name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor; of integers that of the floats beside them."""
        stored = self._float(name, *self.stored[name].shape if name in self else ())
        assert isinstance(stored.dtype, torch.dtype)
        return stored.dtype if stored.dtype in FLOATS else self._float_dtype

    def close(self) -> None:
        """Raise ValueError if a tensor that matters was not taken, under one of its names."""
        own = {self._same.get(name, name) for name in self.taken}
        same = {name for name, one in self._same.items() if one in own}
        self.taken |= own
        taken, self.taken = self.taken, self.taken | same
        super().close()
        self.taken = taken

    def _float(self, name: str, *shape: int) -> StoredTensor:
        stored = self._found(name, *shape)
        has_scale = isinstance(stored, BinaryTensor) and stored.scale is not None
        return stored if has_scale else super()._float(name, *shape)

    def fill(self, out: Quantised, name: str) -> bool:
        stored = self.stored[name]
        assert isinstance(stored, BinaryTensor)
        # old versions leave convolutions as they are
        if stored.dtype != torch.int8 or stored.scale is None or not stored.scale.ndim:
            quantise_into(self, out, name)
            return True
        num = stored.num_rows
        stored.read_into(out.q[:num])
        check_range(self, out, name)
        out.scale[:num], out.scale[num:] = 1 / stored.scale, 0
        return True


def _with_scale(binary: Binary, name: str, tensor: StoredTensor, num_zeros: int) -> BinaryTensor:
    """Return a tensor with the scale that stands beside it, which must be a sound one."""
    own, dtype = binary.tensors.get(f"{name}_scale"), tensor.dtype
    scale = None
    if dtype in (torch.int8, torch.int16):
        scale = torch.tensor(GLOBAL_INT16_SCALE)
        if own is not None:
            scale = (
                own.read() if own.dtype in FLOATS and own.shape in ((), tensor.shape[:1]) else None
            )
        elif dtype == torch.int8:
            scale = None
        if scale is None or not (scale.isfinite() & (scale > 0)).all():
            raise ValueError(
                f"`{name}` in {binary.path} are integers and must have positive scales, of each row or of "
                f"all, as `{name}_scale`"
            )
        scale = scale.float()
        binary.unread.discard(f"{name}_scale")
    elif dtype not in FLOATS or own is not None:
        raise ValueError(
            f"`{name}` in {binary.path} must be floats, or integers of 8 or 16 bits with their scales, "
            f"but is {dtype}; load the model that it was converted from"
        )
    shape = (tensor.shape[0] + num_zeros, *tensor.shape[1:])
    return BinaryTensor(tensor.path, dtype, shape, tensor.begin, num_zeros, scale)


class _Names:
    """The name by which an assembly asks for a tensor: a scope with dots, and "weight" or "bias"."""

    def __init__(self, output: str, is_relative: bool) -> None:
        self._is_relative = is_relative
        self._scopes = {
            "encoder/embeddings": "encoder.embed_tokens",
            "encoder/embeddings_0": "encoder.embed_tokens",
            "decoder/embeddings": "decoder.embed_tokens",
            "encoder/position_encodings": "encoder.embed_positions",
            "decoder/position_encodings": "decoder.embed_positions",
            "decoder/projection": output,
        }
        if is_relative:
            # T5's last norm is called otherwise
            self._scopes |= {
                f"{one}/layer_norm": f"{one}.final_layer_norm" for one in ("encoder", "decoder")
            }

    def __call__(self, name: str) -> str:
        if self._is_relative and (
            match := re.fullmatch(r"(\w+)/layer_(\d+)/self_attention/relative_attention_bias", name)
        ):
            return RELATIVE.format(*match.groups())
        scope, _, end = name.rpartition("/")
        return f"{self._scopes.get(scope, scope.replace('/', '.'))}.{ENDS.get(end, end)}"
