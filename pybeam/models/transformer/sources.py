"""Sources of a transformer, and how token ids are checked; `speech` checks features of sound."""

from __future__ import annotations

from typing import Any

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
