"""A folder of CTranslate2 becomes a built-in model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pybeam import arguments
from pybeam.models.ctranslate2 import decoder_only, encoder_decoder
from pybeam.models.ctranslate2.binary import Binary
from pybeam.models.settings import Settings
from pybeam.text.ctranslate2 import Words, read_words

if TYPE_CHECKING:
    from pybeam.models.checkpoint import Checkpoint
    from pybeam.models.transformer.causal import CausalTransformer
    from pybeam.models.transformer.model import Transformer


def load_binary(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    check_finite: bool = True,
    eos_id: int | Sequence[int] | None = None,
) -> tuple[Transformer | CausalTransformer, Checkpoint]:
    """Return the model of a folder, and the checkpoint, which knows what was taken from it.

    Raises:
        ValueError: a file is missing or not sound, or the model is of a kind that pybeam does not have.
    """
    binary = Binary(directory)
    words = read_words(directory, binary.special_tokens())
    if words.config.get("quantization_type"):
        raise ValueError(
            f"the weights in {binary.path} must be floats, or integers of 8 or 16 bits, but are quantised in "
            "groups (AWQ); load the model that they were made from"
        )
    num_tokens, _ = binary.shape("decoder/embeddings/weight", 2)
    if len(words.target) > num_tokens:
        raise ValueError(
            f"the vocabulary in {directory} must have at most the {num_tokens} tokens of {binary.path}, but "
            f"has {len(words.target)}; do the files belong to one model?"
        )
    eos_ids = _eos_ids(words, eos_id, num_tokens)
    has_encoder = binary.spec != "TransformerDecoderSpec"
    build = encoder_decoder.build if has_encoder else decoder_only.build
    model, checkpoint = build(binary, words, eos_ids, device, dtype, check_finite)
    binary.close()
    model.settings = _settings(words)
    return model, checkpoint


def _settings(words: Words) -> Settings:
    """Return what a Whisper never generates; CTranslate2's files have no other settings."""
    path = words.directory / "config.json"
    if not words.is_whisper:
        return Settings(path=path)
    names = "suppress_ids", "suppress_ids_begin"
    try:
        found = [arguments.ids(name, words.config.get(name) or ()) for name in names]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{error}; this is in {path}") from error
    always, first = found
    return Settings(suppress_tokens=always, begin_suppress_tokens=first, path=path)


def _eos_ids(words: Words, eos_id: int | Sequence[int] | None, num_tokens: int) -> tuple[int, ...]:
    given = words.special_id("eos_token") if eos_id is None else eos_id
    try:
        return arguments.eos_ids(given, num_tokens)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`eos_token` in {words.directory / 'config.json'} must be one of the target vocabulary, but is "
            f"{words.config.get('eos_token')!r}; give the ids to use as `eos_id` of `load_model`"
        ) from error
