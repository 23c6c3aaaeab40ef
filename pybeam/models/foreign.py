"""Folders that other systems than transformers have written: who reads them, or what to do about each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pybeam.models.checkpoint import Checkpoint
from pybeam.text.ctranslate2 import is_ctranslate2
from pybeam.text.marian import is_marian

# the checkpoint of a folder that must be converted first
FIREREDASR = "model.pth.tar"


class Foreign(NamedTuple):
    """A kind of folder: how to know it, what it holds, and the remedy. Texts may hold ``{directory}``."""

    is_one: Callable[[Path], bool]
    holds: str
    remedy: str


def loader_of(directory: Path) -> Callable[..., tuple[Any, Checkpoint]] | None:
    """Return what loads a model of another system from such a folder; None: it is no such folder.

    Raises ValueError if config.json cannot be read.
    """
    if is_ctranslate2(directory):
        from pybeam.models.ctranslate2.loading import load_binary

        return load_binary
    if is_marian(directory):
        from pybeam.models.marian.loading import load_marian

        return load_marian
    return None


def refuse_foreign(directory: Path) -> None:
    """Raise ValueError, with a remedy, if a folder without config.json is one of another kind."""
    for kind in FOREIGN:
        if kind.is_one(directory):
            raise ValueError(
                f"{directory} must hold config.json and model.safetensors, but holds {kind.holds}; "
                f"{kind.remedy.format(directory=directory)}"
            )


def _has(directory: Path, *patterns: str) -> bool:
    """Whether there is a file for each of these patterns."""
    return all(any(directory.glob(pattern)) for pattern in patterns)


FOREIGN = (
    Foreign(
        lambda path: _has(path, "adapter_config.json"),
        "adapter_config.json, a LoRA or another adapter without the model that it changes",
        "merge them once: `peft.AutoPeftModelForSeq2SeqLM.from_pretrained('{directory}')"
        ".merge_and_unload().save_pretrained(OUT)` (or AutoPeftModelForCausalLM), and load OUT",
    ),
    Foreign(
        lambda path: _has(path, FIREREDASR),
        f"FireRedASR as it is published, whose {FIREREDASR} is a pickle and could run code",
        "convert it once: `pybeam convert fireredasr {directory} --output OUT`",
    ),
    Foreign(
        lambda path: _has(path, "*.npz") and not is_marian(path),
        "*.npz without decoder.yml, a model of Marian",
        "write decoder.yml with its name as `models: [NAME]` and those of its two vocabularies as "
        "`vocabs: [SOURCE, TARGET]`",
    ),
    Foreign(
        lambda path: _has(path, "*.gguf"),
        "*.gguf, weights of llama.cpp",
        "load the folder that they were converted from",
    ),
    Foreign(
        lambda path: _has(path, "*.pt", "dict.*.txt"),
        "*.pt and dict.*.txt, a model of fairseq, which is a pickle and could run code",
        "convert it with transformers' script for its architecture, and load what that writes",
    ),
    Foreign(
        lambda path: _has(path, "snapshots/*/config.json"),
        "snapshots, as in the cache of the Hugging Face hub",
        "give the folder below snapshots",
    ),
)
