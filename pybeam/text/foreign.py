"""The words of folders that other systems than transformers have written."""

from __future__ import annotations

from pathlib import Path

from pybeam.text import ctranslate2, marian


def read_words(directory: Path) -> ctranslate2.Words | marian.Words | None:
    """Read the vocabularies of such a folder; None: this is none. Raises ValueError if a file is broken."""
    if ctranslate2.is_ctranslate2(directory):
        return ctranslate2.read_words(directory)
    return marian.read_words(directory) if marian.is_marian(directory) else None
