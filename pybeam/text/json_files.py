"""Read JSON files of model directories. Errors name the file and the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises ValueError if the file is missing or holds no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{path.name} is missing in {path.parent}; a Hugging Face model directory must have one"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a JSON file, but cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, but holds {type(content).__name__}")
    return content


def positive(path: Path, config: dict[str, Any], name: str) -> int:
    """Return a size that a config must have. Raises ValueError if it is missing or not positive."""
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` in {path} must be a positive integer, but is {value!r}")
    return value


def token_id(
    name: str, path: Path, config: dict[str, Any], generation: dict[str, Any], default: int | None
) -> int | None:
    """Return a token id of the generation config, or else of the config; raises ValueError for several."""
    value = generation.get(name)
    if value is None:
        value = config.get(name)
    if value is None:
        return default
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    # a source ends in one EOS as well, so there must be one alone
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(
            f"`{name}` of {path.parent} must be one token id, but is {value!r}; "
            f"write the one to use into generation_config.json"
        )
    return value
