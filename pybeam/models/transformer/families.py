"""The families of decoder-only transformers: a row for every `model_type` that `load_model` knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pybeam.models.fields import Fields
from pybeam.models.transformer.facts import ExpertNames, Names


class Flag(NamedTuple):
    """A fact that a field of the config says."""

    field: str
    default: bool = False


LLAMA = Names()


@dataclass(frozen=True)
class Family:
    """Facts that all checkpoints of one `model_type` share, and defaults for configs that lack a field.

    Attributes:
        names: of the tensors of a layer.
        tokens, final_norm, output, position_table, embedding_norm: of other tensors, without ``.weight``.
        fields: names that the config has for what other families call otherwise, the preferred one first.
        expected: values that a field may have, because others make another network.
        defaults: what a config has where it lacks these fields of its own.
        windows: which layers have a window where `layer_types` is missing: "late", "all", or all but every
            n-th.
    """

    names: Names = LLAMA
    tokens: str = "embed_tokens"
    final_norm: str = "norm"
    output: str = "lm_head"
    position_table: str | None = None  # of positions that are learned
    embedding_norm: str | None = None
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    expected: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    activation: str = "silu"
    epsilon: float = 1e-6
    head_size: int | None = None  # None: hidden size over heads
    num_key_heads: int | None = None  # None: as many as heads of queries
    inner_factor: int | None = None  # inner size over hidden size; None: the config must say it
    ties_embeddings: bool = False
    has_layer_norms: bool = False  # else root-mean-square norms
    norm_offset: float = 0.0  # of weights of norms
    has_qkv_bias: bool | Flag = False
    has_out_bias: bool | Flag = False
    has_inner_bias: bool | Flag = False
    has_output_bias: bool = False
    is_gated: bool = True
    is_parallel: bool | Flag = False
    is_grouped: bool = False  # see `StackFacts`
    is_transposed: bool = False
    experts: ExpertNames | None = None
    normalises_experts: bool | Flag = False  # shares of the chosen experts sum to 1
    has_rotary: bool = True
    partial_rotary: float | None = None  # the part of a head that is turned; None: always all
    has_slopes: bool = False  # a bias of scores that grows with the distance
    position_offset: int = 0  # rows of the table before that of the first token
    scales_embedding: bool = False
    is_capped: bool = False  # Gemma 2 and 3: `query_pre_attn_scalar`, `final_logit_softcapping`
    has_soft_cap: bool = False  # whether transformers applies `attn_logit_softcapping`
    soft_cap: float | None = None
    output_soft_cap: float | None = None
    window: int | None = 4096
    windows: str | int | None = None
    has_two_rotaries: bool = False  # one for layers with a window, one for others
    # what other facts follow from a config's fields
    variant: Callable[[Family, Fields], Family] | None = None


def _falcon(family: Family, fields: Fields) -> Family:
    """Return the facts of one of Falcon's two architectures."""
    if fields.flag("new_decoder_architecture", False):
        fields.expect("parallel_attn", (None, True))
        num_norms = fields.optional_size("num_ln_in_parallel_attn", 1) or 2
        own: dict[str, Any] = dict(self_norm="ln_attn", inner_norm="ln_mlp")
        own = own if num_norms == 2 else ONE_NORM
        return replace(family, names=replace(family.names, **own))
    own = ONE_NORM if fields.flag("parallel_attn", True) else {}
    key_heads = 1 if fields.flag("multi_query", True) else None
    without = {**family.fields, "num_key_value_heads": ()}
    names = replace(family.names, **own)
    return replace(family, names=names, fields=without, num_key_heads=key_heads)


def _gemma(family: Family, fields: Fields) -> Family:
    """Return the facts of Gemma, whose first files say "gelu" and mean its approximation."""
    return (
        replace(family, fields={"hidden_act": ()}) if fields.get("hidden_act") == "gelu" else family
    )


def _opt(family: Family, fields: Fields) -> Family:
    """Return the facts of OPT, and refuse token tables that are narrower than the layers."""
    fields.expect("word_embed_proj_dim", (None, fields.size("hidden_size")))
    return family


