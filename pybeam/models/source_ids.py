"""Check sources that are token ids, for all models that read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.text.encoded import Encoded


def check_length(source: Any, max_tokens: int) -> None:
    """Raise ValueError if there are more than `max_tokens` ids."""
    num = len(source) if isinstance(source, (list, tuple, Tensor)) and not _is_number(source) else 0
    if num > max_tokens:
        raise ValueError(
            f"`source` must have at most {max_tokens} ids (`max_tokens` of the model), but has {num}; split "
            "the text, or set `max_tokens`"
        )


def _is_number(source: Any) -> bool:
    return isinstance(source, Tensor) and source.ndim == 0


def checked_ids(source: Any, vocab_size: int) -> Tensor:
    """Return token ids as an int64 tensor [E] on the host.

    Raises:
        TypeError: the source is not a sequence of integers.
        ValueError: it is not one-dimensional, or an id is not one of `vocab_size`.
    """
    if type(source) in (list, tuple, Encoded) and set(map(type, source)) == {int}:
        # most sources: numbers of Python are sooner compared than those of a tensor
        if min(source) >= 0 and max(source) < vocab_size:
            return torch.from_numpy(np.array(source, dtype=np.int64))
    ids = _as_ids(source)  # [E]
    if ids.numel():
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"ids of `source` must be 0 to {vocab_size - 1}, but one is "
                f"{low if low < 0 else high}; does the tokenizer belong to the model?"
            )
    return ids


def _as_ids(source: Any) -> Tensor:
    """Turn token ids into an int64 tensor [E] on the host."""
    expected = "`source` must be a list, tuple or 1-D integer tensor of token ids"
    if isinstance(source, (list, tuple)):
        if not source:
            return torch.zeros(0, dtype=torch.long)
        try:
            ids = torch.tensor(source)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(f"{expected}, but cannot be read as one: {error}") from error
    elif isinstance(source, Tensor):
        ids = source.detach().cpu()
    else:
        hints = {str: "; encode the text first", int: "; give a list of sources"}
        hint = hints.get(type(source), "")
        raise TypeError(f"{expected}, but is {type(source).__name__}{hint}")
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise TypeError(f"{expected}, but holds {ids.dtype}")
    if ids.ndim != 1:
        raise ValueError(f"{expected}, but is {list(ids.shape)}; give one source per request")
    return ids.long()
