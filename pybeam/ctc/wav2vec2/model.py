"""`Wav2Vec2`: the log-probabilities of tokens in each frame of sound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam import backends
from pybeam.backends.inference import inferring
from pybeam.backends.transfer import all_to_device, to_device
from pybeam.ctc.wav2vec2.config import Wav2Vec2Config
from pybeam.ctc.wav2vec2.parts import PositionConvolution, SoundConvolution
from pybeam.models.cells import Cells
from pybeam.models.linear import Linear
from pybeam.models.transformer.layers import Stack
from pybeam.models.transformer.norms import Norm
from pybeam.models.transformer.running import Seen, StackRunner

# frames that the encoder reads at once: more are not faster on a CPU
MOST_FRAMES = 512


class Weights(NamedTuple):
    """The parts of the network."""

    sound: tuple[SoundConvolution, ...]
    projection_norm: Norm
    projection: Linear  # [d, C]
    positions: PositionConvolution
    norm: Norm | None  # behind the positions, in a network whose norms stand behind sublayers
    encoder: Stack
    output: Linear  # [V, d]


class Wav2Vec2:
    """A Wav2Vec2 network with a CTC layer; `pybeam.ctc.load_model` makes one.

    A recording's frames do not depend on those beside it: nothing is padded.

    Args:
        config: its shapes.
        weights: its parts.
        device, dtype: where it computes, and in which dtype.
        backend: see `pybeam.ops`.

    Attributes:
        vocab_size, blank: tokens of a frame, and the one that stands for none.
        stride: samples from one frame to the next.
    """

    def __init__(
        self,
        config: Wav2Vec2Config,
        weights: Weights,
        device: torch.device,
        dtype: torch.dtype,
        backend: str = "auto",
    ) -> None:
        self.config, self.device, self.dtype = config, device, dtype
        self.vocab_size, self.blank, self.stride = config.vocab_size, config.blank, config.stride
        self._backend = own = backends.resolve(backend, device)
        self._sound = tuple(part.with_backend(own) for part in weights.sound)
        self._projection_norm = weights.projection_norm.with_backend(own)
        self._projection = weights.projection.with_backend(own)
        self._positions = weights.positions.with_backend(own)
        self._norm = weights.norm and weights.norm.with_backend(own)
        self._encoder = StackRunner(own, weights.encoder.with_backend(own))
        self._output = weights.output.with_backend(own)

    def __repr__(self) -> str:
        config = self.config
        return (
            f"{type(self).__name__}({config.num_layers} layers, d={config.hidden_size}, "
            f"V={self.vocab_size}, {self.dtype}, {self.device})"
        )

    def num_frames(self, num_samples: int) -> int:
        """Return how many frames a recording has.

        Args:
            num_samples: of the recording.
        """
        return self.config.num_frames(num_samples)

    def log_probs(self, sounds: Sequence[Tensor]) -> list[Tensor]:
        """Return the log-probabilities [T, V] float32 of each recording, on the host.

        Args:
            sounds: samples [n] as the network was trained on them, which `pybeam.ctc.vocabulary.SoundForm`
                makes. A recording that is too short for a frame has none. Time grows with the square of its
                length.

        Raises:
            ValueError: a recording has another shape, or holds NaN or infinities.
        """
        for sound in sounds:
            if sound.ndim != 1 or not sound.isfinite().all():
                raise ValueError(
                    f"`sounds` must be finite samples [n], but one is {list(sound.shape)} or holds NaN or "
                    "infinity"
                )
        lengths = [self.num_frames(len(sound)) for sound in sounds]
        found: list[Tensor] = []
        for part in _chunks(lengths):
            # a copy, which callers may change
            rows = self._rows(sounds[part], lengths[part]).cpu().clone()
            found += rows.split(lengths[part])
        return found

    @inferring
    def _rows(self, sounds: Sequence[Tensor], lengths: list[int]) -> Tensor:
        """Return log-probabilities [n, V] of recordings, one after another."""
        logits = self._logits(sounds, lengths).float()
        return self._backend.log_softmax(logits) if len(logits) else logits

    def _logits(self, sounds: Sequence[Tensor], lengths: list[int]) -> Tensor:
        """Return logits [n, V] of recordings, one after another."""
        heard = [self._heard(one) for one, num in zip(sounds, lengths, strict=True) if num]
        if not heard:
            return torch.zeros(0, self.vocab_size)
        x = self._projection(self._projection_norm(torch.cat(heard)))  # [n, d]
        x = self._positions(x, lengths)
        if self._norm is not None:
            x = self._norm(x)
        return self._output(self._encoder.states(x, Seen(self._cells(lengths))))

    def _heard(self, sound: Tensor) -> Tensor:
        """Return what the convolutions make of a recording, [T, C]."""
        x = to_device(sound[:, None], self.dtype, self.device)
        for part in self._sound:
            x = part(x)
        return x

    def _cells(self, lengths: Sequence[int]) -> Cells:
        """Return what the frames of each recording see: each other."""
        ends = np.concatenate(([0], np.cumsum(lengths)))
        places = ends[:-1, None] + np.arange(max(lengths))
        host = ends, np.arange(len(lengths)), places, lengths
        offset, slot, cell, length = all_to_device(host, self.device)
        return Cells(offset, slot, cell, length)


def _chunks(lengths: Sequence[int]) -> Iterator[slice]:
    """Yield slices of neighbours that have at most `MOST_FRAMES` together, or of one longer recording."""
    start, total = 0, 0
    for i, length in enumerate(lengths):
        if i > start and total + length > MOST_FRAMES:
            yield slice(start, i)
            start, total = i, 0
        total += length
    if start < len(lengths):
        yield slice(start, len(lengths))
