"""Names and facts: how a checkpoint calls the tensors of a layer, and how the layers compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """The names of the tensors of a layer, without ``.weight`` and ``.bias``.

    Several names of one matrix are joined, with their outputs one after another.
    """

    layer: str = "layers.{}."  # the prefix of all others, with the layer's number
    self_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = tuple(f"self_attn.{part}_proj" for part in "qkv")
    query_norm: str | None = None
    key_norm: str | None = None
    self_out: str = "self_attn.o_proj"
    after_self_norm: str | None = None  # of what attention adds
    cross_norm: str = "encoder_attn_layer_norm"
    cross_query: str = "encoder_attn.q_proj"
    cross_key_value: tuple[str, ...] = ("encoder_attn.k_proj", "encoder_attn.v_proj")
    cross_out: str = "encoder_attn.out_proj"
    inner_norm: str = "post_attention_layernorm"
    inner: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    inner_out: str = "mlp.down_proj"
    after_inner_norm: str | None = None  # of what the inner layers add


@dataclass(frozen=True)
class ExpertNames:
    """The names of a mixture of experts in a layer; see `Names`."""

    router: str = "mlp.gate"
    expert: str = "mlp.experts.{}."  # the prefix of what follows, with the expert's number
    inner: tuple[str, str] = ("gate_proj", "up_proj")
    inner_out: str = "down_proj"


@dataclass(frozen=True)
class ExpertFacts:
    """The shapes and facts of the mixtures of a stack."""

    names: ExpertNames
    num: int
    num_chosen: int  # for every row
    inner_size: int
    is_normalised: bool  # shares of the chosen ones sum to 1
    layers: frozenset[int]  # which have one; others have inner layers


@dataclass(frozen=True)
class NormFacts:
    """All norms of a stack have these in common."""

    epsilon: float
    has_bias: bool = True  # else they are root-mean-square norms
    is_wide: bool = False  # weights are float32 at least
    offset: float = 0.0  # Gemma adds 1 to weights


@dataclass(frozen=True)
class StackFacts:
    """The shapes and facts of a stack that say what its layers are.

    Attributes:
        prefix: of all names.
        is_pre_norm: a sublayer is ``x + f(norm(x))``, else ``norm(x + f(x))``.
        has_cross: layers attend over encoder states.
        has_qkv_bias, has_key_bias, has_out_bias, has_inner_bias: which linear layers have a bias.
        is_grouped: rows of queries, keys and values stand together for every key head.
        is_transposed: matrices are [in, out].
        windows, rotary: of each layer, see `Layer`.
    """

    names: Names
    norm: NormFacts
    num_layers: int
    hidden_size: int
    inner_size: int
    num_heads: int
    num_key_heads: int
    head_size: int
    activation: str
    prefix: str = ""
    is_pre_norm: bool = True
    has_cross: bool = False
    is_gated: bool = False
    has_qkv_bias: bool = True
    has_key_bias: bool = True
    has_out_bias: bool = True
    has_inner_bias: bool = True
    is_grouped: bool = False
    is_transposed: bool = False
    windows: Sequence[int | None] = ()
    rotary: Sequence[int | None] = ()
    experts: ExpertFacts | None = None

    @property
    def qkv_rows(self) -> list[int]:
        """Rows of the matrices to queries, keys and values."""
        key_rows = self.num_key_heads * self.head_size
        return [self.num_heads * self.head_size, key_rows, key_rows]
