"""Models that can be searched: built-in transformers and LSTMs, functions, wrapped models, ensembles.

A family is imported when its name is first asked for, or when a folder holds one of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pybeam.models.base import Model as Model
from pybeam.models.base import Session as Session
from pybeam.models.rows import Rows as Rows
from pybeam.models.settings import Settings as Settings

if TYPE_CHECKING:
    from pybeam.models import huggingface as huggingface
    from pybeam.models.conformer.model import ConformerTransformer as ConformerTransformer
    from pybeam.models.ensemble import Ensemble as Ensemble
    from pybeam.models.function import FunctionModel as FunctionModel
    from pybeam.models.loading import load_model as load_model
    from pybeam.models.rnn import Rnn as Rnn
    from pybeam.models.transformer.causal import CausalTransformer as CausalTransformer
    from pybeam.models.transformer.model import Transformer as Transformer
    from pybeam.models.transformer.speech import SpeechTransformer as SpeechTransformer

# the module below this package that each of the other names stands in
_HOMES = {
    "CausalTransformer": "transformer.causal",
    "ConformerTransformer": "conformer.model",
    "Ensemble": "ensemble",
    "FunctionModel": "function",
    "Rnn": "rnn",
    "SpeechTransformer": "transformer.speech",
    "Transformer": "transformer.model",
    "load_model": "loading",
}
__all__ = sorted(["Model", "Rows", "Session", "Settings", "huggingface", *_HOMES])


def __getattr__(name: str) -> Any:
    if name == "huggingface":
        return import_module("pybeam.models.huggingface")
    if name not in _HOMES:
        raise AttributeError(f"module 'pybeam.models' has no attribute {name!r}")
    value = getattr(import_module(f"pybeam.models.{_HOMES[name]}"), name)
    globals()[name] = value  # the next time Python finds it without asking here
    return value
