"""Models of `model.bin` with an encoder: a Translator's, and Whisper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pybeam.models.ctranslate2.binary import Binary
from pybeam.models.ctranslate2.checkpoint import BinaryCheckpoint
from pybeam.models.ctranslate2.facts import StackReader
from pybeam.models.transformer.config import Family, TransformerConfig
from pybeam.models.transformer.facts import StackFacts
from pybeam.models.transformer.fronts import Convolution, FrontConfig
from pybeam.models.transformer.given import COMPUTED_POSITIONS, GivenAssembly
from pybeam.models.transformer.relative import RelativePositions
from pybeam.models.transformer.t5 import MAX_DISTANCE
from pybeam.text.ctranslate2 import Words

RELATIVE = "{}/layer_{}/self_attention/relative_attention_bias"


def build(
    binary: Binary,
    words: Words,
    eos_ids: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype | None,
    is_checked: bool,
) -> tuple[Any, BinaryCheckpoint]:
    """Return the model of a file, and what was taken from it.

    Raises:
        ValueError: the file is not sound, or layers compute what pybeam does not.
    """
    reads = {stack: StackReader(binary, stack, words.config) for stack in ("encoder", "decoder")}
    # Marian starts from no token, whose embedding is zero: a row behind those of the vocabulary
    starts_from_zero = bool(binary.number("decoder/start_from_zero_embedding", 0))
    output = "proj_out" if words.is_whisper else "lm_head"
    checkpoint = BinaryCheckpoint(
        binary, output, num_zeros=int(starts_from_zero), is_checked=is_checked
    )
    facts = {
        "encoder": reads["encoder"].facts(),
        "decoder": reads["decoder"].facts(has_cross=True),
    }
    config = _config(binary, words, reads, facts, checkpoint)
    start_id = words.special_id("decoder_start_token")
    if starts_from_zero:
        start_id = config.vocab_size - 1
    config = replace(
        config,
        # without one, a request names the token to start from
        start_id=eos_ids[0] if start_id is None else start_id,
        eos_id=eos_ids[0],
        other_eos_ids=eos_ids[1:],
    )
    assembly = GivenAssembly(
        *(config, checkpoint, device, dtype, facts),
        starts_from_zero=starts_from_zero,
        first_position=1,
    )
    return assembly.model(), checkpoint


def _config(
    binary: Binary,
    words: Words,
    reads: dict[str, StackReader],
    facts: dict[str, StackFacts],
    checkpoint: BinaryCheckpoint,
) -> TransformerConfig:
    _check_stacks(binary, reads, facts)
    vocab_size, d = _table(checkpoint, "decoder.embed_tokens.weight")
    scales = [reads["decoder"].embedding_scale(d)]
    front, source_size = None, vocab_size
    if words.is_whisper:
        # the encoder's activation is no number in the file
        facts["encoder"] = replace(facts["encoder"], activation="gelu")
        front = _front(binary)
    else:
        source_size, _ = _table(checkpoint, "encoder.embed_tokens.weight")
        scales.append(reads["encoder"].embedding_scale(d))
    relative = _relative(binary, reads)
    _check_scales(binary, reads, facts, scales, relative is not None)
    _leave_out(binary)
    encoder, decoder = facts["encoder"], facts["decoder"]
    return TransformerConfig(
        path=binary.path,
        model_type="whisper" if words.is_whisper else binary.spec,
        family=Family(
            is_pre_norm=decoder.is_pre_norm,
            has_embedding_norm=reads["decoder"].has("layernorm_embedding/gamma"),
            has_final_norm=reads["decoder"].has("layer_norm/gamma"),
            positions="relative" if relative else "stored",
            hears=words.is_whisper,
            shares_relative=_shares_relative(binary, decoder.num_layers),
        ),
        source_vocab_size=source_size,
        vocab_size=vocab_size,
        hidden_size=d,
        num_encoder_layers=encoder.num_layers,
        num_decoder_layers=decoder.num_layers,
        num_encoder_heads=encoder.num_heads,
        num_decoder_heads=decoder.num_heads,
        encoder_inner_size=encoder.inner_size,
        decoder_inner_size=decoder.inner_size,
        max_positions=None if relative else _positions(binary, "decoder"),
        max_source_positions=None if relative else _positions(binary, "encoder"),
        activation=decoder.activation,
        embedding_scale=scales[0],
        ties_embeddings=True,
        pad_id=words.target_ids.get("<pad>", 0),
        start_id=0,
        eos_id=0,
        front=front,
        relative=relative,
        inner_head_size=decoder.head_size,
        is_gated=decoder.is_gated,
        norm_epsilon=decoder.norm.epsilon,
        output_scale=float(binary.number("decoder/scale_outputs", 1.0)),
    )


def _check_stacks(
    binary: Binary, reads: dict[str, StackReader], facts: dict[str, StackFacts]
) -> None:
    if "encoder/embeddings_1/weight" in binary:
        raise ValueError(
            f"{binary.path} reads several words at each place of a source (source factors)"
        )
    if len({one.hidden_size for one in facts.values()}) > 1:
        raise ValueError(f"encoder and decoder in {binary.path} must have states of one size")
    has_own_keys = all(one.num_key_heads == one.num_heads for one in facts.values())
    if not has_own_keys or any(one.is_parallel for one in reads.values()):
        raise ValueError(
            f"layers in {binary.path} must have as many heads of keys as of queries, and attention before "
            "inner layers, since there is an encoder"
        )


def _check_scales(
    binary: Binary,
    reads: dict[str, StackReader],
    facts: dict[str, StackFacts],
    scales: list[float],
    is_relative: bool,
) -> None:
    """Raise ValueError unless queries are scaled as usual, and embeddings of both stacks alike."""
    attention = [("decoder", "attention"), *((stack, "self_attention") for stack in reads)]
    found = {reads[stack].scale(facts[stack], one) for stack, one in attention}
    wanted = {1.0} if is_relative else {one.head_size**-0.5 for one in facts.values()}
    if not found <= wanted or len(set(scales)) > 1:
        raise ValueError(
            f"`queries_scale` and `scale_embeddings` in {binary.path} must be {sorted(wanted)} and the same "
            f"in both stacks, but are {sorted(found)} and {scales}"
        )


def _leave_out(binary: Binary) -> None:
    """Leave numbers out that say nothing about what is computed."""
    names = ["encoder/embeddings_merge", "encoder/multi_query_attention", "encoder/pre_norm"]
    names += [f"decoder/{name}" for name in ("alignment_layer", "alignment_heads")]
    if not binary.number("decoder/alibi", 0):
        names += [f"decoder/{name}" for name in ("alibi_use_positive_positions", "scale_alibi")]
    binary.unread.difference_update(names)


def _shares_relative(binary: Binary, num_layers: int) -> bool:
    """Whether all layers have the relative positions of the first."""
    names = [RELATIVE.format("decoder", i) for i in range(num_layers)]
    return len({binary.aliases.get(name, name) for name in names}) == 1


def _table(checkpoint: BinaryCheckpoint, name: str) -> tuple[int, int]:
    """Return the shape of a token table."""
    if name not in checkpoint or len(checkpoint.stored[name].shape) != 2:
        raise ValueError(
            f"{checkpoint.directory} must have a token table {name!r} of two dimensions"
        )
    rows, columns = checkpoint.stored[name].shape
    return rows, columns


def _positions(binary: Binary, stack: str) -> int:
    """Return how many positions a stack has."""
    name = f"{stack}/position_encodings/encodings"
    return binary.shape(name, 2)[0] if name in binary else COMPUTED_POSITIONS


def _front(binary: Binary) -> FrontConfig:
    """Return the shapes of Whisper's convolutions."""
    rows, num_features, _ = binary.shape("encoder/conv1/weight", 3)
    convolutions = Convolution("conv1", 3, 1, rows), Convolution("conv2", 3, 2, rows)
    return FrontConfig(num_features, convolutions, "gelu")


def _relative(binary: Binary, reads: dict[str, StackReader]) -> RelativePositions | None:
    """Return how T5 puts distances into buckets; None: this is another model."""
    found = set()
    for stack, reader in reads.items():
        if RELATIVE.format(stack, 0) in binary:
            buckets, _ = binary.shape(RELATIVE.format(stack, 0), 2)
            found.add(
                (buckets, reader.of_all_layers("self_attention/relative_attention_max_distance"))
            )
        else:
            found.add((0, 0))
    [(buckets, distance), *others] = found
    if others:
        raise ValueError(
            f"both stacks in {binary.path} must have the same relative positions, or none"
        )
    if not buckets:
        return None
    if buckets % 4 or type(distance) is not int or not buckets // 2 < distance <= MAX_DISTANCE:
        raise ValueError(
            f"relative positions in {binary.path} must have a multiple of 4 buckets, and as their largest "
            f"distance more than half of that and at most {MAX_DISTANCE}, but have {buckets} and {distance}"
        )
    return RelativePositions(buckets, distance)
