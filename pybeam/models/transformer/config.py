"""The configuration of an encoder-decoder transformer, from the JSON files of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybeam.models.conformer.config import MAX_FEATURES, ConformerConfig, read_conformer
from pybeam.models.fields import Fields
from pybeam.text.json_files import (
    LARGEST,
    MAX_LAYERS,
    eos_ids,
    positive,
    read_generation,
    read_json,
    token_id,
)


@dataclass(frozen=True)
class Family:
    """Facts that all checkpoints of one `model_type` share."""

    is_pre_norm: bool  # a sublayer is x + f(norm(x)), else norm(x + f(x))
    has_embedding_norm: bool  # a norm after token and position are added
    has_final_norm: bool  # a norm after the last layer
    # "learned", "stored", or a formula of `pybeam.models.transformer.positions`, or "relative"
    positions: str
    # the fields from here on are defaults for configs that do not name them
    scale_embedding: bool = False
    activation: str = "gelu"
    ties_embeddings: bool = True
    start_id: int | None = 2
    hears: bool = False  # sources are features of sound, see `pybeam.models.transformer.speech`
    has_key_bias: bool = True  # whether projections to keys have a bias
    shares_relative: bool = True  # whether the first layer's relative positions serve all layers


GATE = "glu"  # a * sigmoid(b) of channels a and b
# what T5 and its kin call these
T5_FIELDS = {
    "encoder_layers": ("num_layers",),
    "decoder_layers": ("num_decoder_layers", "num_layers"),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), ("num_heads",)),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), ("d_ff",)),
}
ATTENTIONAL_LSTM = "attentional_lstm"  # no transformer; see `pybeam.models.rnn`
FAMILIES = {
    "m2m_100": Family(True, False, True, "sinusoidal", scale_embedding=True, activation="relu"),
    "mbart": Family(True, True, True, "learned", start_id=None),
    "bart": Family(False, True, False, "learned"),
    "pegasus": Family(True, False, True, "marian", start_id=0),
    "marian": Family(False, False, False, "marian", start_id=58100),
    "fsmt": Family(
        False,
        False,
        False,
        "sinusoidal",
        scale_embedding=True,
        activation="relu",
        ties_embeddings=False,
    ),
    "speech_to_text": Family(
        True, False, True, "sinusoidal", scale_embedding=True, activation="relu", hears=True
    ),
    "whisper": Family(True, False, True, "stored", start_id=50257, hears=True, has_key_bias=False),
    "fireredasr": Family(
        True,
        False,
        True,
        "interleaved",
        scale_embedding=True,
        start_id=None,
        hears=True,
        has_key_bias=False,
    ),
    "t5": Family(True, False, True, "relative", activation="relu", start_id=0),
    "mt5": Family(True, False, True, "relative", activation="gated-gelu", start_id=0),
    "umt5": Family(
        True, False, True, "relative", activation="gated-gelu", start_id=0, shares_relative=False
    ),
}

# a table has a bias for each distance, and no file shows how many there should be
MAX_DISTANCE = 1 << 16

# Old configs spell the family out. A config that contradicts it describes another network.
FAMILY_FLAGS = {
    "normalize_before": "is_pre_norm",
    "normalize_embedding": "has_embedding_norm",
    "add_final_layer_norm": "has_final_norm",
}


@dataclass(frozen=True)
class Convolution:
    """A convolution over time. There are zeros beyond the ends: n positions become ceil(n / stride)."""

    name: str  # prefix of its weights, below "encoder."
    kernel_size: int  # odd
    stride: int
    num_channels: int  # before a gate halves them


@dataclass(frozen=True)
class FrontConfig:
    """Shapes of the convolutions that shorten what a speech encoder reads."""

    num_features: int
    convolutions: tuple[Convolution, ...]
    activation: str  # behind each convolution: GATE or "gelu"

    def num_positions(self, num_frames: int) -> int:
        """Number of the encoder's positions for so many frames."""
        for convolution in self.convolutions:
            num_frames = -(-num_frames // convolution.stride)
        return num_frames


@dataclass(frozen=True)
class RelativePositions:
    """How T5 puts distances into buckets, each with a bias per head; see `relative.bucket_of`."""

    num_buckets: int
    max_distance: int  # from here on, distances share a bucket


@dataclass(frozen=True)
class TransformerConfig:
    """Shapes and facts of one checkpoint. `source_vocab_size` may differ from `vocab_size`."""

    path: Path
    model_type: str
    family: Family
    source_vocab_size: int
    vocab_size: int
    hidden_size: int
    num_encoder_layers: int
    num_decoder_layers: int
    num_encoder_heads: int
    num_decoder_heads: int
    encoder_inner_size: int
    decoder_inner_size: int
    max_positions: int | None  # None: no limit
    max_source_positions: int | None
    activation: str
    embedding_scale: float
    ties_embeddings: bool
    pad_id: int
    start_id: int
    eos_id: int
    # only speech models have one
    front: FrontConfig | ConformerConfig | None = None
    other_eos_ids: tuple[int, ...] = ()
    # only T5 and its kin have what follows
    relative: RelativePositions | None = None
    inner_head_size: int | None = None  # None: d_model / heads
    is_gated: bool = False  # inner layers are act(g) * u
    norm_epsilon: float = 1e-5
    output_scale: float = 1.0  # of the states that the output layer reads

    def head_size(self, num_heads: int) -> int:
        """Return the numbers per head of a stack with so many heads."""
        return self.inner_head_size or self.hidden_size // num_heads

    @property
    def sound(self) -> FrontConfig | ConformerConfig:
        """Return how a speech model shortens what it hears."""
        assert self.front is not None
        return self.front


def read_config(directory: Path, eos_id: int | Sequence[int] | None = None) -> TransformerConfig:
    """Read `config.json` and, if there is one, `generation_config.json`.

    Start and EOS come from the generation config if it names them, as in `generate`. `eos_id` takes the place
    of EOS.

    Raises:
        FileNotFoundError: there is no such directory.
        ValueError: a file or field is missing or wrong, or the architecture is not supported.
    """
    path = directory / "config.json"
    if not directory.is_dir():
        raise FileNotFoundError(
            f"`path` must be a directory with a Hugging Face model, but none is at {directory}; "
            "`pybeam.load` takes a name on the hub, too, and `pybeam.hub.fetch` gives its directory"
        )
    config = read_json(path)
    generation = read_generation(directory, eos_id)
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None or model_type is None:
        raise ValueError(_not_built_in(path, config))
    if config.get("is_encoder_decoder") is False:
        wanted = f"`is_encoder_decoder` in {path} must be true for model type {model_type!r}"
        raise ValueError(f"{wanted}, but is false; {_to_wrap(path)}")
    for flag, fact in FAMILY_FLAGS.items():
        if flag in config and bool(config[flag]) != getattr(family, fact):
            raise ValueError(
                f"`{flag}` in {path} must be {getattr(family, fact)} for model type "
                f"{model_type!r}, but is {config[flag]}; is `model_type` the right one?"
            )
    return _build(path, config, generation, model_type, family)


def _not_built_in(path: Path, config: dict[str, Any]) -> str:
    """Name the architectures that `load_model` knows, and the way to search one that transformers knows."""
    from pybeam.models.transformer.families import FAMILIES as CAUSAL_FAMILIES

    model_type = config.get("model_type")
    known = ", ".join(sorted([*FAMILIES, *CAUSAL_FAMILIES, ATTENTIONAL_LSTM]))
    message = f"`model_type` in {path} must be one of {known}, but is {model_type!r}"
    if not isinstance(model_type, str):
        return f"{message}; other models can be decoded through `pybeam.models.FunctionModel`"
    return f"{message}; {_to_wrap(path)}"


def _to_wrap(path: Path) -> str:
    return f"if transformers knows the model, `pybeam.load({str(path.parent)!r})` wraps it"


def _known(
    path: Path, vocab_size: int, name: str, token: int | None, target_name: str = "vocab_size"
) -> int:
    if token is None or not 0 <= token < vocab_size:
        raise ValueError(
            f"`{name}` must be a token below {target_name} = {vocab_size}, but is {token}; "
            f"add it to {path.name} or generation_config.json in {path.parent}"
        )
    return token


def _build(
    path: Path, config: dict[str, Any], generation: dict[str, Any], model_type: str, family: Family
) -> TransformerConfig:
    is_relative = family.positions == "relative"
    fields = Fields(path, config, names=T5_FIELDS if is_relative else {})

    def size(name: str, most: int = LARGEST) -> int:
        return positive(path, config, fields.own(name), most)

    source_name, target_name = "vocab_size", "vocab_size"
    if model_type == "fsmt":
        source_name, target_name = "src_vocab_size", "tgt_vocab_size"
    elif model_type == "marian" and not config.get("share_encoder_decoder_embeddings", True):
        target_name = "decoder_vocab_size"
    hidden_size = size("d_model")
    for heads in () if is_relative else ("encoder_attention_heads", "decoder_attention_heads"):
        if hidden_size % size(heads):
            raise ValueError(
                f"`d_model` in {path} must be a multiple of `{heads}`, "
                f"but they are {hidden_size} and {size(heads)}"
            )
    vocab_size = size(target_name)
    # transformers reads this of a Whisper config, but scales nothing
    is_scaled = model_type != "whisper" and config.get("scale_embedding", family.scale_embedding)
    start_id = token_id("decoder_start_token_id", path, config, generation, family.start_id)
    if start_id is None:
        start_id = token_id("bos_token_id", path, config, generation, None)
    eos_id, *others = eos_ids(path, config, generation, vocab_size, 1 if is_relative else None)
    pad_id = fields.optional_size("pad_token_id", 0)
    positions = source_positions = "max_position_embeddings"
    if family.hears:
        positions, source_positions = "max_target_positions", "max_source_positions"
    own: dict[str, Any] = dict(
        max_positions=None if is_relative else size(positions),
        max_source_positions=None if is_relative else size(source_positions),
        activation=config.get("activation_function", family.activation),
        embedding_scale=hidden_size**0.5 if is_scaled else 1.0,
        ties_embeddings=config.get("tie_word_embeddings", family.ties_embeddings),
    )
    if is_relative:
        own |= _t5_facts(fields, model_type, family, hidden_size)
    return TransformerConfig(
        path=path,
        model_type=model_type,
        family=family,
        source_vocab_size=size(source_name),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_encoder_layers=size("encoder_layers", MAX_LAYERS),
        num_decoder_layers=size("decoder_layers", MAX_LAYERS),
        num_encoder_heads=size("encoder_attention_heads"),
        num_decoder_heads=size("decoder_attention_heads"),
        encoder_inner_size=size("encoder_ffn_dim"),
        decoder_inner_size=size("decoder_ffn_dim"),
        pad_id=int(not is_relative) if pad_id is None else pad_id,
        start_id=_known(path, vocab_size, "decoder_start_token_id", start_id, target_name),
        eos_id=eos_id,
        other_eos_ids=tuple(others),
        front=FRONTS[model_type](path, config, size) if family.hears else None,
        **own,
    )


def _t5_facts(fields: Fields, model_type: str, family: Family, hidden_size: int) -> dict[str, Any]:
    """Return what T5 and its kin have of their own."""
    is_gated, activation = _inner_activation(fields.path, fields.config, family)
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


def _inner_activation(path: Path, config: dict[str, Any], family: Family) -> tuple[bool, str]:
    """Return whether inner layers are gated, and their activation."""
    named = config.get("feed_forward_proj", family.activation)
    *gate, activation = named.split("-")
    if gate not in ([], ["gated"]):
        raise ValueError(
            f"`feed_forward_proj` in {path} must be an activation, or 'gated-' and an activation, but is "
            f"{named!r}"
        )
    # this name has always stood for the approximation
    return bool(gate), "gelu_new" if gate and activation == "gelu" else activation


def _gated_front(path: Path, config: dict[str, Any], size: Callable[..., int]) -> FrontConfig:
    kernels = config.get("conv_kernel_sizes")
    if (
        not isinstance(kernels, list)
        or not kernels
        or not all(isinstance(kernel, int) and kernel > 0 and kernel % 2 for kernel in kernels)
        or len(kernels) != config.get("num_conv_layers", len(kernels))
    ):
        raise ValueError(
            f"`conv_kernel_sizes` in {path} must be `num_conv_layers` odd integers, but is {kernels!r}"
        )
    channels = size("conv_channels")
    if channels % 2:
        raise ValueError(f"`conv_channels` in {path} must be even, but is {channels}")
    num_channels = config.get("input_channels", 1)
    if num_channels != 1:
        raise ValueError(f"`input_channels` in {path} must be 1, but is {num_channels!r}")
    rows = [channels] * (len(kernels) - 1) + [2 * size("d_model")]
    convolutions = tuple(
        Convolution(f"conv.conv_layers.{i}", kernel, 2, num)
        for i, (kernel, num) in enumerate(zip(kernels, rows, strict=True))
    )
    return FrontConfig(size("input_feat_per_channel", MAX_FEATURES), convolutions, GATE)


def _whisper_front(path: Path, config: dict[str, Any], size: Callable[..., int]) -> FrontConfig:
    d = size("d_model")
    convolutions = Convolution("conv1", 3, 1, d), Convolution("conv2", 3, 2, d)
    return FrontConfig(size("num_mel_bins", MAX_FEATURES), convolutions, "gelu")


FRONTS: dict[str, Callable[..., FrontConfig | ConformerConfig]] = {
    "speech_to_text": _gated_front,
    "whisper": _whisper_front,
    "fireredasr": read_conformer,
}
