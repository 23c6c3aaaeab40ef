"""Statistics of features in Kaldi's matrix format, and what they say about normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pybeam.text.model_files import MAX_TEXT_BYTES, regular_file

# what a binary file begins with, and the types of its numbers
BINARY = b"\0B"
TYPES: dict[bytes, np.dtype[Any]] = {b"FM ": np.dtype("<f4"), b"DM ": np.dtype("<f8")}
# of a type, and of two sizes with the number of their bytes before each
TYPE_BYTES, SIZES_BYTES = 3, 10
SMALLEST_VARIANCE = 1e-20


def read_matrix(path: Path) -> np.ndarray:
    """Read a matrix of floats, as Kaldi's `copy-matrix` writes it, binary or as text.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it holds something else.
    """
    content = regular_file(path, MAX_TEXT_BYTES).read_bytes()
    try:
        return _binary(content) if content.startswith(BINARY) else _text(content)
    except ValueError as error:
        raise ValueError(
            f"{path} must be a matrix of Kaldi, binary (float or double) or text: {error}"
        ) from error


def _binary(content: bytes) -> np.ndarray:
    first = len(BINARY) + TYPE_BYTES
    kind, sizes = content[len(BINARY) : first], content[first : first + SIZES_BYTES]
    if kind not in TYPES:
        raise ValueError(f"its type is {kind!r}")
    if len(sizes) < SIZES_BYTES or sizes[0] != 4 or sizes[5] != 4:
        raise ValueError("it has no sizes")
    rows, columns = (int.from_bytes(sizes[i : i + 4], "little", signed=True) for i in (1, 6))
    numbers = content[first + SIZES_BYTES :]
    if min(rows, columns) < 0 or len(numbers) != rows * columns * TYPES[kind].itemsize:
        raise ValueError(f"it has {len(numbers)} bytes for {rows} x {columns} numbers")
    return np.frombuffer(numbers, TYPES[kind]).reshape(rows, columns)


def _text(content: bytes) -> np.ndarray:
    text = content.decode("ascii").strip()
    if not text.startswith("[") or not text.endswith("]"):
        raise ValueError("it is not in brackets")
    lines = [line.split() for line in text[1:-1].splitlines() if line.strip()]
    # in float32, as FireRedASR's reader (kaldiio) takes a text
    return np.array([[float(number) for number in line] for line in lines], np.float32)


def normalisation(path: Path, num_features: int) -> tuple[list[float], list[float]]:
    """Read the mean of every feature, and 1 over its deviation, from sums, squares and their number.

    The matrix has two rows: sums of each feature and the number of frames, sums of squares and anything.
    Variances are at least 1e-20.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it holds something else.
    """
    statistics = read_matrix(path)
    if statistics.shape != (2, num_features + 1):
        raise ValueError(
            f"{path} must be 2 x {num_features + 1}, sums and their number for {num_features} features, "
            f"but is {' x '.join(map(str, statistics.shape))}"
        )
    # in the file's own precision, as the models were trained
    count = statistics[0, -1]
    if not np.isfinite(statistics[:, :-1]).all() or not count >= 1:
        raise ValueError(f"{path} must hold finite sums of at least one frame, but does not")
    mean = statistics[0, :-1] / count
    variance = statistics[1, :-1] / count - mean * mean
    deviation = np.sqrt(variance.astype(np.float64).clip(min=SMALLEST_VARIANCE))
    return mean.astype(np.float64).tolist(), (1.0 / deviation).tolist()
