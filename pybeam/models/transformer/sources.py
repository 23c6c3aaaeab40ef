"""Sources of a transformer, and how they are checked: token ids, or features of sound."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.models.base import Model
from pybeam.models.source_ids import check_length, checked_ids
from pybeam.models.transformer.config import TransformerConfig


class TextSources(Model):
    """A model whose sources are sequences of token ids, used as they are."""

    config: TransformerConfig

    def check(self, source: Any) -> Tensor:
        """Return the ids as an int64 tensor [E] on the host.

        Raises:
            TypeError: the source is not a sequence of integers.
            ValueError: it is not one-dimensional, too long, or an id is out of range.
        """
        limit = self.config.max_source_positions
        if limit is None:
            check_length(source, self.max_tokens)
        ids = checked_ids(source, self.config.source_vocab_size)  # [E]
        if limit is not None and ids.numel() > limit:
            raise ValueError(
                f"`source` must have at most {limit} ids (`max_position_embeddings`), but has "
                f"{ids.numel()}; split the text"
            )
        return ids

    def source_length(self, source: Tensor) -> int:
        """Number of ids."""
        return source.numel()


class SharedFeatures:
    """Features of one recording that several requests of one model share: they are encoded once.

    Args:
        features: [E, F].

    Attributes:
        states: [n, d], the encoder's states; None: no request has needed them yet.
    """

    def __init__(self, features: Tensor) -> None:
        self.features = features
        self.states: Tensor | None = None

    @classmethod
    def of(cls, source: Tensor | SharedFeatures) -> SharedFeatures:
        """Return features that are shared as they are, and others as if they were."""
        return source if isinstance(source, SharedFeatures) else cls(source)


class SpeechSources(TextSources):
    """A model whose sources are float features [E, F], a line per frame, as `pybeam.speech` makes them.

    |x|, the length in limits and rewards, is the number of the encoder's positions, not of frames.
    """

    takes_features = True

    def check(self, source: Any) -> Any:
        """Return the features as a float32 tensor [E, F] on the host; `SharedFeatures` stay what they are.

        Raises:
            TypeError: the source is no float tensor or array.
            ValueError: the source has another shape, is too long, or holds NaN or infinities.
        """
        if isinstance(source, SharedFeatures):
            if source.states is None:
                source.features = self.check(source.features)
            return source
        num_features, limit = self.config.sound.num_features, self.config.max_source_positions
        expected = f"`source` must be a float tensor of features [E, {num_features}]"
        if isinstance(source, np.ndarray):
            source = torch.from_numpy(source)
        if not isinstance(source, Tensor):
            raise TypeError(
                f"{expected}, but is {type(source).__name__}; "
                "see pybeam.speech.load_feature_extractor"
            )
        if not source.dtype.is_floating_point:
            raise TypeError(f"{expected}, but holds {source.dtype}")
        if source.ndim != 2 or source.shape[1] != num_features:
            raise ValueError(
                f"{expected}, but is {list(source.shape)}; give one recording per request, and the "
                "features that the model was trained on"
            )
        length = self.source_length(source)
        assert limit is not None
        if length > limit:
            raise ValueError(
                f"`source` must have at most {limit} positions (`max_source_positions`), but its "
                f"{source.shape[0]} frames become {length}; split the recording"
            )
        features = source.detach().cpu().float()
        if not features.isfinite().all():
            raise ValueError(f"{expected}, but holds NaN or infinities; is the recording sound?")
        return features

    def source_length(self, source: Tensor | SharedFeatures) -> int:
        """Number of the encoder's positions."""
        return self.config.sound.num_positions(SharedFeatures.of(source).features.shape[0])
