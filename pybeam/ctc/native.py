"""C++ on a CPU for CTC: operators of `csrc/ops/ctc.h`. `reference` says what the functions do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends.native import operator

beam_search = operator("ctc_beam_search")
align = operator("ctc_align")
prefix_scores = operator("ctc_prefix_scores")


@torch.library.register_fake("pybeam::ctc_beam_search")
def _(log_probs: Tensor, length: Tensor, *options: int) -> tuple[Tensor, ...]:
    num, n_best = len(length), options[2]
    return (
        length.new_empty(num, n_best, log_probs.shape[1]),
        length.new_empty(num, n_best),
        log_probs.new_empty(num, n_best, dtype=torch.float64),
        length.new_empty(num),
    )


@torch.library.register_fake("pybeam::ctc_align")
def _(
    log_probs: Tensor, length: Tensor, tokens: Tensor, *_rest: Tensor | int
) -> tuple[Tensor, ...]:
    score = log_probs.new_empty(tokens.shape, dtype=torch.float64)
    return tokens.new_empty(*tokens.shape, 2), score, score.new_empty(len(length))


@torch.library.register_fake("pybeam::ctc_prefix_scores")
def _(log_probs: Tensor, prefixes: Tensor, sources: Sequence[Tensor], *_rest: object) -> None:
    return None
