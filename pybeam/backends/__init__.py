"""Backends are modules with the same function names, loaded once.

`reference` is plain torch, readable, the oracle; `native` is C++ on a CPU; `triton` runs on a GPU. A
name given explicitly never falls back to another backend.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from types import ModuleType

import torch

NAMES = ("reference", "native", "triton")


@cache
def load(name: str) -> ModuleType:
    """The backend of that name. Raises ValueError if it is unknown or not installed."""
    if name not in NAMES:
        raise ValueError(f"`backend` must be 'auto' or one of {NAMES}, but is {name!r}")
    if name == "triton" and not (torch.cuda.is_available() or is_interpreting()):
        raise ValueError(
            "backend 'triton' is not available: there is no CUDA device; use another backend, or set "
            "TRITON_INTERPRET=1 before Python starts to run it in Triton's slow interpreter"
        )
    try:
        if name == "triton" and is_interpreting():
            importlib.import_module("pybeam.backends.triton_interpreter").take_computed_ranges()
        return importlib.import_module(f"pybeam.backends.{name}")
    except ImportError as error:
        raise ValueError(f"backend {name!r} is not available: {error}") from error


def is_interpreting() -> bool:
    """Whether Triton interprets kernels on the CPU in this process instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def available() -> tuple[str, ...]:
    """Names of the backends that this installation can load."""

    def loads(name: str) -> bool:
        try:
            load(name)
        except ValueError:
            return False
        return True

    return tuple(name for name in NAMES if loads(name))


def resolve(name: str, device: torch.device) -> ModuleType:
    """The module for `name` on `device`; "auto" is the fastest one that is installed there."""
    if name != "auto":
        return load(name)
    if device.type == "cuda" and "triton" in available():
        return importlib.import_module("pybeam.backends.gpu_auto")
    return load("native" if device.type == "cpu" and "native" in available() else "reference")
