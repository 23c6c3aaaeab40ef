"""Tiny random decoder-only models of transformers, with nothing left at its default, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB, EOS, OTHER_EOS = 45, 2, 7
MAX_POSITIONS = 64
SHAPES = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=MAX_POSITIONS,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=EOS,
    rms_norm_eps=3e-5,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=24,
)
GEMMA = dict(head_dim=8, query_pre_attn_scalar=5, sliding_window=6)
# name -> class of the config, class of the model, options of the config
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        dict(use_sliding_window=True, sliding_window=6, max_window_layers=1),
    ),
    "qwen3": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        dict(head_dim=8, attention_bias=True, tie_word_embeddings=True),
    ),
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        dict(attention_bias=True, mlp_bias=True, head_dim=12, rope_parameters=LLAMA3),
    ),
    "mistral": ("MistralConfig", "MistralForCausalLM", dict(sliding_window=6)),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        dict(GEMMA, attn_logit_softcapping=1.5, final_logit_softcapping=4.0),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        dict(
            GEMMA,
            attention_bias=True,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            final_logit_softcapping=4.0,
        ),
    ),
}


def tiny_causal(kind: str, seed: int = 0, **options: Any) -> transformers.PreTrainedModel:
    """Make a model in eval mode, with random biases and norms, whose EOS comes at many lengths."""
    config_class, model_class, own = KINDS[kind]
    config = getattr(transformers, config_class)(**{**SHAPES, **own, **options})
    network = getattr(transformers, model_class)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            # Gemma adds 1 by itself
            is_scale = "norm" in name and not kind.startswith("gemma")
            weight.copy_(is_scale + 0.25 * torch.randn(weight.shape, generator=generator))
        # EOS is far up or far down, so it is often chosen
        network.get_output_embeddings().weight[EOS] *= 2.0
    network.generation_config = transformers.GenerationConfig(
        eos_token_id=[EOS, OTHER_EOS], pad_token_id=1, bos_token_id=0
    )
    return network


def save_tiny_causal(
    directory: Path, kind: str, seed: int = 0, **options: Any
) -> transformers.PreTrainedModel:
    """Save such a model, and return it."""
    network = tiny_causal(kind, seed, **options)
    network.save_pretrained(directory)
    return network


def teacher_forced(network: transformers.PreTrainedModel, prompt: list[int], output: list[int]):
    """Return the logits [T + 1, V] behind the prompt and behind every token of an output."""
    with torch.inference_mode():
        logits = network(input_ids=torch.tensor([prompt + output]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 :]
