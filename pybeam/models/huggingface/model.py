"""`HuggingFaceModel`: a transformers model as a pybeam model, with checks of its sources."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pybeam import arguments
from pybeam.backends import Backend
from pybeam.models.base import Model, Session
from pybeam.models.source_ids import checked_ids

# a network's attention is set in its config, so sessions of one network take turns
_locks: weakref.WeakKeyDictionary[PreTrainedModel, threading.RLock] = weakref.WeakKeyDictionary()


class Heads(NamedTuple):
    """The keys and values that every layer keeps of a token."""

    num_layers: int
    num_heads: int
    head_size: int
    dtype: torch.dtype


@dataclass
class Biases:
    """Numbers that a decoder adds to the scores of its self-attention, by distance."""

    tables: Sequence[Tensor]  # by layer [H, P], for distances 0 to P - 1
    are_bounded: bool  # whether larger distances have the bias of P - 1


class Memory(NamedTuple):
    """How a model keeps the past of a row."""

    keeps: str  # "tree" or "dense"
    own: Heads | None = None
    cross: Heads | None = None  # keys and values of encoder states
    is_windowed: bool = False  # whether some layers see only the last positions
    biases: Biases | None = None  # of scores, where they depend on distances
    looks_up: bool = False  # whether a decoder looks its positions up in a table
    pads: bool = False  # whether lines of different lengths share a call
    is_told: bool = True  # whether a decoder alone is told positions, which count from 0
    obstacle: str | None = None  # why no CUDA graph may hold a step; None: one may


class EncoderStates(NamedTuple):
    """A source that is encoded already: the encoder's states [E, d], without padding."""

    states: Tensor


