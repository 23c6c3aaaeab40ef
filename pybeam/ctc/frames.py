"""Checks of the log-probabilities of frames, and which backend computes on them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pybeam import backends
from pybeam.arguments import ArgumentError, ids, whole

CPU = torch.device("cpu")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def kernels(backend: str) -> Any:
    """Return the module that searches and aligns: `native`, or `reference` in this folder.

    Raises:
        ValueError: there is no such backend for CTC.
    """
    name = backends.resolve(backend, CPU).__name__.rpartition(".")[2]
    if name == "triton":
        raise ValueError(
            "`backend` must be 'auto', 'native' or 'reference', but is 'triton', which does not search "
            "with CTC; use backend='auto'"
        )
    return importlib.import_module(f"pybeam.ctc.{name}")


def on_host(log_probs: Any, lengths: Any, blank: int) -> tuple[Tensor, Tensor]:
    """Return checked log-probabilities [B, T, V] float32 and lengths [B] int32 on the host.

    Raises:
        TypeError, ValueError: one is something else, or `blank` is no token.
    """
    if not isinstance(log_probs, Tensor):
        raise TypeError(
            f"`log_probs` must be a tensor [sources, frames, tokens], but is {type(log_probs).__name__}"
        )
    if log_probs.dtype not in FLOATS:
        raise TypeError(f"`log_probs` must hold floats, but holds {log_probs.dtype}")
    if log_probs.ndim != 3:
        raise ArgumentError(
            "log_probs",
            f"must be [sources, frames, tokens], but is {list(log_probs.shape)}; of one source give "
            "`log_probs[None]`",
        )
    num_sources, num_frames, vocab_size = log_probs.shape
    whole("blank", blank, 0, vocab_size - 1)
    if lengths is None:
        length = torch.full((num_sources,), num_frames, dtype=torch.int32)
    else:
        length = torch.tensor(ids("lengths", lengths), dtype=torch.int32)
    if len(length) != num_sources:
        raise ArgumentError(
            "lengths", f"must have one for each of {num_sources} sources, but has {len(length)}"
        )
    longest = int(length.max()) if num_sources else 0
    if longest > num_frames:
        raise ArgumentError("lengths", f"must be at most {num_frames} frames, but one is {longest}")
    # C++ reads the tokens of a frame one behind another
    return log_probs.detach().to(CPU, torch.float32).contiguous(), length


def no_numbers(source: int) -> ValueError:
    """Return the error about a source that holds what is no log-probability."""
    return ArgumentError(
        "log_probs", f"must hold log-probabilities, but source {source} holds NaN or infinity"
    )


def padded(lists: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return lists of ids as an array [B, L] int32, padded with -1, and their lengths [B] int32."""
    length = torch.tensor([len(one) for one in lists], dtype=torch.int32)
    longest = max(map(len, lists), default=0)
    lines = [[*one, *[-1] * (longest - len(one))] for one in lists]
    return torch.tensor(lines, dtype=torch.int32).view(len(lists), longest), length
