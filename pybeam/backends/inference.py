"""torch's inference mode, entered and left by C++ alone.

`torch.inference_mode` is Python. Ctrl-C can raise within it, between the mode and the promise to leave the
mode. The caller's thread would stay in the mode then, and later training would fail.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

InferenceMode = torch._C._InferenceMode  # ``with InferenceMode(True):``


def inferring(function: Callable[P, T]) -> Callable[P, T]:
    """Call a function within the mode."""

    @functools.wraps(function)
    def within(*args: P.args, **options: P.kwargs) -> T:
        with InferenceMode(True):
            return function(*args, **options)

    return within
