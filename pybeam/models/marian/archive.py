"""`model.npz`: arrays of numpy behind their names, in a zip file."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
import torch

from pybeam.models.tensor_files import StoredTensor
from pybeam.text.needed_files import needed_file
from pybeam.text.yaml_files import MAX_SETTINGS_BYTES, Settings
from pybeam.text.zip_files import plain_parts

DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
# how Marian was trained
MODEL_SETTINGS = "special:model.yml"
# before a part's bytes: 26 bytes, the lengths of its name and of an extra field, and both
PART_HEADER = struct.Struct("<26xHH")


def stored_arrays(path: Path) -> tuple[dict[str, StoredTensor], Settings]:
    """Read where each array lies, and the settings of the training.

    Nothing is unpickled: an array of objects is refused as one of an unknown type is.

    Raises:
        ValueError: the file is missing or not sound, or its settings are.
    """
    needed_file(path)
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                parts = plain_parts(archive, path.stat().st_size)
            found = {part.filename.removesuffix(".npy"): _array(path, file, part) for part in parts}
        # damaged files can be odd in many ways
        except Exception as error:
            raise ValueError(f"{path} is not a sound file of numpy arrays: {error}") from error
    settings = found.pop(MODEL_SETTINGS, None)
    if settings is None or settings.dtype != torch.int8 or len(settings.shape) != 1:
        raise ValueError(
            f"{path} must have the settings of Marian's training as `{MODEL_SETTINGS}`; did Marian write it?"
        )
    if settings.shape[0] > MAX_SETTINGS_BYTES:
        raise ValueError(
            f"`{MODEL_SETTINGS}` in {path} must have at most {MAX_SETTINGS_BYTES:,} bytes, but has "
            f"{settings.shape[0]:,}"
        )
    where = f"`{MODEL_SETTINGS}` in {path}"
    content = settings.read().numpy().tobytes().rstrip(b"\0").decode("utf-8", "replace")
    return found, Settings(where, content)


def _array(path: Path, file: IO[bytes], part: zipfile.ZipInfo) -> StoredTensor:
    """Read the header of an array. Raises ValueError if it is not in order of rows, or not whole."""
    file.seek(part.header_offset)
    begin = part.header_offset + PART_HEADER.size
    begin += sum(PART_HEADER.unpack(file.read(PART_HEADER.size)))
    file.seek(begin)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"{part.filename} is of version {version}, which should be (1, 0)")
    shape, is_turned, dtype = np.lib.format.read_array_header_1_0(file)
    known = DTYPES.get(dtype.name) if dtype.isnative else None
    if known is None or (is_turned and len(shape) > 1):
        raise ValueError(
            f"{part.filename} must have numbers of {', '.join(DTYPES)}, row by row, but has {dtype}"
        )
    num_bytes = min(begin + part.file_size, os.fstat(file.fileno()).st_size) - file.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * known.itemsize != num_bytes:
        raise ValueError(
            f"{part.filename} must have {list(shape)} numbers, but has {num_bytes} bytes"
        )
    return StoredTensor(path, known, tuple(shape), file.tell())
