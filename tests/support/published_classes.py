"""Networks of transformers with the default config of their class, of which nothing but sizes is changed.

A config is shrunk by one rule for all classes. A number that counts layers, heads or experts, or that is the
width of a layer, becomes small, in nested configs too. A list with an entry per layer is cut. All else is the
default: vocabularies, special tokens, windows, sizes of heads, and the options of generation. No field is set
that a default config lacks.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto import modeling_auto

MAPPINGS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT")
LARGEST = 300_000_000  # parameters of a network that is built
FEED_FORWARD = 64
NUM_EXPERTS = 16

LAYERS = re.compile(
    r"num_((en|de)coder_|hidden_|text_|adapter_)?(layers|blocks)|n_layers?|depth|resampler_depth"
    r"|.*(en|de)coder_layers"
)
WIDTHS = re.compile(
    r"(.*_)?hidden_(size|dim)(_global)?|d_model|n_embd|(model_|text_|vision_|lstm_)?dim|(text_)?embed_(dim|size)"
    r"|projection_dim|word_embed_proj_dim|(vision_)?output_dim|embedding_size"
)
FEED_FORWARDS = re.compile(
    r".*intermediate_size.*|.*ffn_(dim|size)|d_ff|n_inner|mlp_dim|dim_ff|shared?_expert_dim"
)
HEADS = re.compile(r"(.*_)?attention_heads|n_heads?|num_heads")
KEY_HEADS = re.compile(r"(.*_)?(key_value|kv)_heads")
STATE_HEADS = re.compile(r"mamba_n_heads|mamba_num_heads|linear_num_heads")
EXPERTS = re.compile(r"(n_routed|num|num_local|moe_num)_experts")


class CannotBuild(Exception):
    """No small network of a class can be made here."""

    def __init__(self, what: str, error: Exception) -> None:
        lines = f"{error}".strip().splitlines() or [""]
        super().__init__(f"{what} ({type(error).__name__}: {lines[-1].strip()})")


class Size(NamedTuple):
    """How far a config is shrunk."""

    layers: int
    heads: int
    width: int


# from the smallest on; some networks need wider heads or more of them, and some a layer of every kind
SIZES = (
    Size(2, 2, 64),
    Size(2, 2, 256),
    Size(4, 2, 64),
    Size(10, 2, 64),
    Size(2, 4, 512),
    Size(10, 8, 512),
)


def generative_classes(kinds: Container[str] | None = None) -> list[str]:
    """Return the names of all classes that the pinned transformers can generate text with.

    `kinds`: of these model types alone.
    """
    found: dict[str, None] = {}
    for mapping in MAPPINGS:
        all_names = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
        for kind, names in all_names.items():
            if kinds is None or kind in kinds:
                found.update(dict.fromkeys([names] if isinstance(names, str) else names))
    return sorted(found)


def networks(name: str) -> Iterator[transformers.PreTrainedModel]:
    """Yield networks of this class in eval mode, the smallest first, with the same weights each time.

    Raises `CannotBuild` if there is none.
    """
    kind = getattr(transformers, name)
    error, is_one = None, False
    for size in SIZES:
        try:
            config = kind.config_class.from_dict(_shrunk(kind.config_class().to_dict(), size))
            with torch.device("meta"):
                num = sum(weight.numel() for weight in kind(config).parameters())
            if num > LARGEST:
                raise ValueError(f"{num / 1e6:.0f} million parameters, however small its layers")
            torch.manual_seed(0)
            network = kind(config).eval()
        # the next size may do
        except Exception as raised:
            error = error or raised
            continue
        is_one = True
        _make_ends_likely(network)
        yield network
    if error is not None and not is_one:
        raise CannotBuild(_culprit(kind), error) from error


def _culprit(kind: type[transformers.PreTrainedModel]) -> str:
    """Say whether no network could be made because of the class itself or because of the rule above."""
    try:
        with torch.device("meta"):
            kind(kind.config_class())
    except Exception:
        return "its default config builds no network here"
    return "its default config cannot be shrunk by one rule for all"


def _make_ends_likely(network: transformers.PreTrainedModel) -> None:
    """EOS would hardly come from random weights."""
    if not isinstance(network, transformers.GenerationMixin):
        return
    head, ends = network.get_output_embeddings(), network.generation_config.eos_token_id
    if not isinstance(getattr(head, "weight", None), torch.Tensor):
        return
    ends = [ends] if isinstance(ends, int) else ends or []
    with torch.no_grad():
        for end in ends:
            if end < head.weight.shape[0]:
                head.weight[end] *= 3


def _shrunk(values: dict[str, Any], size: Size) -> dict[str, Any]:
    sizes = {name: value for name, value in values.items() if _is_size(value)}
    widths = [sizes[name] for name in ("hidden_size", "d_model", "n_embd") if name in sizes]
    old = Old(
        ratio=min(1.0, size.width / widths[0]) if widths else 1.0,
        heads=max((value for name, value in sizes.items() if HEADS.fullmatch(name)), default=0),
        depths=[value for name, value in sizes.items() if LAYERS.fullmatch(name)],
        # heads of a state-space layer have a size of their own
        are_of_states="expand" in values,
    )
    return {name: _value(name, value, size, old) for name, value in values.items()}


class Old(NamedTuple):
    """Facts of a config before it is shrunk."""

    ratio: float  # of the new width to the old
    heads: int
    depths: list[int]
    are_of_states: bool


def _value(name: str, value: Any, size: Size, old: Old) -> Any:
    if isinstance(value, dict) and name.startswith("per_layer"):
        return {layer: own for layer, own in value.items() if int(layer) < size.layers}
    if isinstance(value, dict):
        is_config = "model_type" in value or name.endswith("config")
        return _shrunk(value, size) if is_config else value
    if isinstance(value, (list, tuple)):
        return _cut(name, value, size.layers) if len(value) in old.depths else value
    if not _is_size(value):
        return value
    if LAYERS.fullmatch(name):
        return min(value, size.layers)
    if name == "num_kv_shared_layers":
        return value * size.layers // max(old.depths)
    if KEY_HEADS.fullmatch(name):
        return min(value, size.heads if value >= old.heads else max(1, size.heads // 2))
    if STATE_HEADS.fullmatch(name) or (name == "num_heads" and old.are_of_states):
        return max(1, int(value * old.ratio))
    for pattern, most in (
        (HEADS, size.heads),
        (WIDTHS, size.width),
        (FEED_FORWARDS, FEED_FORWARD),
        (EXPERTS, NUM_EXPERTS),
    ):
        if pattern.fullmatch(name):
            return min(value, most)
    return value


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _cut(name: str, value: Any, num: int) -> Any:
    """Cut a list that has an entry per layer, or that names layers."""
    if name.endswith("ids"):
        return value
    if FEED_FORWARDS.fullmatch(name):
        return type(value)([FEED_FORWARD] * num)
    if all(type(own) is int and 0 <= own < len(value) for own in value) and len(set(value)) > 2:
        return type(value)(own for own in value if own < num)
    return type(value)(value[:num])
