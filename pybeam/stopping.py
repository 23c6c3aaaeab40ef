"""Rules that stop a search before its beam is empty or its length limit is reached."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass

from pybeam.arguments import ArgumentError, real
from pybeam.contracts import Certificate, Top

__all__ = ["Stop", "count", "end", "length_ratio", "mean_length_ratio", "optimal", "top_finished"]


@dataclass(frozen=True)
class Stop:
    """A stop rule. It may have several conditions; the first that holds ends the search.

    Args:
        patience: done when ``round(patience * width)`` hypotheses have finished, halves rounded up (n_best
            where hypotheses finish best first and patience is 1). None: their number does not matter.
        keeps_best: whether the best `width` of all that finish are kept; False: the first.
        top: done when the best candidate of a step ends in EOS and n_best have finished; see `Top`.
        certificate: done when the n_best-th of the finished hypotheses is at least as good as what
            `Certificate` says of the beam.

    Raises:
        ValueError, TypeError: a value is out of range or of the wrong type, or they do not fit together.
    """

    patience: float | None = None
    keeps_best: bool = True
    top: Top = Top.IGNORED
    certificate: Certificate = Certificate.NONE

    def __post_init__(self) -> None:
        if self.patience is not None:
            real("patience", self.patience, "a number or None")
        if self.patience is not None and not 0 < self.patience < math.inf:
            raise ArgumentError("patience", f"must be positive and finite, but is {self.patience}")
        if not self.keeps_best and self.patience != 1:
            raise ValueError(
                "`keeps_best=False` keeps as many as the beam is wide and so needs `patience=1`, but "
                f"`patience` is {self.patience}"
            )
        if not self.keeps_best and self.certificate:
            raise ValueError("`certificate` is about the best hypotheses and needs `keeps_best`")

    @property
    def needs_full_beam(self) -> bool:
        """Whether `top` and `certificate` need `width` hypotheses, not n_best; only in `pybeam.compat`."""
        return False


COUNT = Stop(patience=1, keeps_best=False)


def count() -> Stop:
    """Stop when as many hypotheses as the beam is wide have finished, and keep those (fairseq's rule)."""
    return COUNT


def end() -> Stop:
    """Stop when no row is alive or the length limit is reached, and never before."""
    return Stop()


def optimal() -> Stop:
    """Stop when no continuation of any row can beat the n_best finished hypotheses any more.

    With the best live row at log-probability ``S`` after n generated tokens, no continuation can get
    a final score above

    ``max over L in {n + 1, max_length} of S / ((offset + L) / scale)**alpha``
    ``+ max over L in {n + 1, max_length} of reward * min(ratio * |x|, L)``

    because log-probabilities are never positive (nor may processors make them so) and both terms are
    monotone in L. A held hypothesis counts with its own final score. The n_best that are returned have
    the final scores of the same search run to the end.

    See Huang, Zhao and Ma 2017, section 3.
    """
    return Stop(certificate=Certificate.BOUND)


def top_finished() -> Stop:
    """Stop when the best candidate of a step ends in EOS and n_best have finished (OpenNMT's rule).

    It finds the best hypothesis for raw scores and ``n_best=1``. Otherwise a better one may come later.
    """
    return Stop(top=Top.NOW)


def length_ratio(sources: Iterable[Sized], targets: Iterable[Sized]) -> float:
    """Target tokens of a data set per source token: ``sum over i of |y_i| / sum over i of |x_i|``.

    A ``ratio`` for `pybeam.scoring.reward` in which long pairs count for more; see `mean_length_ratio`.

    Args:
        sources, targets: pairs of token sequences. EOS counts as a generated token, so count it in
            the targets.

    Raises:
        ValueError: the numbers of sources and targets differ, or there is no source token.
    """
    pairs = _lengths(sources, targets)
    num_source_tokens = sum(source for source, _ in pairs)
    if not num_source_tokens:
        raise ValueError("there is no source token, so there is no ratio")
    return sum(target for _, target in pairs) / num_source_tokens


def mean_length_ratio(sources: Iterable[Sized], targets: Iterable[Sized]) -> float:
    """Target tokens per source token, averaged over the pairs: ``mean over i of |y_i| / |x_i|``.

    The paper's ``ratio`` for `pybeam.scoring.reward`, in which every pair counts the same.

    Args:
        sources, targets: pairs of token sequences, as for `length_ratio`.

    Raises:
        ValueError: there are not as many sources as targets, no pair at all, or a source is empty.

    See Huang, Zhao and Ma 2017, section 4.
    """
    pairs = _lengths(sources, targets)
    if not pairs:
        raise ValueError("there is no pair of a source and a target, so there is no ratio")
    for i, (source, _) in enumerate(pairs):
        if not source:
            raise ValueError(f"source {i} is empty, so its pair has no ratio; leave the pair out")
    return sum(target / source for source, target in pairs) / len(pairs)


def _lengths(sources: Iterable[Sized], targets: Iterable[Sized]) -> list[tuple[int, int]]:
    """The lengths of every pair; raises ValueError if there are not as many sources as targets."""
    source_lengths, target_lengths = ([len(one) for one in many] for many in (sources, targets))
    if len(source_lengths) != len(target_lengths):
        raise ValueError(
            f"there must be as many sources as targets, but there are {len(source_lengths)} and "
            f"{len(target_lengths)}"
        )
    return list(zip(source_lengths, target_lengths, strict=True))
