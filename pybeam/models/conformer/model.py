"""A Conformer encoder with a transformer decoder: FireRedASR-AED."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.inference import inferring
from pybeam.backends.pinned import Floats
from pybeam.backends.transfer import all_to_device, to_device
from pybeam.models.conformer.attention import RelativeAttention, distances
from pybeam.models.conformer.config import ConformerConfig
from pybeam.models.conformer.parts import ConvolutionModule, FeedForward, PlaneSubsampler
from pybeam.models.conformer.places import Places, Sizes, num_frames_of, places_of, together
from pybeam.models.linear import Linear
from pybeam.models.transformer.captured import rounded
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

    def __call__(
        self, x: Tensor, sinusoids: Tensor, places: Places, lengths: Sequence[int]
    ) -> Tensor:
        x = self.attention(self.before(x), sinusoids, places, lengths)
        return self.norm(self.after(self.convolution(x, places, lengths)))


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

    @property
    def is_packed(self) -> bool:
        """Whether each row is computed as it is alone, to the last bit."""
        return self.layers[0].attention.kernels.is_packed

    def __call__(self, features: Tensor, places: Places, lengths: Sequence[int] = ()) -> Tensor:
        """Return hidden states [n, d] of features [E, F] of all sources, one source after another.

        Packed layers take the positions that each source has, too.
        """
        x = self.subsampler(features, places)  # [n, d]
        sinusoids = distances(self.position_table, places.table.shape[1])
        for layer in self.layers:
            x = layer(x, sinusoids, places, lengths)
        return x


class ConformerTransformer(SpeechSources, Transformer):
    """FireRedASR-AED; made by `pybeam.load_model` of what `pybeam convert fireredasr` has written.

    A source is a float tensor of features [E, F], one line per frame, as `pybeam.speech` makes them. ``|x|``,
    by which lengths are limited and rewarded, is the number of the encoder's positions, about E / 4.

    Every recording gets what it gets alone. On a GPU tables for attention are padded, and what is padding is
    masked. The `encoder` of this transformer has no layers, because the conformer takes its place.
    """

    def __init__(self, weights: Weights, conformer: Conformer, ctc: Linear | None = None) -> None:
        super().__init__(weights)
        self.conformer, self.ctc = conformer, ctc  # ctc [V, d]; None: there is none

    def encoder_inputs(self, sources: Sequence[Tensor], position: Tensor) -> Tensor:
        """Return the encoder's states [n, d] of checked sources, one after another."""
        lengths = [self.source_length(source) for source in sources]
        if self.conformer.is_packed:
            return self._states(sources, lengths)
        parts = together(lengths, self.config.num_encoder_heads)
        return torch.cat([self._states(sources[part], lengths[part]) for part in parts])

    def _states(self, sources: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
        if not any(lengths):
            return self.conformer.position_table[:0]
        features = to_device(torch.cat(list(sources)), self.dtype, self.device)
        numbers = places_of(self._shapes, [len(source) for source in sources])
        places = Places(*all_to_device(numbers, self.device))
        return self.conformer(features, places, lengths)

    @property
    def _shapes(self) -> ConformerConfig:
        assert isinstance(self.config.front, ConformerConfig)
        return self.config.front

    def encoder_numbers(
        self, sources: Sequence[Any], num_sources: int, num_positions: int
    ) -> tuple[list[Any], Callable[..., Tensor]] | None:
        """Return the numbers of sources, and what makes states of them; None: they are too many.

        See `SpeechTransformer.encoder_numbers`.
        """
        most = len(self.conformer.position_table)
        longest = min(most, rounded(max(map(self.source_length, sources))))
        sizes = Sizes(num_sources, num_positions, longest)
        if self.conformer.is_packed or not sizes.fits(self.config.num_encoder_heads):
            return None
        features = [SharedFeatures.of(source).features.numpy() for source in sources]
        places = places_of(self._shapes, [len(own) for own in features], sizes)

        def states(position: Tensor, features: Tensor, *places: Tensor) -> Tensor:
            x = features.view(torch.float32).to(self.dtype)
            return self.conformer(x, Places(*places))

        shape = num_frames_of(sizes), self._shapes.num_features
        return [Floats(shape, features), *places], states

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
