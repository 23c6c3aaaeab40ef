"""Models of `model.bin` without an encoder: a Generator's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from pybeam.models.ctranslate2.binary import Binary
from pybeam.models.ctranslate2.checkpoint import BinaryCheckpoint
from pybeam.models.ctranslate2.facts import StackReader
from pybeam.models.fields import Fields
from pybeam.models.transformer.causal import CausalTransformer
from pybeam.models.transformer.causal_assembly import CausalAssembly
from pybeam.models.transformer.causal_config import MAX_SLOPES, CausalConfig
from pybeam.models.transformer.facts import StackFacts
from pybeam.models.transformer.families import Family
from pybeam.models.transformer.frequencies import Frequencies, read_frequencies
from pybeam.text.ctranslate2 import Words

# positions of models whose file names no limit
NO_LIMIT = 1 << 15
SCALINGS = {-1: "default", 0: "linear", 1: "longrope", 2: "llama3"}
MAX_HEAD = 1 << 16


def build(
    binary: Binary,
    words: Words,
    eos_ids: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype | None,
    is_checked: bool,
) -> tuple[CausalTransformer, BinaryCheckpoint]:
    """Return the model of a file, and what was taken from it.

    Raises:
        ValueError: the file is not sound, or layers compute what pybeam does not.
    """
    config = _config(binary, words, eos_ids)
    checkpoint = BinaryCheckpoint(binary, "lm_head", is_checked=is_checked)
    return CausalAssembly(config, checkpoint, device, dtype).model(), checkpoint


def _config(binary: Binary, words: Words, eos_ids: tuple[int, ...]) -> CausalConfig:
    reader = StackReader(binary, "decoder", words.config)
    facts = reader.facts(is_wide=True)
    if binary.number("decoder/start_from_zero_embedding", 0):
        raise binary.error("decoder/start_from_zero_embedding", "false without an encoder", True)
    if not facts.is_pre_norm:
        raise binary.error("decoder/pre_norm", "true for a model without an encoder", False)
    vocab_size, _ = binary.shape("decoder/embeddings/weight", 2)
    positions = "decoder/position_encodings/encodings"
    has_table, has_slopes = positions in binary, bool(binary.number("decoder/alibi", 0))
    # slopes count distances, from the left or from the right, and softmax does not tell which
    names = "alibi_use_positive_positions", "alignment_layer", "alignment_heads", "sliding_window"
    binary.unread.difference_update(f"decoder/{name}" for name in names)
    if has_slopes and binary.number("decoder/scale_alibi", 0):
        raise binary.error(
            "decoder/scale_alibi", "false, because pybeam does not scale slopes", True
        )
    binary.unread.discard("decoder/scale_alibi")
    rotary, frequencies = _rotary(reader, facts)
    if not (has_table or has_slopes or frequencies):
        raise ValueError(
            f"{binary.path} has neither positions in a table, nor rotary ones, nor slopes"
        )
    windows = reader.of_layers("self_attention/sliding_window", 0)
    cap = float(binary.number("decoder/final_logit_softcapping", 0.0))
    stack = replace(facts, windows=[window or None for window in windows], rotary=rotary)
    return CausalConfig(
        path=binary.path,
        model_type=binary.spec,
        family=Family(
            names=facts.names,
            tokens="decoder.embed_tokens",
            final_norm="layer_norm",
            output="lm_head",
            position_table="decoder.embed_positions" if has_table else None,
            embedding_norm="layernorm_embedding"
            if reader.has("layernorm_embedding/gamma")
            else None,
            has_output_bias=reader.has("projection/bias"),
            has_slopes=has_slopes,
        ),
        vocab_size=vocab_size,
        stack=stack,
        is_parallel=reader.is_parallel,
        ties_embeddings=True,
        frequencies=frequencies,
        soft_cap=None,
        output_soft_cap=cap or None,
        scale=reader.scale(facts),
        embedding_scale=reader.embedding_scale(facts.hidden_size),
        max_positions=binary.shape(positions, 2)[0]
        if has_table
        else (MAX_SLOPES if has_slopes else NO_LIMIT),
        eos_ids=eos_ids,
        pad_id=words.target_ids.get("<pad>"),
    )


def _rotary(reader: StackReader, facts: StackFacts) -> tuple[list[int], tuple[Frequencies, ...]]:
    """Return which rotary embedding each layer has, and the frequencies of each; nothing without them."""
    binary, attention = reader.binary, "self_attention"
    size = reader.of_all_layers(f"{attention}/rotary_dim")
    if size is None:
        return [], ()
    if reader.of_all_layers(f"{attention}/rotary_interleave", 1):
        raise binary.error(
            "decoder/layer_0/self_attention/rotary_interleave",
            "false, because pybeam turns halves of a head against each other",
            True,
        )
    size = size or facts.head_size
    if type(size) is not int or size % 2 or not 2 <= size <= facts.head_size:
        raise binary.error(
            f"decoder/layer_0/{attention}/rotary_dim", "even, and within a head", size
        )
    bases = reader.of_layers(f"{attention}/rotary_base", 10_000.0)
    different = sorted(set(bases))
    scaling = _scaling(reader)
    fields = [Fields(binary.path, {**scaling, "rope_theta": base}) for base in different]
    frequencies = [
        read_frequencies(one, size, NO_LIMIT, (None,), may_be_partial=True)[0] for one in fields
    ]
    if scaling.get("rope_scaling", {}).get("rope_type") != "llama3":
        factor = _attention_factor(reader)
        frequencies = [one._replace(factor=factor) for one in frequencies]
    return [different.index(base) for base in bases], tuple(frequencies)


def _scaling(reader: StackReader) -> dict[str, Any]:
    """Return how frequencies are scaled, in the words of transformers."""

    def one(name: str, default: float | None = None) -> Any:
        return reader.of_all_layers(f"self_attention/{name}", default)

    kind = SCALINGS.get(one("rotary_scaling_type", -1))
    if kind is None:
        place = "decoder/layer_0/self_attention/rotary_scaling_type"
        raise reader.binary.error(
            place, f"one of {', '.join(SCALINGS.values())}", one("rotary_scaling_type")
        )
    original, factor = one("original_max_position_embeddings", 0), one("rotary_scaling_factor", 1.0)
    own: dict[str, Any] = {"rope_type": kind, "factor": float(factor)}
    low, high = one("rotary_low_freq_factor", 1.0), one("rotary_high_freq_factor", 4.0)
    if original:
        own["original_max_position_embeddings"] = original
    if kind == "llama3":
        # without it, CTranslate2 takes all wavelengths for long ones
        own |= (
            dict(low_freq_factor=low, high_freq_factor=high)
            if original
            else {"rope_type": "linear"}
        )
    if kind == "longrope":
        for length in ("short", "long"):
            name = f"layer_{{}}/self_attention/rotary_scaling_{length}_factor"
            found = [reader.numbers(name.format(i)) for i in range(reader.num_layers)]
            if any(factors != found[0] for factors in found):
                raise reader.binary.error(
                    f"decoder/{name.format('*')}", "the same in all layers", found
                )
            own[f"{length}_factor"] = found[0]
    return {} if kind == "default" else {"rope_scaling": own}


def _attention_factor(reader: StackReader) -> float:
    """Return the factor of cosines and sines for a model whose positions were extended."""
    original, extended = (
        reader.of_all_layers(f"self_attention/{name}", 0)
        for name in ("original_max_position_embeddings", "max_position_embeddings")
    )
    ratio = extended // original if original > 1 and extended else 1
    return math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
