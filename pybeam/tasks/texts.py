"""Tokenizers as tasks ask for them: pybeam's own, or those of transformers for models that are wrapped."""

from __future__ import annotations

from typing import Protocol

from pybeam.text.tokenizer import Tokenizer


class Texts(Protocol):
    """The tokenizers of a model; `pybeam.text.tokenizer.Tokenizers` are such.

    Attributes:
        languages: those that sources and targets are tagged with.
    """

    languages: tuple[list[str], list[str]]

    def of(self, source_lang: str | None = None, target_lang: str | None = None) -> Tokenizer:
        """Return the tokenizer for these languages. Raises ValueError if one is missing or unknown."""
