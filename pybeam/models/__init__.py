"""Models that can be searched: the built-in transformer and functions."""

from pybeam.models.base import Model, Rows, Session
from pybeam.models.function import FunctionModel
from pybeam.models.loading import load_model
from pybeam.models.transformer import Transformer

__all__ = ["FunctionModel", "Model", "Rows", "Session", "Transformer", "load_model"]
