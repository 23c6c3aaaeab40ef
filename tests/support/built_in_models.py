"""Tiny models of every built-in family, and what a model consists of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from pybeam.backends.packing import Quantised
from pybeam.export import convert_fireredasr
from pybeam.models.linear import PackedLinear, PlainLinear
from support.fireredasr_files import save_published
from support.speech_models import save_tiny_speech_model
from support.tiny_models import save_tiny_model
from support.tiny_rnn import save_tiny_rnn


def saved(kind: str, directory: Path) -> list[Path]:
    """Save a tiny model of that kind, or two for an ensemble; "causal-llama" is a decoder alone."""
    if kind == "ensemble":
        return [*saved("m2m_100", directory / "one"), *saved("bart", directory / "other")]
    directory.mkdir(parents=True, exist_ok=True)
    if kind.startswith("causal-"):
        from support.causal_models import save_tiny_causal

        save_tiny_causal(directory, kind.removeprefix("causal-"))
    elif kind == "rnn":
        save_tiny_rnn(directory)
    elif kind in ("Speech2Text", "Whisper"):
        save_tiny_speech_model(directory, 0, 2.0, kind=kind)
    elif kind == "FireRedASR":
        save_published(directory / "published", seed=14, eos_nats=3.0)
        convert_fireredasr(directory / "published", directory / "model")
        return [directory / "model"]
    else:
        save_tiny_model(directory, kind)
    return [directory]


def parts_of(model, kinds: Any = (PackedLinear, PlainLinear, Quantised, torch.Tensor)) -> list:
    """The layers, their biases, and the tables of a model, or its parts of other kinds, each once."""
    found: dict[int, object] = {}

    def visit(part):
        if isinstance(part, kinds):
            found[id(part)] = part
            visit(getattr(part, "bias", None))
        elif isinstance(part, (tuple, list)):
            for item in part:
                visit(item)
        elif dataclasses.is_dataclass(part):
            for field in dataclasses.fields(part):
                visit(getattr(part, field.name))
        elif type(part).__module__.startswith("pybeam."):
            for item in vars(part).values():
                visit(item)

    visit(model)
    return list(found.values())


def bytes_of(model) -> int:
    """The bytes of all weights."""
    total = 0
    for part in parts_of(model):
        if isinstance(part, PackedLinear):
            tensors = [part._weight, part._scale]
        else:
            tensors = part if isinstance(part, Quantised) else [part]
        total += sum(tensor.nbytes for tensor in tensors if tensor is not None)
    return total
