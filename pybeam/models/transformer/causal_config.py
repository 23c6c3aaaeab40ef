"""The configuration of a decoder-only transformer, from the JSON files of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pybeam.models.fields import Fields
from pybeam.models.linear import ACTIVATIONS
from pybeam.models.transformer.facts import ExpertFacts, NormFacts, StackFacts
from pybeam.models.transformer.families import FAMILIES, Family, Flag
from pybeam.models.transformer.frequencies import Frequencies, read_frequencies
from pybeam.text.json_files import MAX_LAYERS, eos_ids, folder_config, read_generation

FULL, SLIDING = "full_attention", "sliding_attention"
# positions of models that name no limit; slopes are tabulated for so many distances
MAX_SLOPES = 1 << 15
# frequencies are made before the weights show how many there should be
MAX_HEAD = 1 << 16


@dataclass(frozen=True)
class CausalConfig:
    """Shapes and facts of one checkpoint."""

    path: Path
    model_type: str
    family: Family
    vocab_size: int
    stack: StackFacts
    is_parallel: bool
    ties_embeddings: bool
    frequencies: tuple[Frequencies, ...]  # of each rotary embedding
    soft_cap: float | None
    output_soft_cap: float | None
    scale: float
    embedding_scale: float
    max_positions: int
    eos_ids: tuple[int, ...]
    pad_id: int | None


def read_config(directory: Path, eos_id: int | Sequence[int] | None = None) -> CausalConfig:
    """Read `config.json` and, if there is one, `generation_config.json`, which may name several EOS.

    Fields that transformers does not read for this `model_type` are ignored.

    Raises:
        ValueError: a file or field is missing or wrong, or its value is not supported.
    """
    path = directory / "config.json"
    config = folder_config(directory)
    generation = read_generation(directory, eos_id)
    model_type = config["model_type"]
    family = FAMILIES[model_type]
    fields = Fields(path, {**family.defaults, **config}, names=family.fields)
    if family.variant is not None:
        family = family.variant(family, fields)
        fields = replace(fields, names=family.fields)
    _refuse(fields, family)
    vocab_size, stack = fields.size("vocab_size"), _stack(fields, family)
    scalar = fields.number("query_pre_attn_scalar", 256) if family.is_capped else stack.head_size
    unlimited = MAX_SLOPES if family.has_slopes else None
    max_positions = fields.size("max_position_embeddings", unlimited)
    frequencies: tuple[Frequencies, ...] = ()
    if family.has_rotary:
        size = _rotary_size(fields, family, stack.head_size)
        types, is_partial = _rotaries(family), family.partial_rotary is not None
        frequencies = read_frequencies(
            fields, size, max_positions, types, may_be_partial=is_partial
        )
    return CausalConfig(
        path=path,
        model_type=model_type,
        family=family,
        vocab_size=vocab_size,
        stack=stack,
        is_parallel=_fact(fields, family.is_parallel),
        ties_embeddings=fields.flag("tie_word_embeddings", family.ties_embeddings),
        frequencies=frequencies,
        soft_cap=_soft_cap(fields, family),
        output_soft_cap=fields.cap("final_logit_softcapping", family.output_soft_cap)
        if family.is_capped
        else None,
        scale=scalar**-0.5,
        embedding_scale=stack.hidden_size**0.5 if family.scales_embedding else 1.0,
        max_positions=max_positions,
        eos_ids=eos_ids(path, config, generation, vocab_size),
        pad_id=fields.optional_size("pad_token_id", 0),
    )


def _stack(fields: Fields, family: Family) -> StackFacts:
    """Return the shapes and facts of the layers."""
    heads = fields.size("num_attention_heads")
    key_heads = fields.optional_size("num_key_value_heads", 1, family.num_key_heads) or heads
    if heads % key_heads:
        raise fields.error(
            "num_attention_heads", f"a multiple of `num_key_value_heads` = {key_heads}"
        )
    hidden_size = fields.size("hidden_size")
    head_size = fields.size("head_dim", family.head_size or hidden_size // heads, most=MAX_HEAD)
    if head_size % 2:
        raise fields.error(
            "head_dim", "even, because halves of heads are turned against each other"
        )
    types = _layer_types(fields, family)
    inner_size = None if family.inner_factor is None else family.inner_factor * hidden_size
    has_qkv_bias = _fact(fields, family.has_qkv_bias)
    return StackFacts(
        names=family.names,
        norm=NormFacts(
            epsilon=fields.number("rms_norm_eps", family.epsilon),
            has_bias=family.has_layer_norms,
            is_wide=not family.has_layer_norms,
            offset=family.norm_offset,
        ),
        num_layers=len(types),
        hidden_size=hidden_size,
        inner_size=fields.size("intermediate_size", inner_size),
        num_heads=heads,
        num_key_heads=key_heads,
        head_size=head_size,
        activation=fields.choice("hidden_act", family.activation, ACTIVATIONS),
        is_gated=family.is_gated,
        has_qkv_bias=has_qkv_bias,
        has_key_bias=has_qkv_bias,
        has_out_bias=_fact(fields, family.has_out_bias),
        has_inner_bias=_fact(fields, family.has_inner_bias),
        is_grouped=family.is_grouped,
        is_transposed=family.is_transposed,
        windows=_windows(fields, family, types),
        rotary=[int(family.has_two_rotaries and one == SLIDING) for one in types]
        if family.has_rotary
        else (),
        experts=_experts(fields, family, len(types)),
    )


def _fact(fields: Fields, fact: bool | Flag) -> bool:
    return fact if isinstance(fact, bool) else fields.flag(*fact)


def _experts(fields: Fields, family: Family, num_layers: int) -> ExpertFacts | None:
    """Return the mixtures of experts, and which layers have one."""
    if family.experts is None:
        return None
    num, step = fields.size("num_experts"), fields.size("decoder_sparse_step", 1)
    without = fields.get("mlp_only_layers") or []
    if not isinstance(without, list) or not all(type(i) is int for i in without):
        raise fields.error("mlp_only_layers", "a list of layers")
    return ExpertFacts(
        names=family.experts,
        num=num,
        num_chosen=fields.size("num_experts_per_tok", most=num),
        inner_size=fields.size("expert_size"),
        is_normalised=_fact(fields, family.normalises_experts),
        layers=frozenset(i for i in range(num_layers) if i not in without and (i + 1) % step == 0),
    )


def _rotary_size(fields: Fields, family: Family, head_size: int) -> int:
    """Return how many numbers of a head are turned."""
    if family.partial_rotary is None:
        return head_size
    name, own = "partial_rotary_factor", fields.get("rope_parameters")
    nested = own if isinstance(own, dict) and own.get(name) is not None else fields.config
    part = replace(fields, config=nested).number(name, family.partial_rotary)
    size = int(head_size * part)
    if not 2 <= size <= head_size or size % 2:
        raise fields.error(name, f"a part of {head_size} numbers of a head that is even")
    return size


def _refuse(fields: Fields, family: Family) -> None:
    """Raise ValueError for a field that makes another network of this one."""
    for name, values in family.expected.items():
        fields.expect(name, (None, *values))
    fields.expect("use_bidirectional_attention", (None, False))
    fields.expect("is_encoder_decoder", (None, False))
    if family.partial_rotary is None:
        fields.expect("partial_rotary_factor", (None, 1, 1.0))
    found = fields.config.get("quantization_config")
    if found is not None and not (
        isinstance(found, dict) and found.get("quant_method") == "pybeam"
    ):
        raise ValueError(
            f"`quantization_config` in {fields.path} must be that of `pybeam.quantize`, but is {found!r}; "
            "load the model that it was quantised from"
        )


def _rotaries(family: Family) -> tuple[str | None, ...]:
    """Return the layer types that have rotary embeddings of their own; None: all have the same."""
    return (FULL, SLIDING) if family.has_two_rotaries else (None,)


def _layer_types(fields: Fields, family: Family) -> list[str]:
    num = fields.size("num_hidden_layers", most=MAX_LAYERS)
    # transformers does not read these types of a Llama or a Mistral
    reads_types = family.windows not in (None, "all")
    given = fields.config.get("layer_types") if reads_types else None
    if given is not None:
        is_known = isinstance(given, list) and set(given) <= {FULL, SLIDING}
        if not is_known or len(given) != num:
            raise fields.error("layer_types", f"{num} times {FULL!r} or {SLIDING!r}")
        return given
    if family.windows is None:
        return [FULL] * num
    if family.windows == "all":
        return [SLIDING] * num
    if family.windows == "late":
        first = fields.optional_size("max_window_layers", 0, 28)
        return [FULL if i < (first or 0) else SLIDING for i in range(num)]
    assert isinstance(family.windows, int)
    every = family.windows
    if family.has_two_rotaries:
        every = fields.size("sliding_window_pattern", every)
    return [SLIDING if (i + 1) % every else FULL for i in range(num)]


def _windows(fields: Fields, family: Family, types: list[str]) -> tuple[int | None, ...]:
    """Return the window of every layer."""
    window = None
    if family.windows is not None:
        window = fields.optional_size("sliding_window", 1, family.window)
        if family.windows == "late" and not fields.flag("use_sliding_window", False):
            window = None
    has_types = fields.config.get("layer_types") is not None and family.windows != "all"
    if window is None and has_types and SLIDING in types:
        raise fields.error("layer_types", "without windows, because `sliding_window` names none")
    return tuple(window if one == SLIDING else None for one in types)


def _soft_cap(fields: Fields, family: Family) -> float | None:
    if family.has_soft_cap:
        return fields.cap("attn_logit_softcapping", family.soft_cap)
    if family.is_capped:
        # transformers reads it and applies nothing
        fields.expect("attn_logit_softcapping", (None,))
    return None
