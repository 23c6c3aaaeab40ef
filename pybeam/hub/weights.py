"""The memory that the weights of a folder take, as far as the headers of their files say."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from pybeam.models.checkpoint import SCALE, TIED, Checkpoint
from pybeam.models.ctranslate2.binary import Binary
from pybeam.models.foreign import refuse_foreign
from pybeam.models.marian.archive import stored_arrays
from pybeam.models.onnx import DECODER
from pybeam.models.tensor_files import StoredTensor
from pybeam.text.ctranslate2 import is_ctranslate2
from pybeam.text.marian import is_marian, read_words

# bytes of a weight of a matrix that is a float in the file; in int4, 32 weights share a scale of two bytes
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "int8": 1, "int4": 0.5 + 2 / 32, "float8_e4m3fn": 1}
# of a number that is computed with
FLOAT_BYTES = 4


def weight_bytes(folder: str | os.PathLike[str], dtype: str = "auto") -> int:
    """Return about how many bytes the weights of a folder take in memory. Headers alone are read.

    Keys, values, and tables that follow from a formula are not counted.

    Args:
        folder: the model; see `pybeam.load_model`.
        dtype: of the weights; see there.

    Raises:
        FileNotFoundError, ValueError: a file is missing or not sound.
    """
    path = Path(folder)
    if (path / DECODER).exists():
        return sum(one.stat().st_size for one in path.glob("*.onnx*"))
    return math.ceil(sum(_bytes(name, one, dtype) for name, one in _stored(path).items()))


def _stored(folder: Path) -> Mapping[str, StoredTensor]:
    if is_ctranslate2(folder):
        return Binary(folder).tensors
    if is_marian(folder):
        return stored_arrays(read_words(folder).model)[0]
    if not (folder / "config.json").exists():
        refuse_foreign(folder)
    return Checkpoint(folder).stored


def _bytes(name: str, stored: StoredTensor, dtype: str) -> float:
    own, num = stored.dtype, math.prod(stored.shape)
    is_float = isinstance(own, torch.dtype) and own.is_floating_point
    size = own.itemsize if isinstance(own, torch.dtype) else FLOAT_BYTES
    if not is_float:
        # what is quantised stays so, or becomes the floats that it stands for
        return num * (size if dtype in ("auto", "int8", "int4") else ITEM_BYTES.get(dtype, 4))
    if dtype in ITEM_BYTES and len(stored.shape) > 1 and not name.endswith(SCALE):
        # tables of tokens have 8 bits
        is_table = dtype == "int4" and name in TIED
        return num * (1 if is_table else ITEM_BYTES[dtype])
    # floats of fewer bits are kept as they are
    return num * min(size, FLOAT_BYTES)
