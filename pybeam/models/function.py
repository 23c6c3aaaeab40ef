"""`FunctionModel`: any Python function of prefixes, for tests, toys and transition systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pybeam import arguments, backends
from pybeam.backends import Backend
from pybeam.models.base import Model, Session
from pybeam.models.rows import Rows


class FunctionModel(Model):
    """A model that is a function ``fn(prefixes, lengths, source_ids) -> logits``.

    ``prefixes`` [R, T] int64 begin with `bos_id` and are padded with -1 on the right. ``lengths`` [R] count
    `bos_id` too. ``source_ids`` [R] are the positions of the rows' requests in the list given to `decode`, or
    `Request.source_id`. The function returns [R, vocab_size] of a float dtype. The reference backend keeps
    float64, the others round it to float32. A source may be anything. Its length is ``len(source)``, or 1.

    Args:
        fn: as above.
        vocab_size: number of logits per row.
        bos_id: the first token of every prefix, any id from 0 on.
        eos_id: the token that ends a hypothesis, or up to 8 of them.

    Raises:
        TypeError, ValueError: `fn` is no function, or an id or size is out of range. In a step: `fn`
            returned no such tensor.
    """

    max_positions = None
    device = torch.device("cpu")

    def __init__(
        self,
        fn: Callable[[Tensor, Tensor, Tensor], Tensor],
        vocab_size: int,
        bos_id: int,
        eos_id: int | Sequence[int],
    ) -> None:
        if not callable(fn):
            raise TypeError(f"`fn` must be a function, but is {type(fn).__name__}")
        if vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1, but is {vocab_size}")
        if bos_id < 0:
            raise ValueError(f"`bos_id` must not be negative, but is {bos_id}")
        self.eos_id, *others = arguments.eos_ids(eos_id, vocab_size)
        self.other_eos_ids = tuple(others)
        self.fn, self.vocab_size, self.start_id = fn, vocab_size, bos_id

    def session(self, backend: Backend) -> FunctionSession:
        """Make a fresh session that computes with this backend module."""
        return FunctionSession(self, backend)

    def check(self, source: Any) -> Any:
        """Return the source as it is."""
        return source

    def source_length(self, source: Any) -> int:
        """Return `len(source)` if the source has a length, else 1."""
        return len(source) if hasattr(source, "__len__") else 1


class FunctionSession(Session):
    """Remember which request has which slot. Prefixes are read from the token tree."""

    def __init__(self, model: FunctionModel, backend: Backend) -> None:
        self._model, self._backend = model, backend
        self._keeps_float64 = backend is backends.load("reference")
        self._index = torch.zeros(0, dtype=torch.long)  # [S], request of each slot

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        missing = num_slots - self._index.numel()
        if missing > 0:
            self._index = torch.cat((self._index, self._index.new_full((missing,), -1)))

    def encode(self, sources: Sequence[Any], indices: Sequence[int], slots: Sequence[int]) -> None:
        self._index[torch.tensor(slots, dtype=torch.long)] = torch.tensor(indices, dtype=torch.long)

    def step(self, rows: Rows) -> Tensor:
        prefixes, lengths = self._backend.backtrace(
            rows.tree.token, rows.tree.parent, rows.row_slot, rows.node, rows.longest
        )  # [R, T], [R]
        logits = self._model.fn(prefixes.long(), lengths.long(), self._index[rows.row_slot.long()])
        self._check(logits, lengths.numel())
        if logits.dtype == torch.float64 and not self._keeps_float64:
            logits = logits.float()
        # copy: the function may keep its result, and the caller may overwrite logits
        return logits.detach().clone(memory_format=torch.contiguous_format)  # [R, V]

    def release(self, slots: Sequence[int]) -> None:
        self._index[torch.tensor(slots, dtype=torch.long)] = -1

    def _check(self, logits: Tensor, num_rows: int) -> None:
        if not isinstance(logits, Tensor):
            raise TypeError(f"`fn` must return a tensor, but returned {type(logits).__name__}")
        shape = (num_rows, self._model.vocab_size)
        if tuple(logits.shape) != shape:
            raise ValueError(
                f"`fn` must return logits [R, V] = {list(shape)}, but returned {list(logits.shape)}"
            )
        if not logits.dtype.is_floating_point:
            raise ValueError(f"`fn` must return a float tensor, but returned {logits.dtype}")
        if logits.device.type != "cpu":
            raise ValueError(f"`fn` must return logits on the CPU, but they are on {logits.device}")
