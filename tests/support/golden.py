"""Texts that users see, kept in files: whoever changes one does so on purpose."""

from __future__ import annotations

import os
from pathlib import Path

WRITE = "PYBEAM_WRITE_GOLDEN"


def assert_golden(path: Path, text: str) -> None:
    """Compare a text with its file. With PYBEAM_WRITE_GOLDEN=1 the file is written anew."""
    if os.environ.get(WRITE) == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"if this is right, run with {WRITE}=1"
