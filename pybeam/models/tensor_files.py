"""Files of named tensors, in the format of safetensors: read and written a few rows at a time.

A file that is mapped into memory stays resident as far as it has been read. Here a tensor occupies memory
only while somebody holds it, so that loading needs little more than what is kept. A table that is only
looked up is mapped: what nobody looks up need not be in memory.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pybeam.text.model_files import regular_file

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# of a few rows, so large that calls cost little and so small that no model notices the memory
CHUNK_BYTES = 1 << 18
# of the number that says how long the header is
PREFIX_BYTES = 8


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in a file."""

    path: Path
    dtype: torch.dtype | str  # the format's name, if no dtype above
    shape: tuple[int, ...]
    begin: int  # of its bytes

    def read(self, rows: slice = slice(None)) -> Tensor:
        """Read the tensor, or some rows of it, into memory of its own."""
        assert isinstance(self.dtype, torch.dtype)
        first, last, _ = rows.indices(self.shape[0] if self.shape else 1)
        shape = (last - first, *self.shape[1:]) if self.shape else ()
        out = torch.empty(shape, dtype=self.dtype)
        self.read_into(out, first)
        return out

    def read_into(self, out: Tensor, first: int = 0) -> None:
        """Read rows from `first` on, as many as `out` has. It has the tensor's dtype and is contiguous."""
        assert out.dtype == self.dtype and out.is_contiguous()
        with open(self.path, "rb") as file:
            file.seek(self.begin + first * math.prod(self.shape[1:]) * out.itemsize)
            file.readinto(out.view(-1).view(torch.uint8).numpy().data)

    def mapped(self) -> Tensor | None:
        """Return the tensor as memory that the system fills from the file when somebody looks at it.

        Nobody may write into the file meanwhile. A new file may take its name. None: the numbers do not lie
        at whole addresses.
        """
        assert isinstance(self.dtype, torch.dtype)
        if self.begin % self.dtype.itemsize:
            return None
        before = self.begin % mmap.ALLOCATIONGRANULARITY
        size, place = before + math.prod(self.shape) * self.dtype.itemsize, self.begin - before
        with open(self.path, "rb") as file:
            # a copy of what is written to, so that the file stays as it is
            memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=place)
        return torch.frombuffer(memory, dtype=self.dtype, offset=before).view(self.shape)

    def chunks(self) -> Iterator[slice]:
        """Yield slices of rows that take about `CHUNK_BYTES` each."""
        assert isinstance(self.dtype, torch.dtype)
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        num = max(1, CHUNK_BYTES // max(1, row_bytes))
        for first in range(0, self.shape[0], num):
            yield slice(first, min(first + num, self.shape[0]))


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Read the header of a file: what it holds, by name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no regular file, or no sound safetensors file.
    """
    regular_file(path)
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{path} is not a sound safetensors file: {error}") from error
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(PREFIX_BYTES), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    start = PREFIX_BYTES + size
    return {
        name: StoredTensor(
            path,
            DTYPES.get(entry["dtype"], entry["dtype"]),
            tuple(entry["shape"]),
            start + entry["data_offsets"][0],
        )
        for name, entry in header.items()
    }


class TensorWriter:
    """Writes a file of tensors with these dtypes and shapes, some rows at a time, in any order."""

    def __init__(
        self, path: Path, shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    ) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._begin: dict[str, int] = {}
        end = 0
        # numbers begin at a multiple of their size
        for name in sorted(shapes, key=lambda name: -shapes[name][0].itemsize):
            dtype, shape = shapes[name]
            begin, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
            self._begin[name] = begin
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % PREFIX_BYTES)
        self._start = PREFIX_BYTES + len(text)
        self._file = open(path, "wb")
        self._file.write(len(text).to_bytes(PREFIX_BYTES, "little") + text)
        self._file.truncate(self._start + end)

    def write(self, name: str, rows: Tensor, first: int = 0) -> None:
        """Write rows of a tensor, from the row `first` on."""
        row_bytes = rows[0].nbytes if rows.ndim and len(rows) else 0
        self._file.seek(self._start + self._begin[name] + first * row_bytes)
        self._file.write(rows.contiguous().view(-1).view(torch.uint8).numpy().data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
