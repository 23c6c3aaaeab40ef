"""Any transformers model with a language modelling head: `wrap`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pybeam.models.huggingface.model import HuggingFaceModel

__all__ = ["wrap"]


def wrap(
    network: PreTrainedModel,
    *,
    start_id: int | None = None,
    eos_id: int | Sequence[int] | None = None,
    cache: str = "auto",
) -> HuggingFaceModel:
    """A model of transformers, such as `AutoModelForSeq2SeqLM.from_pretrained` gives, for searches.

    Encoder-decoders take sources of token ids, speech models the features of one input as the model's
    processor makes them, without the batch dimension, and decoder-only models prompts, which are no
    part of the output. Weights are used as they are, nothing is copied.

    Keys and values live in the cells of the token tree: none moves on a beam step, encoder states and
    prompts are kept once per source, and finished rows leave the batch. Whether that gives what the
    model gives without any cache is tried out here, with a few tokens. A model for which it does not,
    since its attention cannot be replaced (ALiBi, state-space layers), keeps a dense cache
    per row that moves with it, which is slower; a warning says so.

    Args:
        network: in eval mode.
        start_id: the token that hypotheses start from, if it is not the config's; no matter for
            decoder-only models.
        eos_id: the token that ends them, or up to 8, where it shall not be what the config names.
        cache: "tree" or "dense" to insist on one of them.

    Raises:
        ImportError: transformers is not installed.
        TypeError: `network` is no transformers model that generates.
        ValueError: it is in training mode, no id is known, or it can keep no cache that pybeam could move.
    """
    try:
        from pybeam.models.huggingface import probe
    except ImportError as error:
        raise ImportError(
            f"wrapping a model needs transformers 5: `pip install transformers` ({error})"
        ) from error
    return probe.wrap(network, start_id, eos_id, cache)
