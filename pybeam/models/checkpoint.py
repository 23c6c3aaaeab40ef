"""Read the tensors of a model directory from safetensors, by name, and check their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pybeam.text.json_files import read_json

PREFIX = "model."
# tensors that may be ignored: duplicates of tied tables, tables computed from a formula, version marks
HARMLESS = (
    "shared.weight",
    "lm_head.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.output_projection.weight",
    "proj_out.weight",
    "encoder.embed_positions.weight",
    "decoder.embed_positions.weight",
    "encoder.embed_positions.weights",
    "decoder.embed_positions.weights",
    "encoder.embed_positions._float_tensor",
    "decoder.embed_positions._float_tensor",
    "encoder.version",
    "decoder.version",
)


class Checkpoint:
    """Named tensors of `model.safetensors` or of the shards of `model.safetensors.index.json`.

    Names are without the prefix "model.", which checkpoints of the bare base model lack.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._taken: set[str] = set()
        self._file: dict[str, Path] = {}  # name -> file that holds it
        self._raw: dict[str, str] = {}  # name -> name in the file
        self._open: dict[Path, safe_open] = {}
        for raw, path in self._index().items():
            name = raw.removeprefix(PREFIX)
            self._file[name], self._raw[name] = path, raw

    def _index(self) -> dict[str, Path]:
        single = self.directory / "model.safetensors"
        index = self.directory / "model.safetensors.index.json"
        if single.exists():
            return dict.fromkeys(self._opened(single).keys(), single)
        if not index.exists():
            self._refuse()
        shard_of = read_json(index).get("weight_map")
        if not isinstance(shard_of, dict) or not shard_of:
            raise ValueError(f"{index} must have a `weight_map` from names to files")
        files = {raw: self.directory / name for raw, name in shard_of.items()}
        for path in sorted(set(files.values())):
            held = set(self._opened(path).keys())
            lost = sorted(raw for raw, file in files.items() if file == path and raw not in held)
            if lost:
                raise ValueError(f"{path} must hold `{lost[0]}`, says {index.name}, but does not")
        return files

    def _refuse(self) -> None:
        pickles = sorted(
            path.name
            for pattern in ("*.bin", "*.bin.index.json", "*.pt", "*.ckpt", "*.h5", "*.msgpack")
            for path in self.directory.glob(pattern)
        )
        if pickles:
            raise ValueError(
                f"weights must be in model.safetensors, but {self.directory} has only "
                f"{pickles[0]}, which is not read because such files can run code; convert it "
                "once with transformers: `from_pretrained(path).save_pretrained(path)`"
            )
        raise ValueError(
            f"neither model.safetensors nor model.safetensors.index.json is in {self.directory}; "
            "is the download complete?"
        )

    def _opened(self, path: Path) -> safe_open:
        if path not in self._open:
            try:
                self._open[path] = safe_open(path, framework="pt")
            except FileNotFoundError:
                raise ValueError(
                    f"{path.name} is missing in {self.directory}; is the download complete?"
                ) from None
            except SafetensorError as error:
                raise ValueError(f"{path} is not a sound safetensors file: {error}") from error
        return self._open[path]

    def __contains__(self, name: str) -> bool:
        return name in self._file

    def take(self, name: str, *shape: int) -> Tensor:
        """Return the tensor of that name. Raises ValueError if it is missing or has another shape."""
        if name not in self:
            raise ValueError(
                f"`{PREFIX}{name}` is missing in the weights of {self.directory}; "
                "does config.json belong to these weights?"
            )
        self._taken.add(name)
        tensor = self._opened(self._file[name]).get_tensor(self._raw[name])
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"`{self._raw[name]}` in {self._file[name]} must be {list(shape)}, "
                f"but is {list(tensor.shape)}; does config.json belong to these weights?"
            )
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise ValueError(
                f"`{self._raw[name]}` in {self._file[name]} must be a float tensor, but is "
                f"{tensor.dtype}; quantised weights are not supported"
            )
        return tensor

    def take_first(self, names: Sequence[str], *shape: int) -> Tensor:
        """Return the first of these names that the file has. A tied tensor has one of several names."""
        return self.take(next((name for name in names if name in self), names[0]), *shape)

    def num_rows(self, name: str) -> int:
        """Return the length of a tensor's first dimension. The tensor must exist."""
        return self._opened(self._file[name]).get_slice(self._raw[name]).get_shape()[0]

    def close(self) -> None:
        """Close the files. Raises ValueError if a tensor that matters was not taken."""
        left = sorted(set(self._file) - self._taken - set(HARMLESS))
        if left:
            raise ValueError(
                f"`{self._raw[left[0]]}` in {self._file[left[0]]} is not part of this model "
                f"({len(left)} such tensors); does config.json belong to these weights?"
            )
