"""Logits with the peaks that `peaked_product` leaves, and who selects from them, in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.contracts import Survivors
from pybeam.models.transformer import cuda_operators, peaked_output
from support.decoder_layers import Selected

# columns of a peak, and a number of peaks that rows are padded to
GROUP, AT_ONCE = 64, 128


def peaks_of(logits: Tensor) -> Tensor:
    """The largest logit of each group [n, padded], -inf behind the last one."""
    num_groups = -(-logits.shape[1] // GROUP)
    padding = -num_groups % AT_ONCE * GROUP + num_groups * GROUP - logits.shape[1]
    wide = F.pad(logits.float(), (0, padding), value=-torch.inf)
    return wide.nan_to_num(-torch.inf, torch.inf, -torch.inf).unflatten(1, (-1, GROUP)).amax(2)


def totals_of(logits: Tensor, num_columns: int) -> Tensor:
    """The largest logit of so many columns each, and the sum of ``exp(logit - largest)``, [n, tiles, 2]."""
    tiles = F.pad(logits.float(), (0, -logits.shape[1] % num_columns), value=-torch.inf)
    tiles = tiles.unflatten(1, (-1, num_columns))
    peak = tiles.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(2)
    total = (tiles - peak.where(peak > -torch.inf, 0)[..., None]).exp().sum(2)
    return torch.stack((peak, total), 2)


def aligned(logits: Tensor) -> Tensor:
    """The same logits, whose rows begin at multiples of 16 bytes; what lies behind them is not finite."""
    n, num_columns = logits.shape
    wide = logits.new_full((n, -(-num_columns // 8) * 8), torch.inf)
    wide[:, :num_columns] = logits
    return wide[:, :num_columns]


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """`peaked_product` in plain torch."""
    logits = aligned(F.linear(x, weight, bias))
    return logits, peaks_of(logits), totals_of(logits, GROUP)


class Peaked:
    """Stand in for the product and for `select_peaked`, and count the rows of products."""

    def __init__(self, select: Callable[..., Survivors]) -> None:
        self.num_rows: list[int] = []
        self._select = select

    @property
    def num_chosen(self) -> int:
        return len(self.num_rows)

    def product(self, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        self.num_rows.append(len(given[0]))
        return product(*given)

    def select_peaked(self, *given: Any) -> list[Tensor]:
        logits, peaks, totals = given[:3]
        selected = Selected(*given[3:])
        assert torch.equal(peaks, peaks_of(logits))
        assert torch.equal(totals, totals_of(logits, GROUP))
        # rows behind those of the last entry are padding
        num_rows = int(selected.offset[-1])
        return list(self._select(logits[:num_rows], *selected[:3], selected.options))

    def __call__(self, name: str) -> Callable[..., list[Tensor]]:
        return getattr(self, name)


def installed(monkeypatch: pytest.MonkeyPatch, select: Callable[..., Survivors]) -> Peaked:
    """Switch the output layer with peaks on, whose logits are selected from by `select`."""
    peaked = Peaked(select)
    monkeypatch.setattr(peaked_output, "IS_ON", True)
    monkeypatch.setattr("pybeam.triton_kernels.peaked_product.peaked_product", peaked.product)
    monkeypatch.setattr(cuda_operators, "operator", peaked)
    monkeypatch.setattr(cuda_operators, "has_operator", lambda *_: True)
    monkeypatch.setattr(cuda_operators, "takes_choice", lambda like, options: True)
    monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)
    return peaked
