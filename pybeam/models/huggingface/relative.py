"""Relative positions: biases that a model adds to attention scores, by distance."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.models.distances import Distances
from pybeam.models.huggingface.attention import CannotAttend, catching
from pybeam.models.huggingface.gathered import GatheredCells
from pybeam.models.huggingface.model import HuggingFaceModel

# tokens of the first call: more than most outputs have, and each later call doubles it
FIRST_LENGTH = 64


class BiasTables:
    """The biases of every decoder layer, by distance.

    A model hands its biases to its attention function. They are caught in one call on many tokens, whose last
    token sees every distance.

    Raises:
        CannotAttend: the model hands over no biases, or has some between decoder and encoder.
    """

    @torch.inference_mode()
    def __init__(self, model: HuggingFaceModel) -> None:
        self._model = model
        self._tables: list[Tensor] = []
        self.upto(FIRST_LENGTH)

    @torch.inference_mode()
    def upto(self, length: int) -> list[Tensor]:
        """Return a table [H, P] per layer, for distances 0 to P - 1, where P is at least `length`."""
        if not self._tables or self._tables[0].shape[1] < length:
            known = self._tables[0].shape[1] if self._tables else 0
            self._tables = self._caught(max(length, 2 * known))
        return self._tables

    def _caught(self, length: int) -> list[Tensor]:
        model = self._model
        weight = next(model.decoder.parameters())
        with model.lock, catching(model.configs) as caught:
            model.decoder(
                input_ids=torch.full((1, length), model.start_id, device=model.device),
                encoder_hidden_states=weight.new_zeros(1, 1, model.decoder.config.hidden_size),
                use_cache=False,
            )
        found = [bias for bias, num_keys in caught if num_keys == length]
        cross = [bias for bias, num_keys in caught if num_keys != length]
        own = [bias for bias in found if bias is not None]
        if not own or len(own) < len(found):
            raise CannotAttend(
                "its decoder has no `embed_positions`, so its positions are relative, and it does not "
                "tell the attention function of them"
            )
        if any(bias is not None and bool(bias.any()) for bias in cross):
            raise CannotAttend("its attention over encoder states has a `position_bias`")
        # layers that share a bias share a table
        tables = {id(bias): bias[0, :, -1].flip(-1).contiguous() for bias in own}
        return [tables[id(bias)] for bias in own]


class DistanceBiases:
    """The numbers that every layer adds to its scores in one step.

    Args:
        tables: what `BiasTables.upto` returned.
        distances: the positions of the step's cells and rows.
    """

    def __init__(self, tables: list[Tensor], distances: Distances) -> None:
        self._tables, self._back = tables, distances.back.long()  # [A, K, U]
        self._added: dict[int, Tensor] = {}

    def __call__(self, layer: int, cells: GatheredCells) -> Tensor:
        """Return [A, H, K, U]: the biases, or the dtype's lowest number where a row does not see a cell."""
        table = self._tables[layer]  # [H, P]
        if id(table) not in self._added:
            distance = self._back.clamp(0, table.shape[1] - 1)
            bias = table[:, distance].transpose(0, 1)  # [A, H, K, U]
            is_unseen = ~cells.is_seen[:, None]
            self._added[id(table)] = bias.masked_fill(is_unseen, torch.finfo(bias.dtype).min)
        return self._added[id(table)]
