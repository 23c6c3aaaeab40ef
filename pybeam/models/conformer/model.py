"""A Conformer encoder with a transformer decoder: FireRedASR-AED."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.inference import inferring
from pybeam.backends.transfer import to_device
from pybeam.models.conformer.attention import RelativeAttention, distances
from pybeam.models.conformer.parts import ConvolutionModule, FeedForward, PlaneSubsampler
from pybeam.models.linear import Linear
from pybeam.models.transformer.layers import Part
from pybeam.models.transformer.model import Transformer, Weights
from pybeam.models.transformer.norms import Norm
from pybeam.models.transformer.sources import SharedFeatures
from pybeam.models.transformer.speech import SpeechSources


@dataclass(frozen=True, slots=True)
class ConformerLayer(Part):
    """Half a feed-forward, attention, a convolution, the other half, and a norm."""

    before: FeedForward
    attention: RelativeAttention
    convolution: ConvolutionModule
    after: FeedForward
    norm: Norm

    def __call__(self, x: Tensor, sinusoids: Tensor, lengths: Sequence[int]) -> Tensor:
        x = self.attention(self.before(x), sinusoids, lengths)
        return self.norm(self.after(self.convolution(x, lengths)))


@dataclass(frozen=True, slots=True)
class Conformer:
    """The whole encoder: features of sound become hidden states."""

    subsampler: PlaneSubsampler
    position_table: Tensor  # [positions, d]
    layers: tuple[ConformerLayer, ...]

    def with_backend(self, backend: Backend) -> Conformer:
        """Return the same encoder, computed by this backend module."""
        return replace(
            self,
            subsampler=self.subsampler.with_backend(backend),
            layers=tuple(layer.with_backend(backend) for layer in self.layers),
        )

    def __call__(self, sources: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
        """Return hidden states [n, d] of features [E, F], one source after another.

        `lengths` are the positions that each source has.
        """
        if not any(lengths):
            return self.position_table[:0]
        heard = zip(sources, lengths, strict=True)
        x = self.subsampler([source for source, length in heard if length])  # [n, d]
        sinusoids = distances(self.position_table, max(lengths))
        for layer in self.layers:
            x = layer(x, sinusoids, lengths)
        return x


class ConformerTransformer(SpeechSources, Transformer):
    """FireRedASR-AED; made by `pybeam.load_model` of what `pybeam convert fireredasr` has written.

    A source is a float tensor of features [E, F], one line per frame, as `pybeam.speech` makes them. ``|x|``,
    by which lengths are limited and rewarded, is the number of the encoder's positions, about E / 4.

    Every recording gets what it gets alone: nothing is padded. The `encoder` of this transformer has no
    layers, because the conformer takes its place.
    """

    def __init__(self, weights: Weights, conformer: Conformer, ctc: Linear | None = None) -> None:
        super().__init__(weights)
        self.conformer, self.ctc = conformer, ctc  # ctc [V, d]; None: there is none

    def encoder_inputs(self, sources: Sequence[Tensor], position: Tensor) -> Tensor:
        """Return the encoder's states [n, d] of checked sources, one after another."""
        lengths = [self.source_length(source) for source in sources]
        features = to_device(torch.cat(list(sources)), self.dtype, self.device)
        return self.conformer(features.split([len(source) for source in sources]), lengths)

    @inferring
    def ctc_log_probs(self, source: Any) -> Tensor:
        """Return what the layer of CTC hears, [T, V] float32 on the host: log-probabilities of the tokens.

        `pybeam.ctc.prefix_scores` takes this function. The encoder's states of `SharedFeatures` are kept, and
        are not computed again when the source is decoded.

        Args:
            source: features as `check` returns them.

        Raises:
            ValueError: the model has no such layer.
        """
        if self.ctc is None:
            raise ValueError(
                f"`source` is for a layer of CTC, such as FireRedASR2-AED has, but {self!r} has none; if the "
                "published folder has it, convert that again"
            )
        shared = SharedFeatures.of(source)
        if shared.states is None:
            given = [shared.features]
            shared.states = self.encoder_inputs(given, torch.arange(self.source_length(source)))
        return self.ctc(shared.states).float().log_softmax(1).cpu()
