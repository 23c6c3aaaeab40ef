"""Lexical shortlists: the target tokens that may translate the tokens of a source."""

from pybeam.shortlist.shortlist import Shortlist
from pybeam.shortlist.translations import allowed_translations

__all__ = ["Shortlist", "allowed_translations"]
