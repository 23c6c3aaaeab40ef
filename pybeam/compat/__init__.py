"""Recipes: the searches of other systems, option for option, as pybeam algorithms.

Each gives the same tokens as the system itself and the same final scores up to rounding. Options that
a recipe does not take, it does not reproduce.
"""

from pybeam.compat import ctranslate2, fairseq, fireredasr, huggingface, opennmt

__all__ = ["ctranslate2", "fairseq", "fireredasr", "huggingface", "opennmt"]
