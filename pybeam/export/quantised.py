"""`quantize`: write a model directory with int8 or int4 weights, which loads without the original."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

from pybeam.arguments import ArgumentError
from pybeam.backends.int4 import fold, quantise_groups
from pybeam.backends.packing import INTEGERS, quantise
from pybeam.export.folders import check_output, complete_folder, other_files
from pybeam.models.checkpoint import QUANTISATIONS, SCALE, Checkpoint, quantised_dtype
from pybeam.models.foreign import loader_of
from pybeam.models.loading import DTYPES, load_checkpoint
from pybeam.models.onnx import DECODER
from pybeam.models.tensor_files import TensorWriter
from pybeam.text.json_files import read_json

if TYPE_CHECKING:
    from torch import Tensor

    from pybeam.models.tensor_files import StoredTensor


def quantize(
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype = "int8",
    progress: bool = False,
) -> None:
    """Write a model directory with int8 or int4 weights; `pybeam.load_model(output)` needs no other file.

    It is the model that ``load_model(directory, dtype=dtype)`` makes, to the last bit. In int8, matrices,
    token tables and convolutions W become ``q = round(W / scale)``, -127 to 127, with
    ``scale = max |W| / 127`` in float32 for every output. ``model.safetensors`` holds q under the name of W
    and the scales under that name with ``.scale`` behind it. All other tensors stay as they are, tensors
    that the model does not use are left out, and ``config.json`` gets a `quantization_config`. All other
    files are copied, but not folders and other formats of weights. In int4, the matrices of layers have q of
    -8 to 7, two in a byte, with a scale in bfloat16 for each 32 weights of an output; the rest is as in int8.
    docs/reference/int8.md has the layout.

    Args:
        directory: a directory that `load_model` takes, of a transformer or an LSTM.
        output: a directory that does not exist, or is empty. It appears when it is complete.
        dtype: "int8", "int4", or the `torch.dtype` of that name.
        progress: whether to show a progress bar on stderr.

    Raises:
        FileNotFoundError: the directory does not exist.
        ValueError: it holds no such model, or one that is quantised already, or `output` is not empty, or
            the dtype is another one.
    """
    wanted = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if wanted not in INTEGERS:
        raise ArgumentError("dtype", f"must be 'int8' or 'int4', but is {dtype!r}")
    source, target = Path(directory), Path(output)
    check_output(target)
    if (source / DECODER).exists():
        raise ValueError(
            f"{source} holds ONNX graphs; quantise the directory that they were exported from"
        )
    if loader_of(source) is not None:
        raise ValueError(
            f"{source} is a folder of CTranslate2 or Marian, which is read as it is; load it with "
            "dtype='int8', or quantise the folder that it was converted from"
        )
    if quantised_dtype(source):
        raise ValueError(f"{source} is quantised already; load it as it is")
    # the model itself says which tensors are matrices, and that all of them are sound
    _, checkpoint = load_checkpoint(source, torch.device("cpu"), wanted)
    with complete_folder(target) as unfinished:
        for path in other_files(source):
            shutil.copyfile(path, unfinished / path.name)
        config = read_json(source / "config.json")
        config["quantization_config"] = QUANTISATIONS[wanted]
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (unfinished / "config.json").write_text(text, encoding="utf-8")
        _write_weights(checkpoint, unfinished / "model.safetensors", progress)


def _write_weights(checkpoint: Checkpoint, path: Path, progress: bool) -> None:
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name in sorted(checkpoint.taken):
        stored, raw = checkpoint.stored[name], checkpoint.raw[name]
        assert isinstance(stored.dtype, torch.dtype)
        shapes[raw] = stored.dtype, stored.shape
        if name in checkpoint.matrices:
            shape = stored.shape[::-1] if name in checkpoint.transposed else stored.shape
            # one row has the dtypes and the shapes of all
            for part, own in _integers(
                torch.zeros(1, *shape[1:]), checkpoint.matrices[name]
            ).items():
                shapes[raw + part] = own.dtype, (shape[0], *own.shape[1:])
    writer = TensorWriter(path, shapes)
    names = tqdm(sorted(checkpoint.taken), unit="tensor", disable=not progress, dynamic_ncols=True)
    try:
        for name in names:
            stored, raw = checkpoint.stored[name], checkpoint.raw[name]
            if name in checkpoint.matrices:
                is_turned = name in checkpoint.transposed
                _write_matrix(writer, raw, stored, checkpoint.matrices[name], is_turned)
            else:
                writer.write(raw, stored.read())
    finally:
        writer.close()


def _integers(weight: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return what stands for W [out, ...] in a file, by the ends of their names."""
    if dtype == torch.int8:
        q, scale = quantise(weight)
        return {"": q, SCALE: scale}
    q, scale = quantise_groups(weight)
    return {"": fold(q), SCALE: scale}


def _write_matrix(
    writer: TensorWriter, raw: str, stored: StoredTensor, dtype: torch.dtype, is_turned: bool
) -> None:
    for rows in [slice(0, None)] if is_turned else stored.chunks():
        part = stored.read(rows)
        for end, own in _integers(part.t().contiguous() if is_turned else part, dtype).items():
            writer.write(raw + end, own, rows.start)
