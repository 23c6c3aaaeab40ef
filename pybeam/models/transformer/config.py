"""The configuration of an encoder-decoder transformer, from the JSON files of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from pybeam.models.conformer.config import ConformerConfig
    from pybeam.models.transformer.fronts import FrontConfig
    from pybeam.models.transformer.relative import RelativePositions


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

# Old configs spell the family out. A config that contradicts it describes another network.
FAMILY_FLAGS = {
    "normalize_before": "is_pre_norm",
    "normalize_embedding": "has_embedding_norm",
    "add_final_layer_norm": "has_final_norm",
}


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
    fields = Fields(path, config)
    if is_relative:
        # most checkpoints are not T5's
        from pybeam.models.transformer import t5

        fields = Fields(path, config, names=t5.FIELDS)

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
    start_id = token_id("decoder_start_token_id", path, config, generation, family.start_id)
    if start_id is None:
        start_id = token_id("bos_token_id", path, config, generation, None)
    eos_id, *others = eos_ids(path, config, generation, vocab_size, 1 if is_relative else None)
    pad_id = fields.optional_size("pad_token_id", 0)
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
        **_family_facts(fields, model_type, family, size),
    )


def _family_facts(
    fields: Fields, model_type: str, family: Family, size: Callable[..., int]
) -> dict[str, Any]:
    """Return the fields of a `TransformerConfig` whose names or meanings differ between families."""
    config, hidden_size = fields.config, size("d_model")
    is_relative = family.positions == "relative"
    # transformers reads this of a Whisper config, but scales nothing
    is_scaled = model_type != "whisper" and config.get("scale_embedding", family.scale_embedding)
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
        from pybeam.models.transformer import t5

        own |= t5.facts(fields, model_type, family.activation, hidden_size)
    if family.hears:
        # most models read
        from pybeam.models.transformer.fronts import FRONTS

        own["front"] = FRONTS[model_type](fields.path, config, size)
    return own
