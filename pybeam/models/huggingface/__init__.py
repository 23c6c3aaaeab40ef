"""Any transformers model with a language modelling head: `wrap`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache as remembered
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pybeam.models.huggingface.model import HuggingFaceModel

__all__ = ["wrap"]

# in 5.4 the states of Mamba are in no cache that its lines could be gathered from
OLDEST = "5.5"


def wrap(
    network: PreTrainedModel,
    *,
    start_id: int | None = None,
    eos_id: int | Sequence[int] | None = None,
    cache: str = "auto",
) -> HuggingFaceModel:
    """Wrap a model of transformers, such as `AutoModelForSeq2SeqLM.from_pretrained` returns, for searches.

    The sources of an encoder-decoder are token ids. The sources of a speech model are the features of one
    input, as the model's processor makes them, without the batch dimension. The sources of a decoder-only
    model are prompts, which are no part of the output. Weights are used as they are; nothing is copied.

    Keys and values live in the cells of the token tree. None moves on a beam step, encoder states and prompts
    are kept once per source, and finished rows leave the batch. A few tokens are decoded here to test whether
    the model gives the same logits as without any cache. If it does not, because its attention cannot be
    replaced (ALiBi, state-space layers), it keeps a dense cache per row, which moves with the row and is
    slower. A warning says so.

    Args:
        network: the model, in eval mode.
        start_id: the token that hypotheses start from; None: the config's. Decoder-only models need none.
        eos_id: the token that ends hypotheses, or up to 8 of them; None: those of the config.
        cache: "auto", or "tree" or "dense" to insist on one way.

    Raises:
        ImportError: transformers is not installed, or is too old.
        TypeError: `network` is no transformers model that generates.
        ValueError: `network` is in training mode, an id is unknown, or neither kind of cache works.
    """
    check_transformers()
    from pybeam.models.huggingface import probe

    return probe.wrap(network, start_id, eos_id, cache)


def check_transformers() -> None:
    """Raise ImportError unless transformers is installed, and is not older than `OLDEST`."""
    needed = f"transformers {OLDEST} or later is needed"
    try:
        from transformers import __version__ as installed
    except ImportError as error:
        raise ImportError(
            f"{needed}, but is not installed: `pip install -U transformers` ({error})"
        ) from error
    if _numbers(installed) < _numbers(OLDEST):
        raise ImportError(f"{needed}, but {installed} is installed: `pip install -U transformers`")


@remembered
def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
