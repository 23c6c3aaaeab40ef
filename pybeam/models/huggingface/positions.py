"""Position embeddings of decoders that count positions themselves, for rows of different lengths."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pybeam.backends.inference import inferring
from pybeam.models.huggingface.attention import current

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
