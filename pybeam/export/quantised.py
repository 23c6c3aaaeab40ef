"""`quantize`: write a model directory with int8 weights, which loads without the original."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

from pybeam.backends.packing import quantise
from pybeam.export.folders import check_output, complete_folder, other_files
from pybeam.models.checkpoint import QUANTISATION, SCALE, Checkpoint, is_quantised
from pybeam.models.foreign import loader_of
from pybeam.models.loading import load_checkpoint
from pybeam.models.onnx import DECODER
from pybeam.models.tensor_files import TensorWriter
from pybeam.text.json_files import read_json

if TYPE_CHECKING:
    from pybeam.models.tensor_files import StoredTensor


def quantize(
    directory: str | os.PathLike[str], output: str | os.PathLike[str], *, progress: bool = False
) -> None:
    """Write a model directory with int8 weights; `pybeam.load_model(output)` needs no other file.

    It is the model that ``load_model(directory, dtype="int8")`` makes, to the last bit. Matrices, token
    tables and convolutions W become ``q = round(W / scale)`` in int8, -127 to 127, with
    ``scale = max |W| / 127`` in float32 for every output. ``model.safetensors`` holds q under the name of W
    and the scales under that name with ``.scale`` behind it. All other tensors stay as they are, tensors
    that the model does not use are left out, and ``config.json`` gets a `quantization_config`. All other
    files are copied, but not folders and other formats of weights. docs/reference/int8.md has the layout.

    Args:
        directory: a directory that `load_model` takes, of a transformer or an LSTM.
        output: a directory that does not exist, or is empty. It appears when it is complete.
        progress: whether to show a progress bar on stderr.

    Raises:
        FileNotFoundError: the directory does not exist.
        ValueError: it holds no such model, or one that is quantised already, or `output` is not empty.
    """
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
    if is_quantised(source):
        raise ValueError(f"{source} is quantised already; load it as it is")
    # the model itself says which tensors are matrices, and that all of them are sound
    _, checkpoint = load_checkpoint(source, torch.device("cpu"), torch.int8)
    with complete_folder(target) as unfinished:
        for path in other_files(source):
            shutil.copyfile(path, unfinished / path.name)
        config = read_json(source / "config.json") | {"quantization_config": QUANTISATION}
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (unfinished / "config.json").write_text(text, encoding="utf-8")
        _write_weights(checkpoint, unfinished / "model.safetensors", progress)


def _write_weights(checkpoint: Checkpoint, path: Path, progress: bool) -> None:
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name in sorted(checkpoint.taken):
        stored, raw = checkpoint.stored[name], checkpoint.raw[name]
        assert isinstance(stored.dtype, torch.dtype)
        shape = stored.shape[::-1] if name in checkpoint.transposed else stored.shape
        shapes[raw] = (torch.int8 if name in checkpoint.matrices else stored.dtype), shape
        if name in checkpoint.matrices:
            shapes[raw + SCALE] = torch.float32, shape[:1]
    writer = TensorWriter(path, shapes)
    names = tqdm(sorted(checkpoint.taken), unit="tensor", disable=not progress, dynamic_ncols=True)
    try:
        for name in names:
            stored, raw = checkpoint.stored[name], checkpoint.raw[name]
            if name in checkpoint.transposed:
                q, scale = quantise(stored.read().t().contiguous())
                writer.write(raw, q)
                writer.write(raw + SCALE, scale)
            elif name in checkpoint.matrices:
                _write_matrix(writer, raw, stored)
            else:
                writer.write(raw, stored.read())
    finally:
        writer.close()


def _write_matrix(writer: TensorWriter, raw: str, stored: StoredTensor) -> None:
    for rows in stored.chunks():
        q, scale = quantise(stored.read(rows))
        writer.write(raw, q, rows.start)
        writer.write(raw + SCALE, scale, rows.start)
