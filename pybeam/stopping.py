"""When a source is done before its beam is empty or its length limit is reached."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from numbers import Real

from pybeam.arguments import ArgumentError
from pybeam.contracts import Certificate, Top


@dataclass(frozen=True)
class Stop:
    """A stop rule; several conditions may be on, and the first that holds ends the search.

    Args:
        patience: done when as many as ``round(patience * width)``, halves up, have finished (n_best, where
            they finish best first and patience is 1); None: however many finish.
        keeps_best: of all that finish the best `width` are kept. Otherwise the first.
        top: done when the best candidate of a step ends in EOS and n_best have finished; see `Top`.
        certificate: done when the n_best-th of the finished hypotheses is at least as good as what
            `Certificate` says of the beam.
        certifies_all: as many as the beam is wide take the place of n_best in that (Hugging Face).

    Raises:
        ValueError, TypeError: a value is out of range or of the wrong type, or they do not fit together.
    """

    patience: float | None = None
    keeps_best: bool = True
    top: Top = Top.IGNORED
    certificate: Certificate = Certificate.NONE
    certifies_all: bool = False

    def __post_init__(self) -> None:
        if self.patience is not None and not isinstance(self.patience, Real):
            raise TypeError(f"`patience` must be a number or None, but is {self.patience!r}")
        if self.patience is not None and not 0 < self.patience < math.inf:
            raise ArgumentError("patience", f"must be positive and finite, but is {self.patience}")
        if not self.keeps_best and self.patience != 1:
            raise ValueError(
                "`keeps_best=False` keeps as many as the beam is wide and so needs `patience=1`, but "
                f"`patience` is {self.patience}"
            )
        if not self.keeps_best and self.certificate:
            raise ValueError("`certificate` is about the best hypotheses and needs `keeps_best`")
        if self.certifies_all and not (self.certificate or self.top):
            raise ValueError(
                "`certifies_all` says how many hypotheses `certificate` or `top` is about, but neither "
                "is given"
            )


COUNT = Stop(patience=1, keeps_best=False)


def count() -> Stop:
    """As many hypotheses as the beam is wide have finished, and those are kept; fairseq's rule."""
    return COUNT


def end() -> Stop:
    """No row is alive, or the length limit is reached; nothing else. What other rules are compared with."""
    return Stop()


def optimal() -> Stop:
    """No continuation of any row can beat the n_best finished hypotheses any more.

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
    """The best candidate of a step ends in EOS and n_best have finished.

    OpenNMT's rule; optimal for raw scores and one hypothesis, and for nothing else.
    """
    return Stop(top=Top.NOW)


def length_ratio(sources: Iterable[Sized], targets: Iterable[Sized]) -> float:
    """Target tokens per source token of a data set: the ``ratio`` of `pybeam.scoring.reward`.

    Args:
        sources, targets: pairs of token sequences. EOS counts as a generated token, so count it in
            the targets.

    Raises:
        ValueError: there are not as many sources as targets, or no source token at all.
    """
    source_lengths, target_lengths = ([len(one) for one in many] for many in (sources, targets))
    if len(source_lengths) != len(target_lengths):
        raise ValueError(
            f"there must be as many sources as targets, but there are {len(source_lengths)} and "
            f"{len(target_lengths)}"
        )
    if not sum(source_lengths):
        raise ValueError("there is no source token, so there is no ratio")
    return sum(target_lengths) / sum(source_lengths)
