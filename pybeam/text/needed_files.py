"""Files that a folder must have."""

from __future__ import annotations

from pathlib import Path

from pybeam.text.model_files import regular_file


def needed_file(path: Path, most_bytes: int | None = None) -> Path:
    """Return `regular_file` of such a file. Raises ValueError if it is missing, too."""
    try:
        return regular_file(path, most_bytes)
    except FileNotFoundError:
        raise ValueError(
            f"{path.name} is missing in {path.parent}; is the download complete?"
        ) from None
