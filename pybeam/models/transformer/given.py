"""Build a transformer by facts that its own file gives, in place of those of a family."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.models.checkpoint import Checkpoint
from pybeam.models.transformer.assembly import Assembly
from pybeam.models.transformer.config import TransformerConfig
from pybeam.models.transformer.facts import StackFacts
from pybeam.models.transformer.positions import tensor2tensor_table

# of a table that is computed: longer inputs than these models were trained on
COMPUTED_POSITIONS = 4096


class GivenAssembly(Assembly):
    """Builds a model of another system's file.

    Args:
        config, checkpoint, device, dtype: as for `Assembly`.
        facts: of the stacks "encoder" and "decoder".
        starts_from_zero: whether hypotheses start from an embedding of zeros: that of the last token, behind
            those of the vocabulary, which nothing generates.
        first_position: of tokens, in a table that is computed.
    """

    def __init__(
        self,
        config: TransformerConfig,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype | None,
        facts: dict[str, StackFacts],
        *,
        starts_from_zero: bool,
        first_position: int = 0,
    ) -> None:
        self._own_facts, self._starts_from_zero = facts, starts_from_zero
        self._first_position = first_position
        super().__init__(config, checkpoint, device, dtype)

    def _facts(self, name: str) -> StackFacts:
        return self._own_facts[name]

    def _logit_bias(self) -> Tensor | None:
        output = "proj_out" if self.config.model_type == "whisper" else "lm_head"
        num = self.config.vocab_size - self._starts_from_zero
        name, bias = f"{output}.bias", None
        if name in self.checkpoint:
            bias = self._take(name, num)
        if self._starts_from_zero:
            if bias is None:
                bias = torch.zeros(num, dtype=self.reader.dtype, device=self.reader.device)
            bias = torch.cat((bias, bias.new_full((1,), -torch.inf)))
        return bias

    def _positions(self, stack: str) -> Tensor:
        if f"{stack}.embed_positions.weight" in self.checkpoint:
            return super()._positions(stack)
        first = self._first_position
        table = tensor2tensor_table(first + COMPUTED_POSITIONS, self.config.hidden_size)
        return table[first:].to(device=self.reader.device, dtype=self.reader.dtype)
