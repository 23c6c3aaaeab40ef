"""`Filter`: the items of a catalogue that a request may return."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.catalogue.bits import NodeBits

# fewer numbers than this share of all are sorted; more are marked in an array of all
FEW = 1 / 64


class Filter:
    """Which items a request may return, made by `pybeam.Catalogue.filter` once for any number of requests.

    A search enters a node of the tree only if an allowed item is there or below, so every row of a beam can
    go on to an allowed item.

    Attributes:
        catalogue: whose items it filters.
        num_items: allowed items.
        num_sequences: their different token sequences. A result has no more hypotheses than that.
        words: [2 * W] int32 on the host, a bit per node: is an allowed item there or below; then a bit per
            node: does an allowed item end there.
    """

    def __init__(
        self,
        catalogue: object,
        bits: NodeBits,
        ids: np.ndarray,
        counts: tuple[int, int],
        *,
        are_allowed: bool,
    ) -> None:
        self.catalogue = catalogue
        self.num_items, self.num_sequences = counts
        self._ids, self._are_allowed = ids, are_allowed  # ascending: what is allowed, or denied
        self.words: Tensor = torch.from_numpy(bits.words())

    def __repr__(self) -> str:
        return f"Filter({self.num_items:,} items)"

    def allowed(self, items: np.ndarray) -> np.ndarray:
        """Return those of these items [n] that are allowed."""
        if not len(self._ids):
            return items[:0] if self._are_allowed else items
        place = np.searchsorted(self._ids, items.astype(self._ids.dtype)).clip(
            max=len(self._ids) - 1
        )
        return items[(self._ids[place] == items) == self._are_allowed]


def chosen_items(name: str, given: Any, num_items: int) -> np.ndarray:
    """Return items as ascending ids [n].

    Args:
        name: of the argument.
        given: ids in any iterable, tensor or array; a bool for every item; a slice of ids.
        num_items: items of the catalogue.

    Raises:
        TypeError, ValueError: it is none of these, or an id is out of range.
    """
    if isinstance(given, slice):
        given = range(*given.indices(num_items))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            f"`{name}` must be ids of items, a slice of them or a bool for each, but is {given!r}"
        )
    if isinstance(given, Tensor):
        given = given.cpu().numpy()
    array = np.asarray(given if isinstance(given, np.ndarray | list | range) else list(given))
    if array.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension, but is {list(array.shape)}")
    if array.dtype == bool:
        if len(array) != num_items:
            raise ValueError(
                f"`{name}` must have a bool for each of {num_items:,} items, but has {len(array):,}"
            )
        return np.flatnonzero(array)
    if not len(array):
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must hold ids of items, which are ints, but is {array.dtype}")
    if array.min() < 0 or array.max() >= num_items:
        wrong = int(array.min() if array.min() < 0 else array.max())
        raise ValueError(f"`{name}` must hold ids from 0 to {num_items - 1}, but holds {wrong}")
    return distinct(array, num_items)


def distinct(numbers: np.ndarray, num: int) -> np.ndarray:
    """Return the different ones of these numbers [n] below `num`, ascending."""
    if len(numbers) < FEW * num:
        return np.unique(numbers)
    is_there = np.zeros(num, dtype=bool)
    is_there[numbers] = True
    return np.flatnonzero(is_there)
