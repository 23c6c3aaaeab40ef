"""The search that a folder asks for."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from pybeam.arguments import whole
from pybeam.compat import huggingface
from pybeam.limits import SourceLimit
from pybeam.models.settings import generation_fields
from pybeam.scoring import power
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import fixed_beam
from pybeam.text.json_files import read_json

log = logging.getLogger("pybeam.tasks")


def folder_fields(directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that says how `generate` is to search, and what it says; {}: there is none.

    Raises:
        ValueError: the file cannot be read, or its limit is none.
    """
    config = directory / "config.json"
    if not config.exists():
        return config, {}
    path, fields = generation_fields(directory, read_json(config))
    if fields.get("max_length") is not None:
        try:
            whole("max_length", fields["max_length"], 0)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{error}; this is in {path}") from error
    if fields.get("do_sample"):
        log.info(
            "%s: `do_sample` is left out, because pybeam searches; to draw, give search=pybeam.sample()",
            path,
        )
    return path, fields


def folder_search(path: Path, fields: dict[str, Any], width: int) -> Algorithm:
    """Return the search that a folder asks for: that of transformers' `generate`, if it names `num_beams`.

    Otherwise the search is that of `pybeam translate`, a fixed beam with the folder's length penalty. A limit
    beyond the model's positions ends there, and without a limit it is that of pybeam's searches.

    Args:
        path, fields: as `folder_fields` returns them.
        width: of the beam, where nothing names one.

    Raises:
        ValueError: an option is none that `generate` could have.
    """
    options = huggingface.folder_options(fields)
    most = options.pop("max_new_tokens", None)
    try:
        if "num_beams" in options:
            search = huggingface.beam_search(**options)
        else:
            search = fixed_beam(width, scoring=power(options.get("length_penalty", 1.0)))
        if most is not None:
            whole("max_new_tokens", most, 1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{error}; this is in {path}") from error
    return dataclasses.replace(search, max_length=None if most is None else at_most(most))


def at_most(num: int) -> SourceLimit:
    """Return a limit of so many tokens that is never beyond the model's positions."""
    return SourceLimit(0.0, num)
