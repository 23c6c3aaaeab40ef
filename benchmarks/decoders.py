"""Decoders alone in the shapes of published ones, with random weights: folders that every system reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

QWEN = dict(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    rope_theta=1_000_000.0,
)
LLAMA = dict(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    rope_theta=500_000.0,
)
# model type and sizes, by the name of the network that has them
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-0.6B": ("qwen3", QWEN),
    "Llama-3.2-1B": ("llama", LLAMA),
}
IDS = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)
# the spread of its weights that a network begins its training with
SPREAD = 0.02


def save_random(name: str, folder: Path, **others: Any) -> None:
    """Write a network of this shape in bfloat16. All of its layers have the same numbers.

    Args:
        name: one of `SHAPES`.
        folder: is made.
        others: sizes in place of its own.
    """
    # it takes seconds to import
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, sizes = SHAPES[name]
    config = AutoConfig.for_model(kind, **{**sizes, **IDS, **others})
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).state_dict()
    generator = torch.Generator().manual_seed(0)
    known: dict[tuple, torch.Tensor] = {}
    weights = {}
    for key, empty in shapes.items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if empty.ndim == 1:
            weights[key] = torch.ones(empty.shape, dtype=torch.bfloat16)
            continue
        # random numbers of a thousand megabytes would take a minute
        place = key.partition(".layers.")[2].partition(".")[2] or key
        if place not in known:
            known[place] = SPREAD * torch.randn(empty.shape, generator=generator)
        weights[key] = known[place].bfloat16()
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
