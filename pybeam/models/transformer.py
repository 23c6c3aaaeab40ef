"""An encoder-decoder transformer: its weights, what the engine may know about it, source checks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.models.base import Alignment, Model
from pybeam.models.config import TransformerConfig
from pybeam.models.layers import Stack
from pybeam.models.linear import Linear
from pybeam.models.source_ids import checked_ids
from pybeam.models.transformer_session import TransformerSession
from pybeam.transfer import to_device


class Transformer(Model):
    """M2M100, NLLB, mBART, BART, Marian or FSMT; made by `pybeam.load_model`.

    A source is a sequence of token ids, used as it is. Every position counts, whatever the token:
    a padding token inside a hypothesis is a token like any other.
    """

    can_capture = True
    has_attention = True

    def __init__(
        self,
        config: TransformerConfig,
        encoder: Stack,
        decoder: Stack,
        cross_key_value: Linear,
        output: Linear,
        dtype: torch.dtype,
        weight_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.encoder, self.decoder = encoder, decoder
        self.cross_key_value = cross_key_value  # [layers * 2 * d, d], of all decoder layers at once
        self.output = output  # [V, d]
        self.dtype = dtype  # of activations, keys and values, and logits
        self.weight_dtype = weight_dtype  # of matrices and token tables
        self.device = device
        self.vocab_size = config.vocab_size
        self.start_id, self.eos_id = config.start_id, config.eos_id
        self.pad_id = config.pad_id
        self.max_positions = config.max_positions
        self.max_source_positions = config.max_source_positions

    def __repr__(self) -> str:
        config = self.config
        weights = "" if self.weight_dtype == self.dtype else f", {self.weight_dtype} weights"
        return (
            f"{type(self).__name__}({config.model_type}, {config.num_encoder_layers}+"
            f"{config.num_decoder_layers} layers, d={config.hidden_size}, V={self.vocab_size}, "
            f"{self.dtype}{weights}, {self.device})"
        )

    def session(self, backend) -> TransformerSession:
        """A fresh session that computes with this backend module."""
        return TransformerSession(self, backend)

    def check(self, source) -> Tensor:
        """The ids as an int64 tensor [E] on the host.

        Raises:
            TypeError: the source is not a sequence of integers.
            ValueError: it is not one-dimensional, too long, or an id is out of range.
        """
        ids = checked_ids(source, self.config.source_vocab_size)  # [E]
        if ids.numel() > self.max_source_positions:
            raise ValueError(
                f"`source` must have at most {self.max_source_positions} ids (`max_position_embeddings`), "
                f"but has {ids.numel()}; split the text"
            )
        return ids

    def check_alignment(self, alignment: Alignment) -> None:
        """Raises ValueError if there is no such layer or head."""
        num_layers, num_heads = len(self.decoder.layers), self.decoder.num_heads
        if not -num_layers <= alignment.layer < num_layers:
            raise ValueError(
                f"`layer` must be {-num_layers} to {num_layers - 1} for a decoder of {num_layers} layers, "
                f"but is {alignment.layer}"
            )
        if max(alignment.heads or [0]) >= num_heads:
            raise ValueError(
                f"`heads` must be 0 to {num_heads - 1}, but one is {max(alignment.heads)}"
            )

    def source_length(self, source: Tensor) -> int:
        """Number of ids."""
        return source.numel()

    def embed_sources(self, sources: Sequence[Tensor], position: Tensor) -> Tensor:
        """What the encoder's layers get [n, d] of checked sources, one after another.

        `position` [n] counts from 0 in each; n is the sum of their `source_length`.
        """
        token = to_device(torch.cat(list(sources)), torch.long, self.device)  # [n]
        return self.encoder.embed(token, position)
