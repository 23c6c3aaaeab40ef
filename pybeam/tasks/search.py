"""The search that a folder asks for."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from pybeam.arguments import whole
from pybeam.compat import huggingface
from pybeam.contracts import MAX_WIDTH
from pybeam.limits import SourceLimit
from pybeam.models.settings import generation_fields
from pybeam.scoring import Scoring, power
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import fixed_beam, shrinking_beam
from pybeam.text.json_files import folder_config
from pybeam.text.marian import Words

log = logging.getLogger("pybeam.tasks")

# of `marian-decoder`
MARIAN_WIDTH, MARIAN_FACTOR = 12, 3.0
# it rounds a limit up, after a product in float32
MARIAN_ROUNDING = 1 - 2**-20
# settings of `marian-decoder` that change outputs, and that a search of pybeam does not have
LEFT_OUT = (
    *("output-sampling", "output-approx-knn", "shortlist"),
    # of sources, which fail alone where they are too long for the model
    *("max-length", "max-length-crop"),
)


def folder_fields(directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that says how `generate` is to search, and what it says; {}: there is none.

    Raises:
        ValueError: the file cannot be read, or its limit is none.
    """
    config = directory / "config.json"
    if not config.exists():
        return config, {}
    path, fields = generation_fields(directory, folder_config(directory))
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


def marian_search(words: Words) -> Algorithm:
    """Return the search that `decoder.yml` asks for: that of `marian-decoder`, with its defaults.

    See docs/coming-from/marian.md. The model's own settings ban the unknown word.

    Raises:
        ValueError: an option is none that Marian could have, or words are penalised as pybeam does not.
    """
    path, settings = words.path, words.settings
    alpha, penalty = settings.number("normalize", 0.0), settings.number("word-penalty", 0.0)
    # the penalty is divided by the length, too, so that with 1 it moves all scores alike
    if penalty and alpha not in (0, 1):
        raise ValueError(
            f"`normalize` in {path} must be 0 or 1 beside a `word-penalty`, but is {alpha}; give `search`"
        )
    for name in LEFT_OUT:
        if name in settings:
            log.info("%s: `%s` is left out, because no search of pybeam has it", path, name)
    width = settings.size("beam-size", MAX_WIDTH, MARIAN_WIDTH)
    factor = settings.number("max-length-factor", MARIAN_FACTOR)
    try:
        return shrinking_beam(
            width,
            max_length=SourceLimit(factor, MARIAN_ROUNDING),
            scoring=Scoring(alpha=alpha, reward=0.0 if alpha else 0.0 - penalty),
            ended_only=False,
        )
    except ValueError as error:
        raise ValueError(f"{error}; this is in {path}") from error
