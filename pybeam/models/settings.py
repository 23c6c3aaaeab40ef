"""`Settings`: what the files of a model's folder say of every output, whatever the search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pybeam.arguments import LARGEST_INT32, ArgumentError, ids, number, whole
from pybeam.text.json_files import folder_config, read_json

GENERATION = "generation_config.json"
# what transformers takes for a field that an older config.json lacks
OF_CLASS: dict[str, dict[str, Any]] = {
    "bart": {"forced_eos_token_id": 2},
    "fsmt": {"forced_eos_token_id": 2},
    "marian": {"forced_eos_token_id": 0},
    "mbart": {"forced_eos_token_id": 2},
}
# settings of `generate` that change outputs, are no part of a search, and are not taken from a folder
UNKNOWN = {
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "force_words_ids": None,
    "guidance_scale": 1.0,
    "renormalize_logits": False,
    "sequence_bias": None,
    "stop_strings": None,
    "watermarking_config": None,
}


@dataclass(frozen=True)
class Settings:
    """Settings of `generate` that a folder gives its model, under their names; defaults change nothing.

    They are facts about the model, so a `pybeam.Decoder` adds them to whatever search it is given. An
    algorithm and a request go first in what they say themselves. Settings that are the search's own
    (`num_beams`, `length_penalty`, `early_stopping`, `max_length`, `do_sample` and its options) are not among
    them.

    Args:
        bad_words_ids, suppress_tokens, begin_suppress_tokens: tokens that are never generated, in a row,
            alone, or first. They hold beside those of the algorithm.
        forced_bos_token_id: the prefix of requests that have none. Algorithms with
            `pybeam.processors.first_token` do without.
        forced_eos_token_id: EOS is the only token at the limit, at log-prob 0. An algorithm's
            `pybeam.processors.force_eos` takes its place.
        min_length: tokens before EOS, the start token not counted. An algorithm with a `min_length` of its
            own has that.
        no_repeat_ngram_size, repetition_penalty, exponential_decay_length_penalty: the processor of the
            algorithm takes their place.
        unknown: names of settings that pybeam does not have. A decoder refuses them.
        path: the file that they come from.

    Raises:
        ValueError, TypeError: a value is none that `generate` could have.
    """

    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    min_length: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    exponential_decay_length_penalty: tuple[int, float] | None = None
    unknown: tuple[str, ...] = ()
    path: Path | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        given = (f"{name}={getattr(self, name)!r}" for name in self._changed())
        return f"Settings({', '.join(given)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The settings that change something, by the names that `without` takes."""
        known = tuple(name for name in self._changed() if name != "unknown")
        return (*known, *self.unknown)

    def _changed(self) -> list[str]:
        fields = [one for one in dataclasses.fields(self) if one.name != "path"]
        return [one.name for one in fields if getattr(self, one.name) != one.default]

    def without(self, *names: str) -> Settings:
        """Return the settings without some of them.

        Args:
            names: as `names` has them.

        Raises:
            ValueError: there is no setting of that name.
        """
        defaults = {one.name: one.default for one in dataclasses.fields(self)}
        for name in names:
            if name not in UNKNOWN and name not in defaults.keys() - {"path", "unknown"}:
                known = ", ".join(self.names) or "there are none"
                problem = f"must hold settings of the model's folder ({known}), but holds {name!r}"
                raise ArgumentError("without", problem)
        changes: dict[str, Any] = {name: defaults[name] for name in names if name in defaults}
        changes["unknown"] = tuple(name for name in self.unknown if name not in names)
        return dataclasses.replace(self, **changes)


def read_settings(directory: Path) -> Settings:
    """Read the settings of a folder: from `generation_config.json`, or in older ones from `config.json`.

    Raises:
        ValueError: a file cannot be read, or has a value that `generate` could not have.
    """
    config = folder_config(directory)
    path, found = generation_fields(directory, config)
    has_encoder = bool(config.get("is_encoder_decoder", True))
    values: dict[str, Any] = {}
    for name, read in READERS.items():
        # null switches off, as a missing field does
        if found.get(name) is not None:
            values[name] = _read(path, name, found[name], read)
    # it counts the start token
    least = max(values.pop("min_length", 0) - 1, values.pop("min_new_tokens", 0))
    unknown = [name for name, off in UNKNOWN.items() if found.get(name) not in (None, off)]
    if not has_encoder:
        # `generate` forces it behind prompts of one token alone
        values.pop("forced_bos_token_id", None)
        if found.get("min_length"):
            # it counts the prompt
            least = values.get("min_new_tokens", 0)
            unknown.append("min_length")
    return Settings(**values, min_length=least, unknown=tuple(unknown), path=path)


def generation_fields(directory: Path, config: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the file that says how `generate` is to search, and what it says, in a folder with this config.

    Raises:
        ValueError: the file cannot be read.
    """
    path = directory / GENERATION
    if path.exists():
        return path, read_json(path)
    return directory / "config.json", OF_CLASS.get(config.get("model_type", ""), {}) | config


def _read(path: Path, name: str, value: Any, read: Callable[[str, Any], Any]) -> Any:
    try:
        return read(name, value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{error}; this is in {path}") from error


def _token(name: str, value: Any) -> int:
    [token] = ids(name, value if isinstance(value, list) else [value])
    return token


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    return ids(name, value if isinstance(value, list) else [value])


def _lists(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list):
        raise TypeError(f"`{name}` must be a list of lists of token ids, but is {value!r}")
    return tuple(ids(name, one) for one in value)


def _count(name: str, value: Any) -> int:
    whole(name, value, 0, LARGEST_INT32)
    return int(value)


def _factor(name: str, value: Any) -> float:
    number(name, value, 0)
    return float(value)


def _growth(name: str, value: Any) -> tuple[int, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise TypeError(f"`{name}` must be a pair, a count and a factor, but is {value!r}")
    return _count(name, value[0]), _factor(name, value[1])


READERS: dict[str, Callable[[str, Any], Any]] = {
    "bad_words_ids": _lists,
    "suppress_tokens": _tokens,
    "begin_suppress_tokens": _tokens,
    "forced_bos_token_id": _token,
    "forced_eos_token_id": _tokens,
    "min_length": _count,
    "min_new_tokens": _count,
    "no_repeat_ngram_size": _count,
    "repetition_penalty": _factor,
    "exponential_decay_length_penalty": _growth,
}
