"""Record the log-probabilities of a few tokens at one place of a forced prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Processor

NO_LINE = -1


class TokenLogProbs:
    """Log-probabilities of the recorded tokens, a line for each request that is being decoded.

    Args:
        num_lines: requests that may be decoded at a time.
        num_tokens: recorded tokens.
        device: where the model computes.
    """

    def __init__(self, num_lines: int, num_tokens: int, device: torch.device) -> None:
        # rows without a line write to the last one
        self.values = torch.zeros(num_lines + 1, num_tokens, device=device)
        self._free = list(range(num_lines))

    @property
    def is_full(self) -> bool:
        """Whether all lines are taken."""
        return not self._free

    def take(self) -> int:
        """Take a free line."""
        return self._free.pop()

    def read(self, line: int) -> list[float]:
        """Return the numbers of a line, and free it."""
        self._free.append(line)
        numbers: list[float] = self.values[line].tolist()
        return numbers


@dataclass(frozen=True)
class RecordLogProbs(Processor):
    """Write down the log-probabilities of `tokens` behind one token of the forced prefix. It changes nothing.

    It is the first processor, so that they are the model's own.

    Args:
        token_log_probs: where they are written.
        tokens: ids.
        back: how many tokens of the prefix stand behind that place.
        line: the request's line.
        prefix_reach: the largest `back` of any request.
    """

    token_log_probs: TokenLogProbs
    tokens: tuple[int, ...]
    back: int = 0
    line: int = NO_LINE
    prefix_reach: int = 0
    per_request: ClassVar = ("back", "line")

    def parameters(self) -> tuple[Tensor, ...]:
        return torch.tensor(self.back, dtype=INT), torch.tensor(self.line, dtype=INT)

    def constants(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.tokens, dtype=torch.long),)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        back, line, token = data  # [R], [R], [n]
        if not self.tokens:
            return logits
        is_there = (rows.num_generated == -back) & (line >= 0)
        seen = logits
        if not logits.is_cuda:
            # few rows are there, and on a CPU nothing waits for a look
            row = is_there.nonzero()[:, 0]
            if not row.numel():
                return logits
            seen, line, is_there = logits[row], line[row], is_there[row]
        values = self.token_log_probs.values
        place = torch.where(is_there, line, values.shape[0] - 1).long()
        values[place] = torch.log_softmax(seen.float(), 1).index_select(1, token)
        return logits
