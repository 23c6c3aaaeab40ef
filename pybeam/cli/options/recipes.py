"""`--recipe`: the search of another system, with pybeam's options as far as they fit, and with its own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import click

from pybeam.cli.options.errors import EXPECTED, flag, message_of

if TYPE_CHECKING:
    from pybeam.search.algorithms import Algorithm

Recipe = Literal["ctranslate2", "fairseq", "fireredasr", "huggingface", "opennmt"]
# the arguments of each system's recipe in `pybeam.compat` for our options
ARGUMENTS: dict[Recipe, dict[str, str]] = {
    "ctranslate2": {
        "width": "beam_size",
        "n_best": "num_hypotheses",
        "min_length": "min_decoding_length",
        "max_length": "max_decoding_length",
        "patience": "patience",
        "length_penalty": "length_penalty",
        "repetition_penalty": "repetition_penalty",
        "no_repeat_ngram": "no_repeat_ngram_size",
        "suppress": "suppress_sequences",
        "no_unk": "disable_unk",
    },
    "fairseq": {
        "width": "beam",
        "n_best": "nbest",
        "min_length": "min_len",
        "max_length": "max_len_b",
        "length_penalty": "lenpen",
        "temperature": "temperature",
        "no_repeat_ngram": "no_repeat_ngram_size",
    },
    "fireredasr": {
        "width": "beam_size",
        "n_best": "nbest",
        "max_length": "decode_max_len",
        "length_penalty": "length_penalty",
        "temperature": "softmax_smoothing",
        "eos_penalty": "eos_penalty",
    },
    "huggingface": {
        "width": "num_beams",
        "n_best": "num_return_sequences",
        "min_length": "min_new_tokens",
        "max_length": "max_new_tokens",
        "length_penalty": "length_penalty",
        "repetition_penalty": "repetition_penalty",
        "no_repeat_ngram": "no_repeat_ngram_size",
        "suppress": "bad_words_ids",
    },
    "opennmt": {
        "width": "beam_size",
        "n_best": "n_best",
        "min_length": "min_length",
        "max_length": "max_length",
        "length_penalty": "alpha",
        "no_repeat_ngram": "block_ngram_repeat",
        "no_unk": "ban_unk_token",
    },
}
# the recipe has no default width, and that of `generate` is greedy search
DEFAULT_NUM_BEAMS = 5


def build_recipe(
    name: Recipe,
    options: Mapping[str, Any],
    own: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    unk_id: int | None,
) -> Algorithm:
    """Build the search of a system.

    `options` are the given options of the command line, `own` are options of the system, by its names. Raises
    UsageError if the system has no such option, or refuses a value.
    """
    from pybeam import compat
    from pybeam.arguments import ArgumentError

    build = getattr(compat, name).beam_search
    known = inspect.signature(build).parameters
    unknown = sorted(own.keys() - known)
    if unknown:
        raise click.UsageError(
            f"--recipe-option {unknown[0]} is no option of --recipe {name}; there are {', '.join(known)}"
        )
    arguments = _defaults(name, generation_config)
    if "unk_id" in known and unk_id is not None:
        arguments["unk_id"] = unk_id
    names = ARGUMENTS[name]
    arguments |= {names[key]: value for key, value in options.items()}
    if name == "fairseq" and "max_length" in options:
        arguments["max_len_b"] -= 1  # ours counts EOS
    arguments |= own
    flags = {names[key]: flag(key) for key in options}
    flags |= {key: f"--recipe-option {key}" for key in own}
    try:
        return build(**arguments)
    except EXPECTED as error:
        if isinstance(error, ArgumentError) and error.name in flags:
            raise click.UsageError(message_of(error, flags[error.name])) from error
        raise click.UsageError(f"--recipe {name}: {error}") from error


def _defaults(name: Recipe, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model's files that replace a system's own defaults."""
    if name != "huggingface":
        alpha = config.get("length_penalty")
        return {} if alpha is None else {ARGUMENTS[name]["length_penalty"]: alpha}
    from pybeam.compat.huggingface import folder_options

    return {"num_beams": DEFAULT_NUM_BEAMS, **folder_options(config)}
