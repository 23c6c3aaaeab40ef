"""Read JSON files of model directories. Errors name the file and the key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pybeam import arguments
from pybeam.text.model_files import MAX_TEXT_BYTES, regular_file

# sizes and token ids are dimensions of arrays
LARGEST = 2**31 - 1
# so that no list of their names fills the memory before the first one is missed
MAX_LAYERS = 10_000


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises ValueError if the file is missing, no regular file or too large, or holds no object.
    """
    try:
        regular_file(path, MAX_TEXT_BYTES)
    except FileNotFoundError:
        raise ValueError(
            f"{path.name} is missing in {path.parent}; a Hugging Face model directory must have one"
        ) from None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    # ValueError: it is no JSON, no UTF-8, or has a number of thousands of digits; RecursionError: thousands
    # of lists within each other
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file, but cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, but holds {type(content).__name__}")
    return content


def folder_config(directory: Path) -> dict[str, Any]:
    """Read `config.json`; that of a model that sees, too, as the one of its language model.

    Raises ValueError as `read_json`.
    """
    config = read_json(directory / "config.json")
    if "text_config" not in config:
        return config
    from pybeam.text.seeing import of_language

    return of_language(config)


def positive(path: Path, config: dict[str, Any], name: str, most: int = LARGEST) -> int:
    """Return a size that a config must have. Raises ValueError if it is missing, or not 1 to `most`."""
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` in {path} must be a positive integer, but is {value!r}")
    if value > most:
        raise ValueError(f"`{name}` in {path} must be at most {most}, but is {value}")
    return value


def read_generation(directory: Path, eos_id: int | Sequence[int] | None = None) -> dict[str, Any]:
    """Read `generation_config.json`, or nothing without it. `eos_id` takes the place of what it names."""
    path = directory / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    return generation if eos_id is None else {**generation, "eos_token_id": eos_id}


def eos_ids(
    path: Path,
    config: dict[str, Any],
    generation: dict[str, Any],
    vocab_size: int,
    default: int | None = None,
) -> tuple[int, ...]:
    """Return the tokens that end a hypothesis: those of the generation config, or else of the config.

    Raises ValueError if they name none.
    """
    given = generation.get("eos_token_id")
    given = config.get("eos_token_id", default) if given is None else given
    try:
        return arguments.eos_ids(given, vocab_size)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`eos_token_id` of {path.parent} must be one token id or up to "
            f"{arguments.MAX_EOS} below `vocab_size` = {vocab_size}, but is {given!r}; give those to use as "
            "`eos_id` of `load_model`, or write them into generation_config.json"
        ) from error


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
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(
            f"`{name}` of {path.parent} must be one token id, but is {value!r}; "
            f"write the one to use into generation_config.json"
        )
    return value
