"""CTranslate2's search as a recipe, and its Python package by its names: a switch by one import.

``from pybeam.compat.ctranslate2 import Translator, Generator`` reads the folders of CTranslate2 and those of
transformers.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pybeam.compat.ctranslate2.recipe import HARD_PREFIX as HARD_PREFIX
from pybeam.compat.ctranslate2.recipe import HardPrefix as HardPrefix
from pybeam.compat.ctranslate2.recipe import beam_search
from pybeam.text.ctranslate2 import BINARY

if TYPE_CHECKING:
    from pybeam.compat.ctranslate2.decoding import set_random_seed
    from pybeam.compat.ctranslate2.generator import Generator
    from pybeam.compat.ctranslate2.results import (
        AsyncGenerationResult,
        AsyncScoringResult,
        AsyncTranslationResult,
        ExecutionStats,
        GenerationResult,
        GenerationStepResult,
        ScoringResult,
        StorageView,
        TranslationResult,
    )
    from pybeam.compat.ctranslate2.translator import Translator

__all__ = [
    "AsyncGenerationResult",
    "AsyncScoringResult",
    "AsyncTranslationResult",
    "ExecutionStats",
    "GenerationResult",
    "GenerationStepResult",
    "Generator",
    "ScoringResult",
    "StorageView",
    "TranslationResult",
    "Translator",
    "beam_search",
    "contains_model",
    "get_cuda_device_count",
    "get_log_level",
    "get_supported_compute_types",
    "set_log_level",
    "set_random_seed",
]

# the modules of names that a recipe does without; all others are results
_MODULES = {"Generator": "generator", "Translator": "translator", "set_random_seed": "decoding"}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "results")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def get_log_level() -> int:
    """Return the level of the logger "pybeam"."""
    return logging.getLogger("pybeam").getEffectiveLevel()


def set_log_level(level: int) -> None:
    """Set the `level` of the logger "pybeam"."""
    logging.getLogger("pybeam").setLevel(level)


def contains_model(path: str) -> bool:
    """Whether the folder at `path` has weights of CTranslate2."""
    return Path(path, BINARY).exists()


def get_cuda_device_count() -> int:
    """Return the number of GPUs."""
    import torch

    return torch.cuda.device_count()


def get_supported_compute_types(device: str, device_index: int = 0) -> set[str]:
    """Return the names that `compute_type` may have on a `device`, "cpu" or "cuda", of any `device_index`."""
    from pybeam.compat.ctranslate2.computing import COMPUTE_TYPES

    names = {name for name in COMPUTE_TYPES if name != "default"}
    return names if device == "cpu" else {name for name in names if not name.startswith("int8")}