# attention and inner layers read the same
ONE_NORM: dict[str, Any] = dict(inner_norm="input_layernorm")
HEAD_NORMS = Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
GEMMA_NORMS: dict[str, Any] = dict(
    after_self_norm="post_attention_layernorm",
    inner_norm="pre_feedforward_layernorm",
    after_inner_norm="post_feedforward_layernorm",
)
ATTENTION_BIAS = Flag("attention_bias")
# in layers of Bloom and Falcon
FUSED = Names(
    layer="h.{}.",
    qkv=("self_attention.query_key_value",),
    self_out="self_attention.dense",
    inner=("mlp.dense_h_to_4h",),
    inner_out="mlp.dense_4h_to_h",
)
EPSILON = {"rms_norm_eps": ("layer_norm_epsilon",)}
# layer norms and a bias everywhere, inner layers without gates
PLAIN: dict[str, Any] = dict(
    epsilon=1e-5,
    has_layer_norms=True,
    has_qkv_bias=True,
    has_out_bias=True,
    has_inner_bias=True,
    is_gated=False,
)
QWEN3 = Family(
    HEAD_NORMS,
    has_qkv_bias=ATTENTION_BIAS,
    has_out_bias=ATTENTION_BIAS,
    num_key_heads=32,
    windows="late",
    head_size=128,
)
MIXTRAL_NAMES = ExpertNames(
    "block_sparse_moe.gate", "block_sparse_moe.experts.{}.", ("w1", "w3"), "w2"
)
GEMMA = Family(
    activation="gelu_pytorch_tanh",
    head_size=256,
    num_key_heads=16,
    ties_embeddings=True,
    norm_offset=1.0,
    has_qkv_bias=ATTENTION_BIAS,
    has_out_bias=ATTENTION_BIAS,
    scales_embedding=True,
)
GEMMA2 = replace(
    GEMMA,
    names=Names(**GEMMA_NORMS),
    fields={"hidden_act": ("hidden_activation",)},
    num_key_heads=4,
    is_capped=True,
    has_soft_cap=True,
    soft_cap=50.0,
    output_soft_cap=30.0,
    windows=2,
)
FAMILIES = {
    "qwen2": Family(has_qkv_bias=True, num_key_heads=32, windows="late"),
    "qwen3": QWEN3,
    "qwen3_moe": replace(
        QWEN3,
        num_key_heads=4,
        head_size=None,
        windows=None,
        fields={
            "num_experts": ("num_experts", "num_local_experts"),
            "expert_size": ("moe_intermediate_size",),
        },
        expected={"use_sliding_window": (False,)},
        experts=ExpertNames(),
        normalises_experts=Flag("norm_topk_prob"),
    ),
    "llama": Family(
        has_qkv_bias=ATTENTION_BIAS, has_out_bias=ATTENTION_BIAS, has_inner_bias=Flag("mlp_bias")
    ),
    "mistral": Family(num_key_heads=8, windows="all"),
    "mixtral": Family(
        num_key_heads=8,
        windows="all",
        window=None,
        epsilon=1e-5,
        fields={"num_experts": ("num_local_experts",), "expert_size": ("intermediate_size",)},
        defaults={"rope_theta": 1_000_000.0},
        experts=MIXTRAL_NAMES,
        normalises_experts=True,
    ),
    "phi3": Family(
        Names(qkv=("self_attn.qkv_proj",), inner=("mlp.gate_up_proj",)),
        defaults={"original_max_position_embeddings": 4096},
        epsilon=1e-5,
        windows="all",
        window=None,
        partial_rotary=1.0,
    ),
    "gemma": replace(GEMMA, variant=_gemma),
    "gemma2": GEMMA2,
    "gemma3_text": replace(
        GEMMA2,
        names=replace(HEAD_NORMS, **GEMMA_NORMS),
        has_soft_cap=False,
        soft_cap=None,
        output_soft_cap=None,
        windows=6,
        has_two_rotaries=True,
    ),
    "gpt2": Family(
        Names(
            layer="h.{}.",
            self_norm="ln_1",
            qkv=("attn.c_attn",),
            self_out="attn.c_proj",
            inner_norm="ln_2",
            inner=("mlp.c_fc",),
            inner_out="mlp.c_proj",
        ),
        **PLAIN,
        tokens="wte",
        position_table="wpe",
        final_norm="ln_f",
        fields={
            **EPSILON,
            "hidden_size": ("n_embd",),
            "num_hidden_layers": ("n_layer",),
            "num_attention_heads": ("n_head",),
            "intermediate_size": ("n_inner",),
            "max_position_embeddings": ("n_positions",),
            "hidden_act": ("activation_function",),
        },
        expected={
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        activation="gelu_new",
        inner_factor=4,
        ties_embeddings=True,
        is_transposed=True,
        has_rotary=False,
    ),
    "opt": Family(
        Names(
            layer="decoder.layers.{}.",
            self_norm="self_attn_layer_norm",
            self_out="self_attn.out_proj",
            inner_norm="final_layer_norm",
            inner=("fc1",),
            inner_out="fc2",
        ),
        **PLAIN,
        tokens="decoder.embed_tokens",
        position_table="decoder.embed_positions",
        final_norm="decoder.final_layer_norm",
        fields={
            "intermediate_size": ("ffn_dim",),
            "hidden_act": ("activation_function",),
            "rms_norm_eps": (),
        },
        expected={
            "do_layer_norm_before": (True,),
            "enable_bias": (True,),
            "layer_norm_elementwise_affine": (True,),
            "_remove_final_layer_norm": (False,),
        },
        activation="relu",
        ties_embeddings=True,
        has_rotary=False,
        position_offset=2,
        variant=_opt,
    ),
    "gpt_neox": Family(
        Names(
            qkv=("attention.query_key_value",),
            self_out="attention.dense",
            inner=("mlp.dense_h_to_4h",),
            inner_out="mlp.dense_4h_to_h",
        ),
        **{
            **PLAIN,
            "has_qkv_bias": Flag("attention_bias", True),
            "has_out_bias": Flag("attention_bias", True),
        },
        tokens="embed_in",
        output="embed_out",
        final_norm="final_layer_norm",
        fields={
            "rms_norm_eps": ("layer_norm_eps",),
            "rope_theta": ("rope_theta", "rotary_emb_base"),
            "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
        },
        activation="gelu",
        is_parallel=Flag("use_parallel_residual", True),
        is_grouped=True,
        partial_rotary=0.25,
    ),
    "phi": Family(
        Names(
            self_out="self_attn.dense",
            inner_norm="input_layernorm",
            inner=("mlp.fc1",),
            inner_out="mlp.fc2",
        ),
        **PLAIN,
        final_norm="final_layernorm",
        fields={"rms_norm_eps": ("layer_norm_eps",)},
        expected={"qk_layernorm": (False,)},
        activation="gelu_new",
        has_output_bias=True,
        is_parallel=True,
        partial_rotary=0.5,
    ),
    "bloom": Family(
        FUSED,
        **PLAIN,
        tokens="word_embeddings",
        embedding_norm="word_embeddings_layernorm",
        final_norm="ln_f",
        fields={
            **EPSILON,
            "hidden_size": ("hidden_size", "n_embed"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "intermediate_size": (),
            "hidden_act": (),
            "max_position_embeddings": (),
        },
        expected={"apply_residual_connection_post_layernorm": (False,)},
        activation="gelu_new",
        inner_factor=4,
        ties_embeddings=True,
        is_grouped=True,
        has_rotary=False,
        has_slopes=True,
    ),
    "falcon": Family(
        FUSED,
        **{
            **PLAIN,
            **dict.fromkeys(("has_qkv_bias", "has_out_bias", "has_inner_bias"), Flag("bias")),
        },
        tokens="word_embeddings",
        final_norm="ln_f",
        fields={
            **EPSILON,
            "num_key_value_heads": ("num_kv_heads",),
            "intermediate_size": ("ffn_hidden_size",),
            "hidden_act": ("activation",),
        },
        expected={"alibi": (False,)},
        defaults={"max_position_embeddings": 2048},
        activation="gelu",
        inner_factor=4,
        ties_embeddings=True,
        is_parallel=Flag("parallel_attn", True),
        is_grouped=True,
        variant=_falcon,
    ),
}
