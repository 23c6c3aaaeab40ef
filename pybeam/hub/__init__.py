"""Where a model comes from: a name on the Hugging Face hub becomes a folder that `load_model` reads."""

from pybeam.hub.repository import fetch

__all__ = ["fetch"]
