"""Relative positions: biases that a model adds to attention scores, by distance.

A model hands its biases to its attention function. They are caught in one call on many tokens, whose last
token sees every distance.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends.inference import inferring
from pybeam.models.huggingface.attention import CannotAttend, catching
from pybeam.models.huggingface.model import Biases, HuggingFaceModel

# tokens of the first call where biases have no bound: more than most outputs have, and each later call
# doubles it
FIRST_LENGTH = 64


def measured(model: HuggingFaceModel) -> Biases:
    """Return the biases of every decoder layer.

    T5 and its kin have one bias for all distances from `relative_attention_max_distance` on. Tables end
    there, if those of twice the length show it to be true. Else they grow with hypotheses.

    Raises:
        CannotAttend: the model hands over no biases, or has some between decoder and encoder.
    """
    bound = getattr(model.decoder.config, "relative_attention_max_distance", None)
    own, cross = _caught(model, 2 * bound if bound else FIRST_LENGTH)
    if any(bias is not None and bool(bias.any()) for bias in cross):
        raise CannotAttend("its attention over encoder states has a `position_bias`")
    tables = _by_distance(own)
    if not bound or any((own[:, bound:] != own[:, bound, None]).any() for own in tables):
        return Biases(tables, are_bounded=False)
    return Biases(_by_distance(own, bound + 1), are_bounded=True)


@inferring
def upto(model: HuggingFaceModel, length: int) -> Sequence[Tensor]:
    """Return a table [H, P] float32 per layer for distances 0 to P - 1, as `tree_attention` takes it.

    P is at least `length`, or larger distances have the bias of P - 1.
    """
    biases = model.memory.biases
    assert biases is not None
    known = biases.tables[0].shape[1]
    if not biases.are_bounded and known < length:
        biases.tables = _by_distance(_caught(model, max(length, 2 * known))[0])
    return biases.tables


def _caught(
    model: HuggingFaceModel, length: int
) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
    """Return the biases of a call on so many tokens: of each layer's self-attention, and of the others."""
    weight = next(model.decoder.parameters())
    with model.lock, catching(model.configs) as caught:
        model.decoder(
            input_ids=torch.full((1, length), model.start_id, device=model.device),
            encoder_hidden_states=weight.new_zeros(1, 1, model.decoder.config.hidden_size),
            use_cache=False,
        )
    found = [bias for bias, num_keys in caught if num_keys == length]
    own = [bias for bias in found if bias is not None]
    if not own or len(own) < len(found):
        raise CannotAttend(
            "its decoder has no `embed_positions`, so its positions are relative, and it does not "
            "tell the attention function of them"
        )
    return own, [bias for bias, num_keys in caught if num_keys != length]


def _by_distance(biases: Sequence[Tensor], length: int | None = None) -> Sequence[Tensor]:
    """Turn biases [1, H, T, T] into tables; layers that share a bias share a table."""
    tables = {id(bias): bias[0, :, -1].flip(-1)[:, :length].float().contiguous() for bias in biases}
    return [tables[id(bias)] for bias in biases]
