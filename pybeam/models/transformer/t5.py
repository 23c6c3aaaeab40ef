"""Facts of T5 and its kin that other encoder-decoder transformers do not have."""

from __future__ import annotations

from typing import Any

from pybeam.models.fields import Fields
from pybeam.models.transformer.relative import RelativePositions
from pybeam.text.json_files import positive

# what they call fields
FIELDS = {
    "encoder_layers": ("num_layers",),
    "decoder_layers": ("num_decoder_layers", "num_layers"),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), ("num_heads",)),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), ("d_ff",)),
}
# a table has a bias for each distance, and no file shows how many there should be
MAX_DISTANCE = 1 << 16


def facts(fields: Fields, model_type: str, activation: str, hidden_size: int) -> dict[str, Any]:
    """Return fields of a `TransformerConfig`; `activation` is the family's."""
    is_gated, activation = _inner_activation(fields, activation)
    # T5 scales what its output layer reads if that is the token table, and mT5 never does
    scales = fields.get("scale_decoder_outputs")
    if scales is None:
        scales = model_type != "mt5" and fields.get("tie_word_embeddings") is not False
    return dict(
        activation=activation,
        embedding_scale=1.0,
        ties_embeddings=True,
        relative=_relative_positions(fields),
        inner_head_size=positive(fields.path, fields.config, "d_kv"),
        is_gated=is_gated,
        norm_epsilon=fields.number("layer_norm_epsilon", 1e-6),
        output_scale=hidden_size**-0.5 if scales else 1.0,
    )


def _relative_positions(fields: Fields) -> RelativePositions:
    buckets = fields.size("relative_attention_num_buckets", 32)
    distance = fields.size("relative_attention_max_distance", 128, most=MAX_DISTANCE)
    if buckets % 4 or distance <= buckets // 2:
        raise ValueError(
            f"`relative_attention_num_buckets` in {fields.path} must be a multiple of 4, and "
            f"`relative_attention_max_distance` more than half of it, but they are {buckets} and {distance}"
        )
    return RelativePositions(buckets, distance)


def _inner_activation(fields: Fields, default: str) -> tuple[bool, str]:
    """Return whether inner layers are gated, and their activation."""
    named = fields.get("feed_forward_proj", default)
    *gate, activation = named.split("-")
    if gate not in ([], ["gated"]):
        raise ValueError(
            f"`feed_forward_proj` in {fields.path} must be an activation, or 'gated-' and an activation, but "
            f"is {named!r}"
        )
    # this name has always stood for the approximation
    return bool(gate), "gelu_new" if gate and activation == "gelu" else activation
