"""Models that can be searched: built-in transformers and LSTMs, functions, wrapped models, ensembles."""

from pybeam.models import huggingface
from pybeam.models.base import Model, Session
from pybeam.models.causal.model import CausalTransformer
from pybeam.models.conformer.model import ConformerTransformer
from pybeam.models.ensemble import Ensemble
from pybeam.models.function import FunctionModel
from pybeam.models.loading import load_model
from pybeam.models.rnn import Rnn
from pybeam.models.rows import Rows
from pybeam.models.settings import Settings
from pybeam.models.transformer.model import Transformer
from pybeam.models.transformer.speech import SpeechTransformer

__all__ = [
    "CausalTransformer",
    "ConformerTransformer",
    "Ensemble",
    "FunctionModel",
    "Model",
    "Rnn",
    "Rows",
    "Session",
    "Settings",
    "SpeechTransformer",
    "Transformer",
    "huggingface",
    "load_model",
]
