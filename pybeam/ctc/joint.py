"""`prefix_scores`: an attention decoder and a CTC model of the same tokens search together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from pybeam.arguments import LARGEST_INT32, ArgumentError, flag, number, whole
from pybeam.backends.arrays import resized
from pybeam.ctc.frames import FLOATS, kernels
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Processor, Stage

OfSource = Callable[[Any], Tensor]


# two are equal if they are one, because tensors are no values
@dataclass(frozen=True, eq=False)
class PrefixScores(Processor):
    """See `prefix_scores`.

    The state of a prefix is 2 (T + 1) numbers in float64, in a line of the cell in which its last token has
    its key and value. So it lives as long as these.
    """

    log_probs: Tensor | OfSource | None = field(repr=False)
    weight: float
    blank: int = 0
    pre_beam: int | None = None
    counts_prefix: bool = True
    stage: Stage = field(default="log_probs", init=False)
    per_request: ClassVar = ("log_probs", "weight")
    state: ClassVar = (INT,)  # the cell of each node
    takes_slots: ClassVar = True
    can_capture: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        number("weight", self.weight, -math.inf)
        if not 0 <= self.weight <= 1:
            raise ArgumentError("weight", f"must be from 0 to 1, but is {self.weight}")
        whole("blank", self.blank, 0, LARGEST_INT32)
        if self.pre_beam is not None:
            whole("pre_beam", self.pre_beam, 1, LARGEST_INT32)
        flag("counts_prefix", self.counts_prefix)
        if self.log_probs is not None and not self.by_source:
            object.__setattr__(self, "log_probs", _checked(self.log_probs))

    @property
    def by_source(self) -> bool:  # type: ignore[override]
        """Whether a function gives the log-probabilities of each source."""
        return callable(self.log_probs) and not isinstance(self.log_probs, Tensor)

    @property
    def is_neutral(self) -> bool:  # type: ignore[override]
        """Whether there is nothing to add."""
        return self.weight == 0 or self.log_probs is None

    def of_source(self, content: Any, prefix: Sequence[int]) -> PrefixScores:
        """Return the one with the log-probabilities of this source."""
        if not self.by_source:
            return self
        assert callable(self.log_probs)
        return dataclasses.replace(self, log_probs=self.log_probs(content))

    def parameters(self) -> tuple[Tensor, ...]:
        frames = self.log_probs if isinstance(self.log_probs, Tensor) else torch.zeros(0, 0)
        weight = torch.tensor(0.0 if self.is_neutral else self.weight, dtype=torch.float32)
        length = torch.tensor(len(frames), dtype=INT)
        # sums over all tokens are of probabilities
        return frames, length, weight, *([frames.exp()] if self.pre_beam is None else [])

    def check(self, model: Model) -> None:
        if self.blank >= model.vocab_size:
            raise ArgumentError(
                "blank", f"must be 0 to {model.vocab_size - 1}, but is {self.blank}"
            )
        if self.blank in model.eos_ids:
            raise ArgumentError("blank", f"must not be EOS, but is {self.blank}")
        if isinstance(self.log_probs, Tensor):
            _check_size(self.log_probs.shape[1], model.vocab_size)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        *sources, state = data
        frames = sources[0]
        if not frames.shape[2]:
            return logits  # no source has any
        _check_size(frames.shape[2], logits.shape[1])
        tree, slot, node = rows.tree, rows.row_slot.long(), rows.node.long()
        said = rows.position if self.counts_prefix else rows.num_generated  # [R]
        # what comes before is no output
        cell = torch.where(said < 0, -1, rows.cell)
        state[slot, node] = cell
        parent = tree.parent[slot, node].long().clamp(min=0)
        parent_cell = torch.where(said > 0, state[slot, parent], -1)
        parent_token = torch.where(said > 1, tree.token[slot, parent], -1)
        prefixes = tree.by_cell.get(self)
        if prefixes is None:
            prefixes = frames.new_zeros(0, 0, 2, dtype=torch.float64)
        tree.by_cell[self] = prefixes = resized(prefixes, (tree.num_cells, frames.shape[1] + 1, 0))
        given = [rows.row_slot, cell, parent_cell, rows.token, parent_token]
        options = list(rows.eos_ids), self.blank, self.pre_beam or 0
        name = tree.backend.__name__.rpartition(".")[2]
        # there is no kernel for a GPU
        scores = kernels("native" if name == "native" else "reference").prefix_scores
        scores(logits, prefixes, sources, given, *options)
        return logits


def _checked(log_probs: Any) -> Tensor:
    """Return log-probabilities [T, V] as float32 on the host."""
    if not isinstance(log_probs, Tensor):
        raise TypeError(
            "`log_probs` must be a tensor [frames, tokens], a function of a source that returns such, or "
            f"None, but is {log_probs!r}"
        )
    if log_probs.dtype not in FLOATS:
        raise TypeError(f"`log_probs` must hold floats, but holds {log_probs.dtype}")
    if log_probs.ndim != 2:
        raise ArgumentError(
            "log_probs", f"must be [frames, tokens] of one source, but is {list(log_probs.shape)}"
        )
    log_probs = log_probs.detach().cpu().float().contiguous()
    if not (log_probs < math.inf).all():
        raise ArgumentError("log_probs", "must be log-probabilities, but holds NaN or infinity")
    return log_probs


def _check_size(found: int, vocab_size: int) -> None:
    if found != vocab_size:
        raise ArgumentError(
            "log_probs",
            f"must be of the decoder's {vocab_size} tokens, but are of {found}; give the CTC model the same "
            "vocabulary, with a column for EOS",
        )


def prefix_scores(
    log_probs: Tensor | OfSource | None,
    weight: float = 0.3,
    *,
    blank: int = 0,
    pre_beam: int | None = None,
    counts_prefix: bool = True,
) -> PrefixScores:
    """Add the prefix scores of CTC to an attention decoder: joint CTC/attention decoding.

    A token c behind the hypothesis g gets ``(1 - w) log p(c | g, x) + w (log psi(g c) - log psi(g))``, where
    p is the decoder's. psi(h) is the probability that CTC gives to all outputs that begin with h, 1 for the
    empty one. For EOS it is that of the output g itself, so that a finished hypothesis has w times its
    log-probability by CTC in its score. The blank is never said, and what the decoder forbids stays
    forbidden. A hypothesis that CTC cannot say ends.

    Let r_n(t) and r_b(t) be the probabilities of the paths of t frames that say g and end in its last token,
    and in a blank, and y that of frame t. Then ``psi(g c) = sum over t of phi(t - 1) y(t, c)``, where phi is
    r_b if c is the last token of g, else ``r_n + r_b``. Both are kept for every hypothesis, in float64:
    16 (T + 1) bytes beside each key and value of the decoder.

    Stage "log_probs". Per request: `log_probs` and the weight, so that each source has its own:
    ``Request(features, processors=[prefix_scores(log_probs)])``; the algorithm then has
    ``prefix_scores(None)``. A function is asked for every source when it is admitted, such as the
    `ctc_log_probs` of a model with a CTC layer. ESPnet calls the weight `ctc_weight`. Where its beam is K
    wide, it scores ``int(1.5 K)`` tokens of each row, which `pre_beam` does too; here all cost less time.

    Args:
        log_probs: [T, V] floats of the source's frames, with the decoder's vocabulary; a function that
            returns them for a source as the model has checked it; None: there are none, and nothing is added.
        weight: w, from 0 to 1.
        blank: the token that stands for none.
        pre_beam: only so many of each row's tokens are scored, those that the decoder finds most probable,
            and EOS; others are forbidden. None: all.
        counts_prefix: whether a forced prefix is what the source says. False: hypotheses begin behind the
            prefix, as behind tokens for languages and tasks.

    Raises:
        TypeError, ValueError: a number is out of range, or `log_probs` has another shape or type, or holds
            NaN or +inf. With a decoder, ValueError: they are of other tokens.

    See Watanabe et al. 2017, "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition", algorithm
    2, and Seki et al. 2019.
    """
    return PrefixScores(log_probs, weight, blank, pre_beam, counts_prefix)