class HuggingFaceModel(Model):
    """See `pybeam.models.huggingface.wrap`.

    Attributes:
        network: the wrapped model.
        memory: how keys and values are kept.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        start_id: int | None,
        eos_id: int | Sequence[int] | None,
        make_session: Callable[[HuggingFaceModel, Backend], Session],
    ) -> None:
        self.network, self._make_session = network, make_session
        config, generation = network.config, network.generation_config
        self.is_encoder_decoder = config.is_encoder_decoder
        text = config.get_text_config(decoder=True)
        head = network.get_output_embeddings()
        self.vocab_size = text.vocab_size if head is None else head.weight.shape[0]
        # some networks cut off what only pads their output layer
        self.vocab_size = getattr(text, "unpadded_vocab_size", None) or self.vocab_size
        named = eos_id, generation.eos_token_id, getattr(text, "eos_token_id", None)
        self.eos_id, *others = _eos_ids(self.vocab_size, *named)
        self.other_eos_ids = tuple(others)
        if self.is_encoder_decoder:
            started = generation.decoder_start_token_id
            other = getattr(config, "decoder_start_token_id", None)
            # T5's config has no BOS
            bos_id = getattr(text, "bos_token_id", None)
            self.start_id = _only("start_id", start_id, started, other, bos_id)
        else:
            # the prompt's last token stands in for the start token
            self.start_id = self.eos_id if start_id is None else start_id
        self.device = network.device
        self.pad_id = getattr(text, "pad_token_id", None)
        self.encoder = network.get_encoder() if self.is_encoder_decoder else None
        self.decoder = network.get_decoder()
        self.takes_features = network.main_input_name != "input_ids"
        # what its calls may be given
        self.parameters = inspect.signature(network.forward).parameters
        # transformers before 5.24 says past_key_values
        self.cache_name = "cache" if "cache" in self.parameters else "past_key_values"
        limit = getattr(text, "max_position_embeddings", None)
        self.max_positions = getattr(text, "max_target_positions", None) or limit
        self.configs = _configs(network)
        self.lock = _locks.setdefault(network, threading.RLock())
        self.keep(Memory("tree"))

    def keep(self, memory: Memory) -> None:
        """Keep keys and values in this way."""
        self.memory = memory
        # a dense cache moves with rows
        self.can_draft = memory.keeps == "tree"
        self.can_capture = memory.obstacle is None

    @property
    def why_not_captured(self) -> str:
        """Say what in the network keeps a step from being captured."""
        return f"{super().why_not_captured}: {self.memory.obstacle}"

    def __repr__(self) -> str:
        return f"HuggingFaceModel({type(self.network).__name__}, {self.memory.keeps} cache, {self.device})"

    def session(self, backend: Backend) -> Session:
        """Make a fresh session that computes with this backend module."""
        return self._make_session(self, backend)

    def check(self, source: Any) -> Tensor | EncoderStates:
        """Return the ids as an int64 tensor [E] on the host, or features as they are.

        Raises:
            TypeError: the source is not a sequence of integers, or no features if the model takes those.
            ValueError: it has the wrong shape, is too long, or an id is out of range.
        """
        if isinstance(source, EncoderStates):
            return source
        return self._check_features(source) if self.takes_features else self._check_ids(source)

    def source_length(self, source: Tensor | EncoderStates) -> int:
        """Return the number of ids, encoder states or frames of features."""
        if isinstance(source, EncoderStates):
            return source.states.shape[0]
        return max(source.shape)

    def prompt(self, source: Tensor | EncoderStates) -> Tensor | None:
        """Return the source of a decoder-only model, which is its prompt."""
        if self.is_encoder_decoder or isinstance(source, EncoderStates):
            return None
        return torch.where(source < self.vocab_size, source, -2 - source).int()

    @property
    def feature_shape(self) -> tuple[int | None, ...]:
        """The shape of the features that a model of sound or images takes; None: any size; (): not known."""
        config = self.network.config
        if config.model_type == "whisper":
            return config.num_mel_bins, 2 * config.max_source_positions
        if config.model_type == "speech_to_text":
            return None, config.input_feat_per_channel * config.input_channels
        return ()

    def room(self, source: Tensor | EncoderStates) -> int | None:
        """Return the decoder's positions minus those of the prompt."""
        if isinstance(source, EncoderStates):
            return self.max_positions
        if self.is_encoder_decoder or self.max_positions is None:
            return self.max_positions
        return self.max_positions - source.numel() + 1

    @property
    def embeddings(self) -> torch.nn.Embedding:
        """The table of the tokens that sources consist of."""
        # the encoder of FSMT does not say which table is its own, and the network does
        knows = hasattr(self.encoder, "get_input_embeddings")
        part: Any = self.encoder if knows else self.network
        table: torch.nn.Embedding = part.get_input_embeddings()
        return table

    def _check_ids(self, source: Any) -> Tensor:
        ids = checked_ids(source, self.embeddings.num_embeddings)  # [E]
        limit = self.max_positions
        if self.is_encoder_decoder:
            limit = getattr(self.network.config, "max_position_embeddings", None)
        if limit is not None and ids.numel() > limit:
            raise ValueError(
                f"`source` must have at most {limit} ids (`max_position_embeddings`), but has "
                f"{ids.numel()}; split the text"
            )
        return ids

    def _check_features(self, source: Any) -> Tensor:
        name = self.network.main_input_name
        if not isinstance(source, Tensor) or not source.dtype.is_floating_point:
            raise TypeError(
                f"`source` must be a float tensor, the `{name}` of one input without the batch "
                f"dimension, but is {source.dtype if isinstance(source, Tensor) else type(source)}"
            )
        expected, shape = self.feature_shape, list(source.shape)
        is_fit = not expected or (
            len(shape) == len(expected)
            and all(a in (None, b) for a, b in zip(expected, shape, strict=True))
        )
        if not is_fit:
            written = ", ".join("any" if size is None else str(size) for size in expected)
            raise ValueError(
                f"`source` must be `{name}` [{written}] as the model's processor makes them, but is {shape}"
            )
        return source


def _only(name: str, given: int | None, *found: int | Sequence[int] | None) -> int:
    """Return the given id, or else the first that was found. Raises ValueError if that is several."""
    if given is not None:
        return given
    for value in found:
        ids = [value] if isinstance(value, int) else list(value or ())
        if len(ids) > 1:
            raise ValueError(
                f"the model names {ids}, but pybeam needs one id; say which with `{name}`"
            )
        if ids:
            return int(ids[0])
    raise ValueError(f"the model's config does not name it; give `{name}`")


def _eos_ids(vocab_size: int, *found: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the end tokens of the first argument that names any."""
    for value in found:
        if value is not None and value != []:
            return arguments.eos_ids(value, vocab_size)
    raise ValueError("the model's config names no EOS; give `eos_id`")


def _configs(network: PreTrainedModel) -> list[Any]:
    """Return all configs that the network's modules read, each once."""
    configs = {
        id(module.config): module.config
        for module in network.modules()
        if hasattr(getattr(module, "config", None), "_attn_implementation")
    }
    return list(configs.values())
