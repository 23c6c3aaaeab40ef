"""The files of a repository that pybeam needs, by name. All others are never downloaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pybeam.export.fireredasr import CHECKPOINT, DICTIONARY, PIECES, STATISTICS
from pybeam.export.pickled import PICKLED, PICKLED_INDEX
from pybeam.models.checkpoint import shards_of
from pybeam.models.onnx import DECODER, ENCODER
from pybeam.text.marian import DECODER_SETTINGS, TRAINED_SETTINGS, read_words

INDEX = "model.safetensors.index.json"
# configurations, tokenizers, features and chat templates
SETTINGS = (
    *("config.json", "generation_config.json", "*processor_config.json", "adapter_config.json"),
    *("tokenizer*", "added_tokens.json", "special_tokens_map.json", "chat_template*"),
    *("vocab*", "*_vocabulary.*", "merges.txt", "normalizer.json", "*.tiktoken"),
    *("*.spm", "spiece.model", "spm.model", "sentencepiece*.model"),
)
# the same weights in several forms, or what names them: the first form whose first file is there
WEIGHTS: tuple[Sequence[str], ...] = (
    ["model.safetensors"],
    [INDEX],
    [PICKLED],
    [PICKLED_INDEX],
    ["model.bin"],  # of CTranslate2
    [CHECKPOINT, STATISTICS, DICTIONARY, PIECES],  # of FireRedASR
    [DECODER, ENCODER, "*.onnx.data"],  # as `pybeam export-onnx` writes them
)
OF_MARIAN: tuple[Sequence[str], ...] = ([DECODER_SETTINGS], [TRAINED_SETTINGS])


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of these patterns, in order. Files in subfolders never do."""
    return sorted(
        name
        for name in names
        if "/" not in name and any(fnmatchcase(name, pattern) for pattern in patterns)
    )


def weights_among(names: Sequence[str]) -> list[str]:
    """Return the files of the weights, or what names them; none if no form that pybeam reads is there."""
    # Marian writes a model.bin, too
    forms = WEIGHTS if "config.json" in names else (*OF_MARIAN, *WEIGHTS)
    return next((matching(names, form) for form in forms if matching(names, form[:1])), [])


def named_by(folder: Path, weights: Sequence[str]) -> list[str]:
    """Return the names of the files that an index among the weights names, or Marian's settings.

    Raises:
        ValueError: such a file is not sound, or names files elsewhere.
    """
    indices = [folder / name for name in weights if name in (INDEX, PICKLED_INDEX)]
    found = [path.name for index in indices for path in shards_of(index)]
    if matching(weights, [DECODER_SETTINGS, TRAINED_SETTINGS]):
        words = read_words(folder)
        found += [path.name for path in (words.model, *words.vocabularies)]
    return found
