"""Recipes: the searches of other systems, option for option, as pybeam algorithms.

Each gives the same tokens as the system itself, and the same final scores up to rounding. Its parameters are
the options of the system, by their names and with their defaults, so there are many. An option that is no
parameter is not reproduced.
"""

from pybeam.compat import ctranslate2, fairseq, fireredasr, huggingface, opennmt

__all__ = ["ctranslate2", "fairseq", "fireredasr", "huggingface", "opennmt"]
