"""Positions that a decoder counts itself, for rows of different lengths: embeddings, and biases by distance.

A model hands the biases of its scores to its attention function. They are caught in one call on many tokens,
whose last token sees every distance.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pybeam.backends.inference import inferring
from pybeam.models.huggingface.attention import CannotAttend, Caught, attending, current
from pybeam.models.huggingface.model import Biases, HuggingFaceModel

# tokens of the first call where biases have no bound: more than most outputs have, and each later call
# doubles it
FIRST_LENGTH = 64
_hooked: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class _Enough(Exception):
    """Raised when the position embeddings are known, so that the rest of the decoder does not run."""


class PositionTable:
    """Puts each row's own position embedding in place of the one a decoder looks up.

    Encoder-decoders take no position ids: they count from the length of their cache, which is one for all
    rows. So a table of all positions is read out of the decoder once, by a forward hook on its
    `embed_positions`. During a step a hook on the same module looks rows up in that table.

    Args:
        decoder: a decoder that has a module for its positions (`module_of`).
        num_positions: how many positions it has.
        pad_id: a token that may have no position; None: there is none.
    """

    @inferring
    def __init__(self, decoder: PreTrainedModel, num_positions: int, pad_id: int | None) -> None:
        module = module_of(decoder)
        assert module is not None
        weight = next(decoder.parameters())
        state = weight.new_zeros(1, 1, decoder.config.hidden_size)

        def table(token: int) -> Tensor:
            caught: list[Tensor] = []

            def catch(_module: nn.Module, _args: object, output: Tensor) -> None:
                caught.append(output)
                raise _Enough

            hook = module.register_forward_hook(catch)
            try:
                ids = torch.full((1, num_positions), token, device=weight.device)
                decoder(input_ids=ids, encoder_hidden_states=state, use_cache=False)
            except _Enough:
                pass
            finally:
                hook.remove()
            return caught[0].reshape(num_positions, -1).to(weight.dtype)  # [P, d]

        pad_id = 0 if pad_id is None else pad_id
        self._pad_id = pad_id
        self._table = table(pad_id + 1 if pad_id == 0 else 0)
        padded = table(pad_id)
        # some decoders give the padding token no position, even inside a hypothesis
        self._padded = None if torch.equal(padded, self._table) else padded
        if module not in _hooked:
            _hooked.add(module)
            module.register_forward_hook(_look_up)

    def rows(self, token: Tensor, position: Tensor) -> Tensor:
        """Return position embeddings [R, 1, d] for tokens [R] at positions [R]."""
        found = self._table.index_select(0, position)  # [R, d]
        if self._padded is not None:
            is_pad = (token == self._pad_id)[:, None]
            found = torch.where(is_pad, self._padded.index_select(0, position), found)
        return found[:, None]


def module_of(decoder: nn.Module) -> nn.Module | None:
    """Return the module that embeds a decoder's positions; None: there is none, or not one."""
    found = [
        module
        for name, module in decoder.named_modules()
        if name.rpartition(".")[2] == "embed_positions"
    ]
    return found[0] if len(found) == 1 else None


def _look_up(_module: nn.Module, _args: object, output: Tensor) -> Tensor | None:
    step = current()
    return None if step is None else step.embedding


def measured_biases(model: HuggingFaceModel) -> Biases:
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
def biases_upto(model: HuggingFaceModel, length: int) -> Sequence[Tensor]:
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
    """Return the biases of a call on `length` tokens: of self-attention, a layer each, and of the others."""
    weight = next(model.decoder.parameters())
    caught: Caught = []
    with model.lock, attending(model.configs, caught):
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
