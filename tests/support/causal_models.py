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
# other shapes than Llama's
IDS = {
    name: SHAPES[name] for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
}
SIZES = dict(
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=40,
    max_position_embeddings=MAX_POSITIONS,
)
FALCON = dict(
    SIZES, activation="gelu_pytorch_tanh", ffn_hidden_size=40, bias=True, layer_norm_epsilon=3e-5
)
OTHER_KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        dict(n_embd=64, n_layer=3, n_head=4, n_positions=MAX_POSITIONS, n_inner=40),
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        dict(SIZES, ffn_dim=40, word_embed_proj_dim=64, activation_function="gelu"),
    ),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", dict(SIZES, layer_norm_eps=3e-5)),
    "gpt_neox, one after another": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        dict(SIZES, use_parallel_residual=False, attention_bias=False),
    ),
    "bloom": (
        "BloomConfig",
        "BloomForCausalLM",
        dict(hidden_size=72, n_layer=3, n_head=6, layer_norm_epsilon=3e-5),
    ),
    "falcon": ("FalconConfig", "FalconForCausalLM", FALCON),
    "falcon, new": (
        "FalconConfig",
        "FalconForCausalLM",
        dict(FALCON, new_decoder_architecture=True, num_kv_heads=2),
    ),
    "falcon, new with one norm": (
        "FalconConfig",
        "FalconForCausalLM",
        dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1),
    ),
    "falcon, one after another": (
        "FalconConfig",
        "FalconForCausalLM",
        dict(FALCON, multi_query=False, parallel_attn=False, bias=False),
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", dict(SIZES, num_key_value_heads=2)),
    "phi3": (
        "Phi3Config",
        "Phi3ForCausalLM",
        dict(SIZES, num_key_value_heads=2, sliding_window=6, original_max_position_embeddings=64),
    ),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", dict(SIZES, num_key_value_heads=1, head_dim=8)),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        dict(SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        dict(
            SIZES,
            num_key_value_heads=2,
            head_dim=8,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            mlp_only_layers=[1],
        ),
    ),
}


def tiny_causal(kind: str, seed: int = 0, **options: Any) -> transformers.PreTrainedModel:
    """Make a model in eval mode, with random biases and norms, whose EOS comes at many lengths."""
    if kind in KINDS:
        config_class, model_class, own = KINDS[kind]
        own = {**SHAPES, **own}
    else:
        config_class, model_class, own = OTHER_KINDS[kind]
        own = {**IDS, **own}
    config = getattr(transformers, config_class)(**{**own, **options})
    network = getattr(transformers, model_class)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            # Gemma adds 1 by itself
            is_norm = "norm" in name or "ln_" in name
            is_scale = is_norm and name.endswith("weight") and not kind.startswith("gemma")
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
