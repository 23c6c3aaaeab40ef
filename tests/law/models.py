"""The models of the law: tiny ones of every kind, each made once in a process."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from pybeam.export import export_onnx
from pybeam.models import FunctionModel, load_model
from pybeam.models.base import Model
from pybeam.models.huggingface import wrap
from pybeam.models.settings import Settings
from support.built_in_models import saved
from support.marian_folders import SSRU, write_folder
from support.search_models import BOS, EOS, random_model
from support.speech_models import random_features

NUM_SOURCES = 4
FUNCTION_VOCAB = 19
LENGTHS = (3, 1, 5, 2)
# an encoder of fewer bits attends over 64 positions and more in products of bfloat16 pairs
LONG = {"t5": (3, 65, 64, 2)}
CPU = torch.device("cpu")
# weights of layers that are as on a GPU on a CPU, too: not packed
PLAIN = "float32, plain"


@cache
def model_of(kind: str, weights: str, device: torch.device = CPU) -> Model:
    """The model of this kind, whose weights have this dtype. On a GPU: of a folder, or wrapped."""
    if kind == "function":
        return random_model(3, FUNCTION_VOCAB, eos_bonus=1.0)
    if kind == "function, two EOS":
        # of three levels, so that ties abound
        fn = random_model(4, FUNCTION_VOCAB, levels=3, eos_bonus=1.0).fn
        return FunctionModel(fn, FUNCTION_VOCAB, BOS, (EOS, 14))
    if kind == "function, settings":
        # a folder of bart forces EOS at the limit, too
        model = random_model(5, FUNCTION_VOCAB, eos_bonus=1.0)
        model.settings = Settings(
            bad_words_ids=((5, 6), (8, 8, 3)),
            suppress_tokens=(9,),
            begin_suppress_tokens=(3, EOS),
            min_length=2,
            no_repeat_ngram_size=3,
            repetition_penalty=1.2,
        )
        return model
    if kind.startswith("wrapped-"):
        from support.huggingface_models import DENSE, tiny_network

        name = kind.removeprefix("wrapped-")
        network = tiny_network(name).to(device)
        return wrap(network, cache="dense" if name in DENSE else "tree")
    packs = nullcontext()
    if weights == PLAIN:
        weights, packs = "float32", patch("pybeam.models.weights.can_pack", lambda *_: False)
    with tempfile.TemporaryDirectory(prefix="law-") as directory, packs:
        return _loaded(Path(directory), kind, weights, device)


def _loaded(directory: Path, kind: str, weights: str, device: torch.device) -> Model:
    """A model that is written to this folder, which is needed no longer."""
    if kind == "marian-ssru":
        # its own EOS is a token that items consist of
        write_folder(directory, 3, **SSRU)
        return load_model(directory, device=device, dtype=weights, eos_id=EOS)
    if kind == "onnx":
        export_onnx(load_model(saved("bart", directory / "model"), device=CPU), directory / "onnx")
        return load_model(directory / "onnx", device=CPU)
    directories = saved(kind, directory / "model")
    return load_model(directories, device=device, dtype=weights)


@cache
def sources_of(kind: str, weights: str) -> list[Any]:
    """Sources of several lengths, in no order."""
    model = model_of(kind, weights)
    if model.takes_features:
        features = random_features(NUM_SOURCES, 1, 30, num_features=model.config.sound.num_features)
        return [features[i % len(features)] for i in (3, 0, 2, 1)]
    return [
        [3 + (5 * i + 3 * j) % 14 for j in range(n)] for i, n in enumerate(LONG.get(kind, LENGTHS))
    ]
