"""Tiny models of several front ends, with one vocabulary, and sources for them."""

from __future__ import annotations

import random

import pytest
import torch

from pybeam.export import export_onnx
from pybeam.models import load_model
from pybeam.models.huggingface import wrap
from support.tiny_models import save_tiny_model

VOCAB = 45


def hashed(prefixes, lengths, source_ids):
    """Logits that depend on every token of the prefix, its length and the source."""
    code = source_ids * 7 + lengths
    for t in range(prefixes.shape[1]):
        code = torch.where(t < lengths, (code * 31 + prefixes[:, t] + 1) % 1009, code)
    return torch.sin(code[:, None] * torch.arange(1, VOCAB + 1) * 0.37).float()


def wrapped(kind: str, device):
    pytest.importorskip("transformers")
    from support.huggingface_models import DENSE, tiny_network

    keeps = "dense" if kind in DENSE else "tree"
    return wrap(tiny_network(kind).to(device), cache=keeps)


def onnx_model(tmp_path_factory, device, save=lambda directory: save_tiny_model(directory, "bart")):
    if device.type != "cpu":
        pytest.skip("ONNX graphs run on the CPU")
    for package in ("onnx", "onnx_ir", "onnxruntime"):
        pytest.importorskip(package)
    original, exported = tmp_path_factory.mktemp("original"), tmp_path_factory.mktemp("onnx")
    save(original)
    export_onnx(load_model(original, device="cpu"), exported)
    return load_model(exported, device="cpu")


def sources(num: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, 37) for _ in range(rng.randint(1, 20))] for _ in range(num)]
