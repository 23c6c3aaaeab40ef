"""Read the tensors of a model directory from safetensors, by name, and check their shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.backends.packing import INT4, Quantised
from pybeam.models.finite import not_finite, refused
from pybeam.models.tensor_files import StoredTensor, stored_tensors
from pybeam.text.json_files import read_json
from pybeam.text.model_files import named_file

# of the names of the base model, where it stands beside an output layer; first those of language models
# beside which there are models of images
OF_LANGUAGE = ("language_model.model.", "model.language_model.")
PREFIXES = (*OF_LANGUAGE, "model.", "transformer.", "gpt_neox.")
# the scales of an int8 matrix stand beside it, under its name and this
SCALE = ".scale"
# by the dtype of matrices, what is in config.json of a directory that `pybeam.quantize` has written
QUANTISATIONS = {
    dtype: {"quant_method": "pybeam", "dtype": name}
    for name, dtype in (("int8", torch.int8), ("int4", INT4))
}
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# tables that may be one: those that read tokens, and then output layers
TIED = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
    "embed_out.weight",
    "decoder.output_projection.weight",
    "proj_out.weight",
)
# tensors that may be ignored: duplicates of tied tables, tables computed from a formula, version marks
HARMLESS = (
    *TIED,
    "encoder.embed_positions.weight",
    "decoder.embed_positions.weight",
    "encoder.embed_positions.weights",
    "decoder.embed_positions.weights",
    "encoder.embed_positions._float_tensor",
    "decoder.embed_positions._float_tensor",
    # of T5's attention over encoder states, which has no positions
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    "encoder.version",
    "decoder.version",
)
# old checkpoints hold these in every layer: frequencies, and masks of GPT-2 and GPT-NeoX
IN_LAYERS = (
    ".rotary_emb.inv_freq",
    *(f".{name}.{mask}" for name in ("attn", "attention") for mask in ("bias", "masked_bias")),
)


def sizes_of(names: Sequence[str], rows: int | Sequence[int]) -> list[int]:
    """Return the number of rows of each of these matrices."""
    return [rows] * len(names) if isinstance(rows, int) else list(rows)


def quantised_dtype(directory: Path) -> torch.dtype | None:
    """Return the dtype in which `pybeam.quantize` wrote this directory, says `config.json`; None: it did not.

    Raises:
        ValueError: it did, and how is unknown.
    """
    path = directory / "config.json"
    found = read_json(path).get("quantization_config") if path.exists() else None
    if not isinstance(found, dict) or found.get("quant_method") != "pybeam":
        return None
    for dtype, known in QUANTISATIONS.items():
        if found == known:
            return dtype
    raise ValueError(
        f"`quantization_config` in {path} must be {QUANTISATIONS[torch.int8]}, or have the `dtype` 'int4', "
        f"but is {found}; was it written by a newer version?"
    )


def shards_of(index: Path) -> dict[Path, list[str]]:
    """Return the shards that an index names, and the names of the tensors in each, both in order.

    Raises:
        ValueError: the index is no table of names, or names files elsewhere.
    """
    shard_of = read_json(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise ValueError(f"{index} must have a `weight_map` from names to files")
    names_of: dict[Path, list[str]] = {}
    for raw in sorted(shard_of):
        path = named_file(index.parent, shard_of[raw], f"`weight_map` in {index}")
        names_of.setdefault(path, []).append(raw)
    return {path: names_of[path] for path in sorted(names_of)}


class Checkpoint:
    """Named tensors of `model.safetensors` or of the shards of `model.safetensors.index.json`.

    Names are without the prefix "model.", or another of `PREFIXES`, which checkpoints of the bare base model
    lack. Tensors beside a language model are left out. `is_checked` is whether `check_finite` looks for
    NaN and infinities.
    """

    # whether integers may also be taken as the floats that they stand for
    can_dequantise = False

    def __init__(self, directory: Path, is_checked: bool = True) -> None:
        self.directory, self.is_checked = directory, is_checked
        self.quantised = quantised_dtype(directory)
        self.matrices: dict[str, torch.dtype] = {}  # of what was taken as integers
        self.transposed: set[str] = set()  # names of those of them that were turned first
        self.taken: set[str] = set()
        self.stored: dict[str, StoredTensor] = {}
        self.raw: dict[str, str] = {}  # name -> name in the file
        index = self._index()
        used = (prefix for prefix in PREFIXES if any(raw.startswith(prefix) for raw in index))
        self._prefix = next(used, "model.")
        for raw, stored in index.items():
            name = raw.removeprefix(self._prefix)
            if self._prefix in OF_LANGUAGE and name == raw:
                name = raw.removeprefix("language_model.")
                if name.removesuffix(SCALE) not in TIED:
                    continue
            self.stored[name], self.raw[name] = stored, raw
        if self.quantised:
            self._check_scales()

    def _index(self) -> dict[str, StoredTensor]:
        single = self.directory / "model.safetensors"
        index = self.directory / "model.safetensors.index.json"
        if single.exists():
            return stored_tensors(single)
        if not index.exists():
            self._refuse()
        found = {}
        for path, own in shards_of(index).items():
            held = self._held(path)
            lost = [raw for raw in own if raw not in held]
            if lost:
                raise ValueError(f"{path} must hold `{lost[0]}`, says {index.name}, but does not")
            found.update({raw: held[raw] for raw in own})
        return found

    def _held(self, shard: Path) -> dict[str, StoredTensor]:
        try:
            return stored_tensors(shard)
        except FileNotFoundError:
            raise ValueError(
                f"{shard.name} is missing in {self.directory}; is the download complete?"
            ) from None

    def _check_scales(self) -> None:
        for name in self.stored:
            matrix = name.removesuffix(SCALE)
            if matrix not in self:
                raise ValueError(
                    f"{self.place(name)} is the scale of `{self.raw[name].removesuffix(SCALE)}`, which is "
                    "missing in that file; quantise the model again"
                )

    def _refuse(self) -> None:
        pickles = sorted(
            path.name
            for pattern in ("*.bin", "*.bin.index.json", "*.pt", "*.ckpt", "*.h5", "*.msgpack")
            for path in self.directory.glob(pattern)
        )
        if pickles:
            raise ValueError(
                f"weights must be in model.safetensors, but {self.directory} has only {pickles[0]}, which is "
                "not read here because such files can run code; `pybeam.load` and `pybeam.hub.fetch` convert "
                "pytorch_model.bin once, and transformers converts others: "
                "`from_pretrained(path).save_pretrained(path)`"
            )
        raise ValueError(
            f"neither model.safetensors nor model.safetensors.index.json is in {self.directory}; "
            "is the download complete?"
        )

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def take(self, name: str, *shape: int) -> Tensor:
        """Return the tensor of that name. Raises ValueError if it is missing or has another shape."""
        return self._float(name, *shape).read()

    def take_mapped(self, name: str, *shape: int) -> Tensor | None:
        """Return that tensor as the file's own memory; None: the file cannot be used as it is.

        Raises ValueError as `take`.
        """
        return self._float(name, *shape).mapped()

    def take_parts(self, name: str, *shape: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield that tensor a few rows at a time, with the rows. Raises ValueError as `take`."""
        stored = self._float(name, *shape)
        for rows in stored.chunks():
            yield rows, stored.read(rows)

    def check_finite(self, name: str, part: Tensor) -> None:
        """Raise ValueError if a part of that tensor, in the dtype it is used in, has NaN or infinities."""
        found = not_finite(part, name) if self.is_checked else None
        if found is None:
            return
        stored = self._float(name, *self.stored[name].shape)
        if all(not_finite(stored.read(rows), name) is None for rows in stored.chunks()):
            raise ArgumentError(
                "dtype",
                f"must hold all weights, but {self.place(name)} has numbers that are infinite in "
                f"{part.dtype}; use 'float32' or 'bfloat16'",
            )
        raise refused(self.place(name), found)

    def check_shapes(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        *columns: int,
        is_transposed: bool = False,
    ) -> None:
        """Raise ValueError as `take`, before memory is taken for what a config alone claims."""
        for name, size in zip(names, sizes, strict=True):
            self._found(name, *((*columns, size) if is_transposed else (size, *columns)))

    def fill(self, out: Quantised, name: str) -> bool:
        """Read integers that the file has in a form of its own. Returns whether it has such a form."""
        return False

    def _found(self, name: str, *shape: int) -> StoredTensor:
        if name not in self:
            raise ValueError(
                f"`{self._prefix}{name}` is missing in the weights of {self.directory}; "
                "does config.json belong to these weights?"
            )
        self.taken.add(name)
        stored = self.stored[name]
        if stored.shape != shape:
            raise ValueError(
                f"{self.place(name)} must be {list(shape)}, but is {list(stored.shape)}; does config.json "
                "belong to these weights?"
            )
        return stored

    def _float(self, name: str, *shape: int) -> StoredTensor:
        stored = self._found(name, *shape)
        if stored.dtype not in FLOATS:
            raise ValueError(
                f"{self.place(name)} must be a float tensor, but is {stored.dtype}; quantised weights are "
                "not supported"
            )
        return stored

    def place(self, name: str) -> str:
        """Return where the tensor of that name lies, for messages."""
        return f"`{self.raw[name]}` in {self.stored[name].path}"

    def first(self, names: Sequence[str]) -> str:
        """Return the first of these names that the file has. A tied tensor has one of several names."""
        return next((name for name in names if name in self), names[0])

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a float tensor in the file. Raises ValueError if it is missing."""
        shape = self.stored[name].shape if name in self else ()
        dtype = self._float(name, *shape).dtype
        assert isinstance(dtype, torch.dtype)
        return dtype

    def num_rows(self, name: str) -> int:
        """Return the length of a tensor's first dimension. The tensor must exist."""
        return self.stored[name].shape[0]

    def close(self) -> None:
        """Raise ValueError if a tensor that matters was not taken."""
        left = sorted(
            name
            for name in self.stored
            if name not in self.taken
            and name.removesuffix(SCALE) not in HARMLESS
            and not name.endswith(IN_LAYERS)
        )
        if left:
            raise ValueError(
                f"{self.place(left[0])} is not part of this model "
                f"({len(left)} such tensors); does config.json belong to these weights?"
            )
