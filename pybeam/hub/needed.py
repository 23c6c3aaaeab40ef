"""The files of a repository that pybeam needs, by name. All others are never downloaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pybeam.export.fireredasr import CHECKPOINT, DICTIONARY, PIECES, STATISTICS
from pybeam.export.pickled import PICKLED, PICKLED_INDEX
from pybeam.models.onnx import DECODER, ENCODER

INDEX = "model.safetensors.index.json"
# configurations, tokenizers, features and chat templates
SETTINGS = (
    *("config.json", "generation_config.json", "*processor_config.json", "adapter_config.json"),
    *("tokenizer*", "added_tokens.json", "special_tokens_map.json", "chat_template*"),
    *("vocab*", "*_vocabulary.*", "merges.txt", "normalizer.json", "*.tiktoken"),
    *("*.spm", "spiece.model", "spm.model", "sentencepiece*.model"),
)
# the same weights in several forms: the first form whose first file is there
WEIGHTS: tuple[Sequence[str], ...] = (
    ["model.safetensors"],
    [INDEX],
    [PICKLED],
    [PICKLED_INDEX],
    ["model.bin"],  # of CTranslate2
    [CHECKPOINT, STATISTICS, DICTIONARY, PIECES],  # of FireRedASR
    [DECODER, ENCODER, "*.onnx.data"],  # as `pybeam export-onnx` writes them
)


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of these patterns, in order. Files in subfolders never do."""
    return sorted(
        name
        for name in names
        if "/" not in name and any(fnmatchcase(name, pattern) for pattern in patterns)
    )


def weights_among(names: Sequence[str]) -> list[str]:
    """Return the files of the weights, or their index; none if no form that pybeam reads is there."""
    return next((matching(names, form) for form in WEIGHTS if form[0] in names), [])
