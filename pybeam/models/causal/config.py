"""The configuration of a decoder-only transformer, from the JSON files of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pybeam.models.causal.fields import Fields
from pybeam.models.causal.frequencies import Frequencies, read_frequencies
from pybeam.models.linear import ACTIVATIONS
from pybeam.text.json_files import MAX_LAYERS, eos_ids, read_generation, read_json

FULL, SLIDING = "full_attention", "sliding_attention"
# frequencies are made before the weights show how many there should be
MAX_HEAD = 1 << 16


@dataclass(frozen=True)
class Family:
    """Facts that all checkpoints of one `model_type` share, and defaults for configs that lack a field."""

    activation_field: str = "hidden_act"
    activation: str = "silu"
    head_size: int | None = None  # None: hidden size over heads
    num_key_heads: int | None = None  # None: as many as heads of queries
    ties_embeddings: bool = False
    has_head_norms: bool = False  # queries and keys are normalised
    has_qkv_bias: bool | None = (
        False  # None: the field `attention_bias` says it, of `self_out`, too
    )
    may_have_inner_bias: bool = False  # the field `mlp_bias` says it
    is_gemma: bool = False  # 1 + weight in norms, norms behind sublayers, scaled embeddings
    has_soft_cap: bool = False  # whether transformers applies `attn_logit_softcapping`
    soft_cap: float | None = None
    output_soft_cap: float | None = None
    window: int | None = 4096
    # which layers have a window where `layer_types` is missing: "late", "all", or all but every n-th
    windows: str | int | None = None
    has_two_rotaries: bool = False  # one for layers with a window, one for others


FAMILIES = {
    "qwen2": Family(has_qkv_bias=True, num_key_heads=32, windows="late"),
    "qwen3": Family(
        has_qkv_bias=None, num_key_heads=32, windows="late", has_head_norms=True, head_size=128
    ),
    "llama": Family(has_qkv_bias=None, may_have_inner_bias=True),
    "mistral": Family(num_key_heads=8, windows="all"),
    "gemma2": Family(
        activation_field="hidden_activation",
        activation="gelu_pytorch_tanh",
        head_size=256,
        num_key_heads=4,
        ties_embeddings=True,
        has_qkv_bias=None,
        is_gemma=True,
        has_soft_cap=True,
        soft_cap=50.0,
        output_soft_cap=30.0,
        windows=2,
    ),
    "gemma3_text": Family(
        activation_field="hidden_activation",
        activation="gelu_pytorch_tanh",
        head_size=256,
        num_key_heads=4,
        ties_embeddings=True,
        has_head_norms=True,
        has_qkv_bias=None,
        is_gemma=True,
        windows=6,
        has_two_rotaries=True,
    ),
}


@dataclass(frozen=True)
class CausalConfig:
    """Shapes and facts of one checkpoint."""

    path: Path
    model_type: str
    family: Family
    vocab_size: int
    hidden_size: int
    inner_size: int
    num_heads: int
    num_key_heads: int
    head_size: int
    activation: str
    epsilon: float
    ties_embeddings: bool
    has_qkv_bias: bool
    has_out_bias: bool
    has_inner_bias: bool
    windows: tuple[int | None, ...]  # of each layer
    rotary: tuple[int, ...]  # of each layer, which of `frequencies`
    frequencies: tuple[Frequencies, ...]
    scale: float
    soft_cap: float | None
    output_soft_cap: float | None
    embedding_scale: float
    max_positions: int
    eos_ids: tuple[int, ...]
    pad_id: int | None

    @property
    def num_layers(self) -> int:
        return len(self.windows)


def is_causal(directory: Path) -> bool:
    """Whether `config.json` names a decoder-only transformer that is built in."""
    path = directory / "config.json"
    model_type = read_json(path).get("model_type") if path.exists() else None
    return isinstance(model_type, str) and model_type in FAMILIES


def read_config(directory: Path, eos_id: int | Sequence[int] | None = None) -> CausalConfig:
    """Read `config.json` and, if there is one, `generation_config.json`, which may name several EOS.

    Fields that transformers does not read for this `model_type` are ignored.

    Raises:
        ValueError: a file or field is missing or wrong, or its value is not supported.
    """
    path = directory / "config.json"
    config = read_json(path)
    generation = read_generation(directory, eos_id)
    model_type = config["model_type"]
    family, fields = FAMILIES[model_type], Fields(path, config)
    _refuse(fields)
    vocab_size, heads = fields.size("vocab_size"), fields.size("num_attention_heads")
    key_heads = fields.size("num_key_value_heads", family.num_key_heads or heads)
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
    max_positions = fields.size("max_position_embeddings")
    has_bias = family.has_qkv_bias
    if has_bias is None:
        has_bias = fields.flag("attention_bias", False)
    scalar = fields.number("query_pre_attn_scalar", 256) if family.is_gemma else head_size
    frequencies = read_frequencies(fields, head_size, max_positions, _rotaries(family))
    return CausalConfig(
        path=path,
        model_type=model_type,
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        inner_size=fields.size("intermediate_size"),
        num_heads=heads,
        num_key_heads=key_heads,
        head_size=head_size,
        activation=fields.choice(family.activation_field, family.activation, ACTIVATIONS),
        epsilon=fields.number("rms_norm_eps", 1e-6),
        ties_embeddings=fields.flag("tie_word_embeddings", family.ties_embeddings),
        has_qkv_bias=has_bias,
        has_out_bias=has_bias and family.has_qkv_bias is None,
        has_inner_bias=family.may_have_inner_bias and fields.flag("mlp_bias", False),
        windows=_windows(fields, family, types),
        rotary=tuple(int(family.has_two_rotaries and one == SLIDING) for one in types),
        frequencies=frequencies,
        scale=scalar**-0.5,
        soft_cap=_soft_cap(fields, family),
        output_soft_cap=fields.cap("final_logit_softcapping", family.output_soft_cap)
        if family.is_gemma
        else None,
        embedding_scale=hidden_size**0.5 if family.is_gemma else 1.0,
        max_positions=max_positions,
        eos_ids=eos_ids(path, config, generation, vocab_size),
        pad_id=fields.optional_size("pad_token_id", 0),
    )


def _refuse(fields: Fields) -> None:
    """Raise ValueError for a field that makes another network of this one."""
    fields.expect("use_bidirectional_attention", (None, False))
    fields.expect("is_encoder_decoder", (None, False))
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
    if family.is_gemma:
        # transformers reads it and applies nothing
        fields.expect("attn_logit_softcapping", (None,))
    return None
