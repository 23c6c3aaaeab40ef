"""The networks that are timed, by name: each is made and loaded when it is first used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import pybeam
from benchmarks import corpus, peers
from benchmarks.meter import Meter
from benchmarks.tools.data import ROOT
from benchmarks.tools.widen import widen

MEMBERS = 5
# as a share of a tensor's spread: members differ, and still translate
NOISE = 0.03


class Networks:
    """The names are "example", "reverse" (English to Spanish), "widened" (which computes what the example
    does, at the sizes given), "ensemble" and "member 0" to "member 4", of which the ensemble consists.
    """

    def __init__(self, folder: Path, device: str, dtype: str, widened: dict) -> None:
        self._folder, self._device, self._dtype, self._widened = folder, device, dtype, widened
        self._meter = Meter(device)
        self._known: dict[tuple, object] = {}
        # on a GPU, by system, name and kind
        self.weight_bytes: dict[tuple, int] = {}

    def directory(self, name: str) -> Path:
        target = self._folder / name
        if name == "example":
            return corpus.MODEL
        if name == "reverse":
            return trained_reverse()
        if not target.exists():
            if name == "widened":
                widen(corpus.MODEL, target, dtype=self._dtype, **self._widened)
            else:
                perturb(corpus.MODEL, target, NOISE, seed=int(name.removeprefix("member ")))
        return target

    def ours(self, name: str, dtype: str | None = None, kept: str = "auto"):
        """The network in pybeam; its keys and values are `kept` in that dtype."""
        options = dict(device=self._device, dtype=dtype or self._dtype, cache_dtype=kept)

        def load():
            members = [f"member {i}" for i in range(MEMBERS)] if name == "ensemble" else [name]
            directories = [self.directory(member) for member in members]
            return pybeam.load_model(
                directories if name == "ensemble" else directories[0], **options
            )

        return self._once(("pybeam", name, dtype, kept), load)

    def transformers(self, name: str):
        return self._once(
            ("transformers", name),
            lambda: peers.transformers_model(self.directory(name), self._device, self._dtype),
        )

    def ctranslate2(
        self, name: str, compute_type: str, vocabulary: list[str], side_by_side: int = 1
    ):
        return self._once(
            ("ctranslate2", name, compute_type, side_by_side),
            lambda: peers.loaded_ctranslate2(
                self.ctranslate2_directory(name, vocabulary),
                torch.get_num_threads(),
                compute_type,
                side_by_side,
            ),
        )

    def ctranslate2_directory(self, name: str, vocabulary: list[str]) -> Path:
        target = self._folder / f"{name}-ctranslate2"
        if not target.exists():
            peers.ctranslate2_directory(self.transformers(name), vocabulary, target)
        return target

    def _once(self, key: tuple, load: Callable[[], object]):
        if key not in self._known:
            before = self._meter.allocated_bytes()
            self._known[key] = load()
            self.weight_bytes[key] = self._meter.allocated_bytes() - before
        return self._known[key]


def trained_reverse() -> Path:
    """The model of the other direction.

    Raises:
        FileNotFoundError: it is not trained yet.
    """
    if not (corpus.REVERSE / "model.safetensors").exists():
        own, script = (p.relative_to(ROOT) for p in (corpus.REVERSE, corpus.MODEL / "train.py"))
        raise FileNotFoundError(
            f"{corpus.REVERSE} has no model; with bible-es-en/train.* beside what `make data` builds and "
            f"{corpus.MODEL.name}'s sentencepiece.model in it, train it with "
            f"`python {script} .data/bible-es-en {own} 11 en-es`"
        )
    return corpus.REVERSE


def perturb(source: Path, target: Path, noise: float, seed: int) -> None:
    """Copy a model; every weight w of a tensor becomes w + noise * std(tensor) * N(0, 1)."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    for name, weight in weights.items():
        scale = noise * weight.float().std(correction=0)
        change = scale * torch.randn(weight.shape, generator=generator)
        weights[name] = (weight.float() + change).to(weight.dtype)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
