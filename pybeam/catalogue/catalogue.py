"""`Catalogue`: the outputs that a search may give, and which items they are."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.torch_automata import ROOT
from pybeam.catalogue import filters, storage
from pybeam.catalogue.filters import Filter
from pybeam.catalogue.levels import Built, Progress, build
from pybeam.catalogue.ragged import Ragged, encoded, ragged
from pybeam.text.tokenizer import Tokenizer


class Catalogue:
    """Token sequences, each of which is one item or several. A search returns nothing else.

    `pybeam.catalogue.allowed_items` puts it into an algorithm. It does not change, and any number of
    decoders and threads may share it. It takes 8 bytes per edge of the tree, and less at the deepest level,
    beside 4 bytes for each item and each sequence.

    `build`, `from_texts`, `from_parquet` and `load` make one.

    Args:
        built: the arrays.
        path: the file that they are mapped from, if there is one.

    Raises:
        TypeError: `built` is something else, such as items.

    Attributes:
        num_items: items; their ids are 0 to num_items - 1, in the order in which they were given.
        num_sequences: different token sequences among them.
        shortest, longest: tokens of a sequence, without EOS.
        max_children: tokens that may follow one beginning, at most.
    """

    def __init__(self, built: Built, path: str | None = None) -> None:
        if not isinstance(built, Built):
            raise TypeError(
                f"`built` must be arrays, but is a {type(built).__name__}; `Catalogue.build(items)` makes a "
                "catalogue of items"
            )
        self._built, self._levels, self._path = built, built.levels, path
        self.num_items, self.num_sequences = len(built.items), len(built.levels.end)
        self.longest = len(built.levels.start) - 2
        first_end = built.levels.end[0]
        self.shortest = int(np.searchsorted(built.levels.start, first_end, side="right")) - 1
        self.max_children = int(np.diff(built.levels.first).max())
        self._asked: dict[int, bool] = {}  # the tokens that `has_token` was asked about

    @classmethod
    def build(
        cls, items: Any, *, padding: int | None = None, progress: Progress | None = None
    ) -> Catalogue:
        """Build a catalogue of token sequences without EOS.

        Args:
            items: one of:

                - a table [n, L] of ids, a numpy array or a tensor; negative ids and `padding` fill lines on
                  the right;
                - ``(values [T], offsets [n + 1])``, arrays or tensors: item i is
                  ``values[offsets[i]:offsets[i + 1]]``;
                - an Arrow array of lists, whole or in chunks;
                - any iterable of lists of ids, which is read once.
            padding: an id that fills lines of a table.
            progress: a function that is told what is done, how much of it, and of how much (0: unknown).

        Raises:
            TypeError, ValueError: they are of no such form, there is none, or one is empty.
        """
        return cls(build(*ragged(items, padding, progress), progress))

    @classmethod
    def from_texts(
        cls, texts: Iterable[str], tokenizer: Tokenizer, *, progress: Progress | None = None
    ) -> Catalogue:
        """Build a catalogue of texts, as `Tokenizer.encode_target` splits them.

        Raises:
            TypeError: `texts` is one text.
            ValueError: a text has no token, or there is none.
        """
        if isinstance(texts, str):
            raise TypeError(
                "`texts` must be an iterable of texts, but is one text; put it into a list"
            )
        return cls.build(encoded(texts, tokenizer.encode_target), progress=progress)

    @classmethod
    def from_parquet(
        cls, path: str | os.PathLike[str], column: str, *, progress: Progress | None = None
    ) -> Catalogue:
        """Build a catalogue of a Parquet file's column of lists. It needs pyarrow.

        Raises:
            ValueError: the file cannot be read, there is no such column, or it does not hold lists of ids.
        """
        from pyarrow import ArrowException, parquet

        parts = []
        try:
            file = parquet.ParquetFile(path)
            if column not in file.schema_arrow.names:
                raise ValueError(
                    f"`column` must be one of {file.schema_arrow.names} in {path}, but is {column!r}"
                )
            for batch in file.iter_batches(columns=[column]):
                parts.append(_column(batch.column(0), f"column {column!r} of {path}"))
                if progress is not None:
                    progress("read", sum(len(p.offsets) - 1 for p in parts), file.metadata.num_rows)
        # names of columns may be no UTF-8
        except (ArrowException, OSError, UnicodeError) as error:
            raise ValueError(f"{path} is no sound Parquet file: {error}") from error
        if not parts:
            raise ValueError(f"{path} must have lines, but has none")
        sizes = np.cumsum([0, *(len(part.values) for part in parts)])
        offsets = [p.offsets[:-1] + size for p, size in zip(parts, sizes[:-1], strict=True)]
        values = np.concatenate([part.values for part in parts])
        return cls(build(values, np.concatenate([*offsets, sizes[-1:]]), progress))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Catalogue:
        """Map a catalogue that `save` has written into memory, after checking sizes and ids.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no catalogue, of another version, or not sound.
        """
        return cls(storage.read(path), os.path.abspath(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the catalogue to `path`, as a safetensors file."""
        storage.write(path, self._built)

    def __reduce__(self) -> tuple[Any, ...]:
        # processes of one machine share the pages of a file
        if self._path is not None:
            return Catalogue.load, (self._path,)
        return Catalogue, (self._built,)

    def __len__(self) -> int:
        return self.num_items

    def __repr__(self) -> str:
        lengths = {self.shortest, self.longest}
        return (
            f"Catalogue({self.num_items:,} items, {self.num_sequences:,} sequences of "
            f"{' to '.join(map(str, sorted(lengths)))} tokens, {self.num_bytes / 1e6:.1f} MB)"
        )

    @property
    def num_bytes(self) -> int:
        """The bytes of all arrays, in memory and in a file."""
        arrays = (*self._levels, self._built.items, self._built.first_item)
        return sum(array.nbytes for array in arrays)

    @property
    def num_edges(self) -> int:
        """Edges of the tree: different beginnings, whole sequences included."""
        return len(self._levels.token)

    def items_of(self, tokens: Sequence[int], filter: Filter | None = None) -> tuple[int, ...]:
        """Return the ids of the items that are these `tokens`, ascending; () if there is none.

        With a `filter`, only those that it allows.
        """
        items = self._items_of(tokens)
        if filter is None:
            return tuple(items)
        return tuple(filter.allowed(np.asarray(items, dtype=np.int32)).tolist())

    def _items_of(self, tokens: Sequence[int]) -> Sequence[int]:
        token, first, end, items, first_item = self._views
        node, num_inner = ROOT, len(first) - 1
        for one in tokens:
            if node >= num_inner:
                return ()
            last = first[node + 1]
            edge = bisect_left(token, one, first[node], last)
            if edge == last or token[edge] != one:
                return ()
            node = edge + 1
        place = bisect_left(end, node)
        if place == len(end) or end[place] != node:
            return ()
        return items[first_item[place] : first_item[place + 1]]

    @cached_property
    def _views(self) -> tuple[memoryview, ...]:
        # numbers of an array are objects of numpy, which are slow to compare
        levels, built = self._levels, self._built
        arrays = levels.token, levels.first, levels.end, built.items, built.first_item
        return tuple(array.data for array in arrays)

    def filter(self, *, allow: Any = None, deny: Any = None) -> Filter:
        """Return a filter for `pybeam.catalogue.allowed_items`.

        A sequence is allowed if one of its items is. A few allowed or denied items take a moment, many take
        time in proportion to the catalogue, once for all requests that use the filter.

        Args:
            allow: ids of the items that are allowed, a bool for every item, or a slice of ids, such as those
                of a category; None: all.
            deny: the same for items that are not allowed; it wins over `allow`.

        Raises:
            TypeError, ValueError: an id is none.
        """
        none = self._built.items[:0]
        denied = none if deny is None else filters.chosen_items("deny", deny, self.num_items)
        if allow is None:
            places, counts = np.unique(self._sequence_of[denied], return_counts=True)
            first_item = self._built.first_item
            lost = places[counts == first_item[places + 1] - first_item[places]]
            node_bits = filters.bits_without(self._levels, self._every_bits, lost)
            left = self.num_items - len(denied), self.num_sequences - len(lost)
            return Filter(self, node_bits, denied, left, are_allowed=False)
        allowed = filters.chosen_items("allow", allow, self.num_items)
        if len(denied):
            allowed = np.setdiff1d(allowed, denied, assume_unique=True)
        sequences = filters.distinct(self._sequence_of[allowed], self.num_sequences)
        node_bits = filters.bits_of(self._levels, sequences)
        left = len(allowed), len(sequences)
        return Filter(self, node_bits, allowed, left, are_allowed=True)

    @cached_property
    def everything(self) -> Filter:
        """The filter that allows all items."""
        left = self.num_items, self.num_sequences
        return Filter(self, self._every_bits, self._built.items[:0], left, are_allowed=False)

    @cached_property
    def _every_bits(self) -> filters.NodeBits:
        return filters.bits_of_all(self._levels)

    @cached_property
    def _sequence_of(self) -> np.ndarray:
        """[n] int32, the sequence of every item."""
        sequence = np.empty(self.num_items, dtype=np.int32)
        sizes = np.diff(self._built.first_item)
        sequence[self._built.items] = np.repeat(
            np.arange(self.num_sequences, dtype=np.int32), sizes
        )
        return sequence

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The tokens [E] and the first edges [F + 1] of `Levels`, int32 on the host, not copied."""
        return torch.from_numpy(self._levels.token), torch.from_numpy(self._levels.first)

    @cached_property
    def token_range(self) -> tuple[int, int]:
        """The smallest and the largest token."""
        return int(self._levels.token.min()), int(self._levels.token.max())

    def has_token(self, token: int) -> bool:
        """Whether the token is in some sequence."""
        # each request asks about the same few, those of EOS
        if token not in self._asked:
            self._asked[token] = bool((self._levels.token == token).any())
        return self._asked[token]


def _column(array: Any, place: str) -> Ragged:
    """The items of an Arrow array. Raises what `ragged` raises, with the place."""
    try:
        return ragged(array)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error} ({place})") from error
