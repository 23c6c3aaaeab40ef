"""Models that see images, too, whose language models are of families of their own."""

from __future__ import annotations

from typing import Any

# where there is text alone, nothing but the language model computes; what published configs leave out of it
LEFT_OUT: dict[str, dict[str, Any]] = {
    "gemma3": dict(vocab_size=262_208, num_attention_heads=8, max_position_embeddings=131_072),
    "llava": {},
    "llava_next": {},
    "mistral3": {},
}


def of_language(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the language model of such a model; that of another one stays as it is."""
    left_out, own = LEFT_OUT.get(str(config.get("model_type"))), config.get("text_config")
    if left_out is None or not isinstance(own, dict):
        return config
    return {**left_out, **config, **own, "is_encoder_decoder": False}
