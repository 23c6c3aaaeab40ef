"""Items of any form as ragged arrays: all tokens one after another, and where each item begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pybeam.catalogue.levels import Progress

# items of an iterable that are lists of Python at a time
CHUNK = 1 << 16
MAX_ITEMS = 2**31 - 1


class Ragged(NamedTuple):
    """Items [n] as arrays; item i is values[offsets[i] .. offsets[i + 1]]."""

    values: np.ndarray  # [T] int32
    offsets: np.ndarray  # [n + 1] int64


def ragged(items: Any, padding: int | None = None, report: Progress | None = None) -> Ragged:
    """Return items as ragged arrays.

    Args:
        items: see `pybeam.Catalogue.build`.
        padding: the id that fills lines of a table on the right.
        report: is told how many items have been read.

    Raises:
        TypeError: they are of no such form, or their tokens are no integers.
        ValueError: there is no item, one is empty, or a token is negative.
    """
    found = _of_arrays(items, padding)
    if found is None:
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise TypeError(
                "`items` must be a table, (values, offsets), an Arrow array of lists or an iterable of "
                f"lists of token ids, but is {items!r}"
            )
        found = _streamed(items, report)
    return _checked(found)


def _of_arrays(items: Any, padding: int | None) -> Ragged | None:
    """Items that are arrays already; None: they are not."""
    if type(items).__module__.partition(".")[0] == "pyarrow":
        return _of_arrow(items)
    if isinstance(items, Tensor | np.ndarray):
        return _of_table(_integers("items", items), padding)
    if isinstance(items, tuple) and len(items) == 2:
        if all(isinstance(part, Tensor | np.ndarray) for part in items):
            values, offsets = (_integers("items", part) for part in items)
            if values.ndim == 1 and offsets.ndim == 1:
                return Ragged(values, offsets.astype(np.int64))
    return None


def _integers(name: str, given: Tensor | np.ndarray) -> np.ndarray:
    array = given.cpu().numpy() if isinstance(given, Tensor) else given
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must hold token ids, which are integers, but is {array.dtype}")
    return array


def _of_table(table: np.ndarray, padding: int | None) -> Ragged:
    """The lines of a table [n, L], without the padding on their right."""
    if table.ndim != 2:
        raise ValueError(
            f"`items` must be a table [n, L] of token ids, but is {list(table.shape)}; give sequences of "
            "several lengths as (values, offsets), or padded"
        )
    is_token = table >= 0
    if padding is not None:
        is_token &= table != padding
    length = is_token.sum(1)
    if (is_token[:, 1:] > is_token[:, :-1]).any():
        line = int((is_token[:, 1:] > is_token[:, :-1]).any(1).argmax())
        raise ValueError(
            f"`items` must have padding on the right only, but item {line} is {table[line].tolist()}"
        )
    offsets = np.concatenate(([0], np.cumsum(length)))
    return Ragged(table[is_token] if not is_token.all() else table.reshape(-1), offsets)


def _of_arrow(items: Any) -> Ragged:
    """An Arrow array of lists, whole or in chunks."""
    import pyarrow as pa

    if isinstance(items, pa.ChunkedArray):
        items = items.combine_chunks()
        if isinstance(items, pa.ChunkedArray):
            items = pa.concat_arrays(items.chunks)
    if not isinstance(items, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        raise TypeError(f"`items` must be an Arrow array of lists, but is {items.type}")
    if items.null_count:
        raise ValueError(f"`items` must not hold null, but {items.null_count} are; leave them out")
    values = items.flatten()
    if not pa.types.is_integer(values.type):
        raise TypeError(f"`items` must hold lists of token ids, but of {values.type}")
    if isinstance(items, pa.FixedSizeListArray):
        offsets = np.arange(len(items) + 1, dtype=np.int64) * items.type.list_size
    else:
        offsets = items.offsets.to_numpy().astype(np.int64)
        # of a slice, whose values `flatten` has cut
        offsets = offsets - offsets[0]
    return Ragged(values.to_numpy(zero_copy_only=False), offsets)


def _streamed(items: Iterable[Any], report: Progress | None) -> Ragged:
    """Lists of any iterable, a chunk at a time, so that few of them are objects of Python at once."""
    values, lengths, source = [], [], iter(items)
    num = 0
    while chunk := list(islice(source, CHUNK)):
        try:
            lengths.append(np.fromiter(map(len, chunk), dtype=np.int64, count=len(chunk)))
            flat = list(chain.from_iterable(chunk))
            array = np.asarray(flat) if flat else np.zeros(0, dtype=np.int64)
        except TypeError as error:
            raise TypeError(
                f"`items` must hold lists of token ids, but number {num} to {num + len(chunk) - 1} do "
                f"not: {error}"
            ) from error
        # one int too large makes floats or objects of all
        if array.dtype.kind not in "iu":
            raise TypeError(
                f"`items` must hold lists of token ids, which are ints, but holds {flat[0]!r}"
            )
        _check_ids(array)
        values.append(array.astype(np.int32))
        num += len(chunk)
        if report is not None:
            report("read", num, 0)
    if not values:
        raise ValueError("`items` must hold at least one, but is empty")
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    return Ragged(np.concatenate(values), offsets)


def _check_ids(values: np.ndarray) -> None:
    if len(values) and not (int(values.min()) >= 0 and int(values.max()) < 2**31 - 1):
        wrong = int(values.min()) if values.min() < 0 else int(values.max())
        raise ValueError(f"`items` must hold token ids from 0 to 2**31 - 2, but holds {wrong}")


def _checked(found: Ragged) -> Ragged:
    values, offsets = found
    if len(offsets) < 2:
        raise ValueError("`items` must hold at least one, but is empty")
    if len(offsets) - 1 > MAX_ITEMS:
        raise ValueError(f"`items` must be at most {MAX_ITEMS:,}, but are {len(offsets) - 1:,}")
    if offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        raise ValueError(
            f"`offsets` must ascend from 0 to {len(values)}, the number of tokens, but go from "
            f"{offsets[0]} to {offsets[-1]}"
        )
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty):
        raise ValueError(
            f"`items` must not be empty, but number {empty[0]} is, and {len(empty)} are in all; leave "
            "them out"
        )
    _check_ids(values)
    return Ragged(np.ascontiguousarray(values, dtype=np.int32), offsets)


def encoded(texts: Iterable[str], encode: Callable[[str], list[int]]) -> Iterator[list[int]]:
    """Yield the ids of texts, which `encode` makes of each."""
    for i, text in enumerate(texts):
        tokens = encode(text)
        if not tokens:
            raise ValueError(f"`texts` must have tokens, but number {i} is {text!r}; leave it out")
        yield tokens
