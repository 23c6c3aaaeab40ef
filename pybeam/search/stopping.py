"""When a source is done before its beam is empty or its length limit is reached."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass

from pybeam.ops import Certificate


@dataclass(frozen=True)
class Stop:
    """A stop rule; several may be on, and the first that holds ends the search.

    Args:
        counts: done when as many hypotheses as the beam is wide have finished (n_best, where they
            finish best first). Those that finish first are kept. Without it the best are kept.
        top_finished: done when the best candidate of a step ends in EOS and n_best have finished
            (OpenNMT's rule).
        certificate: done when the n_best-th of the finished hypotheses is at least as good as what
            `Certificate` says of the beam.
        certifies_all: as many as the beam is wide take the place of n_best in that (Hugging Face).
    """

    counts: bool = False
    top_finished: bool = False
    certificate: Certificate = Certificate.NONE
    certifies_all: bool = False

    def __post_init__(self) -> None:
        if self.counts and self.certificate:
            raise ValueError(
                "`counts` and `certificate` exclude each other: one keeps the first hypotheses that "
                "finish, the other is about the best"
            )

    @property
    def keeps_best(self) -> bool:
        """Whether the best finished hypotheses are kept, not the first."""
        return not self.counts


COUNT = Stop(counts=True)


def count() -> Stop:
    """As many hypotheses as the beam is wide have finished; fairseq's rule."""
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

    because log-probabilities are never positive and both terms are monotone in L. A held
    hypothesis counts with its own final score. The winner is that of the same search run to the end.

    See Huang, Zhao and Ma 2017, section 3.
    """
    return Stop(certificate=Certificate.BOUND)


def top_finished() -> Stop:
    """The best candidate of a step ends in EOS and n_best have finished.

    OpenNMT's rule; optimal for raw scores and one hypothesis, and for nothing else.
    """
    return Stop(top_finished=True)


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
