"""Tensors of files with rows behind them: the embedding of zeros from which some models start."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pybeam.models.tensor_files import StoredTensor


@dataclass(frozen=True)
class PaddedTensor(StoredTensor):
    """A tensor with rows of zeros behind those of the file; `shape` counts them."""

    num_zeros: int = 0

    @property
    def num_rows(self) -> int:
        """Return the number of rows that the file has."""
        return self.shape[0] - self.num_zeros

    def held(self, rows: slice = slice(None)) -> Tensor:
        """Read the tensor, or some rows of it, all of which the file has."""
        return super().read(rows)

    def read(self, rows: slice = slice(None)) -> Tensor:
        if not self.num_zeros:
            return self.held(rows)
        first, last, _ = rows.indices(self.shape[0])
        held = self.held(slice(min(first, self.num_rows), min(last, self.num_rows)))
        return torch.cat((held, held.new_zeros(last - first - len(held), *held.shape[1:])))

    def mapped(self) -> Tensor | None:
        return None if self.num_zeros else super().mapped()
