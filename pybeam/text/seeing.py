"""Models that see images, read as the language models that are in them."""

from __future__ import annotations

from typing import Any

# where there is text alone, nothing but the language model computes; fields of it that configs leave out
SEEING: dict[str, dict[str, Any]] = {
    "gemma3": dict(model_type="gemma3_text", tie_word_embeddings=True),
    "llava": dict(model_type="llama"),
    "llava_next": dict(model_type="llama"),
    "mistral3": dict(model_type="mistral", tie_word_embeddings=True),
}
# by its type, what transformers takes for sizes and special tokens that are left out; families know the rest
LEFT_OUT: dict[str, dict[str, Any]] = {
    "gemma3_text": dict(
        vocab_size=262_208,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        max_position_embeddings=131_072,
        eos_token_id=1,
        pad_token_id=0,
    ),
    "llama": dict(
        vocab_size=32_000,
        hidden_size=4096,
        intermediate_size=11_008,
        num_hidden_layers=32,
        num_attention_heads=32,
        max_position_embeddings=2048,
        eos_token_id=2,
    ),
    "mistral": dict(
        vocab_size=32_000,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        max_position_embeddings=131_072,
        eos_token_id=2,
    ),
    "qwen2": dict(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=22_016,
        num_hidden_layers=32,
        num_attention_heads=32,
        max_position_embeddings=32_768,
    ),
}
# the whole model's are used where it names them
OF_THE_WHOLE = ("eos_token_id", "pad_token_id")


def of_language(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the language model of such a model; that of another one stays as it is."""
    seeing, own = SEEING.get(str(config.get("model_type"))), config.get("text_config")
    if seeing is None or not isinstance(own, dict):
        return config
    named = {**seeing, **own}
    return {
        **config,
        **LEFT_OUT.get(str(named["model_type"]), {}),
        **named,
        **{name: config[name] for name in OF_THE_WHOLE if config.get(name) is not None},
        # output layers that differ stay two all the same
        "tie_word_embeddings": any(one.get("tie_word_embeddings") for one in (config, own, seeing)),
        "is_encoder_decoder": False,
    }
