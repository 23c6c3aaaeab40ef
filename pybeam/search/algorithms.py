"""The algorithms as data: one row each of the table in ARCHITECTURE.md.

An algorithm never calls the model and never loops; `pybeam.engine.engine` does both, once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pybeam.arguments import ArgumentError, whole
from pybeam.contracts import MAX_WIDTH, Finishing
from pybeam.drafts import Draft
from pybeam.limits import FREE, PrefixRule, SourceLimit
from pybeam.processors import base
from pybeam.processors.base import AnyProcessor
from pybeam.scoring import Scoring, reward
from pybeam.search.pruning import Pruning
from pybeam.stopping import COUNT, Stop, optimal

DEFAULT_MAX_LENGTH = 256
UNPRUNED, RAW = Pruning(), Scoring()


@dataclass(frozen=True)
class Algorithm:
    """What a search does with candidates; `Request`s may override all but `finishing`.

    Built by `greedy` and the functions below it, and by those of `parallel` and `several` beside it.
    """

    width: int
    finishing: Finishing
    pruning: Pruning = UNPRUNED
    n_best: int = 1
    min_length: int = 0
    max_length: int | SourceLimit | None = None
    scoring: Scoring = RAW
    processors: tuple[AnyProcessor, ...] = ()
    stop: Stop = COUNT
    num_groups: int = 1  # see `diverse`
    prefix: PrefixRule = FREE
    regrows: bool = False
    draft: Draft | None = None  # how tokens are guessed ahead; None: one token a step

    def __post_init__(self) -> None:
        for name in ("width", "n_best", "min_length", "max_length"):
            value, least = getattr(self, name), int(name != "min_length")
            if name == "max_length" and (value is None or isinstance(value, SourceLimit)):
                continue
            whole(name, value, least)
        if self.width > MAX_WIDTH:
            raise ArgumentError("width", f"must be at most {MAX_WIDTH}, but is {self.width}")
        if self.n_best > self.width:
            raise ArgumentError(
                "n_best",
                f"must be at most `width` = {self.width}, but is {self.n_best}; widen the beam or ask "
                "for fewer hypotheses",
            )
        if not isinstance(self.stop, Stop):
            raise TypeError(
                f"`stop` must come from pybeam.stopping, such as optimal(), but is {self.stop!r}"
            )
        if isinstance(self.max_length, int) and self.min_length >= self.max_length:
            raise ArgumentError(
                "min_length",
                f"must be less than `max_length` = {self.max_length} (which counts EOS), but is "
                f"{self.min_length}",
            )
        if not isinstance(self.scoring, Scoring):
            raise TypeError(
                f"`scoring` must come from pybeam.scoring, such as power(1.0), but is {self.scoring!r}"
            )
        if self.scoring.coverage and self.stop.certificate:
            raise ValueError(
                "`scoring` with coverage ranks what has finished after the search, so `stop` cannot "
                f"certify it, but is {self.stop!r}; use stopping.end() or count()"
            )
        if not self.stop_at >= self.n_best:
            raise ArgumentError(
                "n_best",
                f"must be at most round(patience * width) = {self.stop_at}, after which the search "
                f"stops, but is {self.n_best}; have more patience, or ask for fewer hypotheses",
            )
        if self.regrows and self.finishing != Finishing.SHRINK:
            raise ValueError(
                f"`regrows` gives back the places that {Finishing.SHRINK!r} takes, but `finishing` is "
                f"{self.finishing!r}; leave it out"
            )
        if not isinstance(self.prefix, PrefixRule):
            raise TypeError(
                f"`prefix` must be a pybeam.limits.PrefixRule, but is {self.prefix!r}; the tokens "
                "themselves belong to a Request"
            )
        if self.prefix.leading_eos and self.finishing != Finishing.REFILL:
            raise ValueError(
                f"`leading_eos` of `prefix` belongs to {Finishing.REFILL!r}, but `finishing` is "
                f"{self.finishing!r}; leave it out"
            )
        base.check_order(self.processors)
        if self.draft is not None:
            self._check_draft()

    def _check_draft(self) -> None:
        """Raises ValueError unless the search follows one hypothesis to its end, by log-probabilities."""
        if (self.width, self.num_groups, self.stop) != (1, 1, COUNT):
            raise ValueError(
                "an algorithm that guesses tokens ahead follows one hypothesis to its end, so `width` must "
                f"be 1 and `stop` count(), but they are {self.width} and {self.stop}"
            )
        if self.perturbs or self.prefix.leading_eos:
            raise ValueError(
                "an algorithm that guesses tokens ahead takes the most probable token, so neither samples "
                "nor rules about EOS behind a prefix go with it; use pybeam.greedy()"
            )

    @property
    def refills(self) -> bool:
        """Whether the places of finished hypotheses are there again in the next step."""
        return self.regrows or self.finishing == Finishing.REFILL

    @property
    def stop_at(self) -> float:
        """Finished hypotheses that end the search.

        Held hypotheses are popped best first, so with raw scoring the first n_best are the result.
        """
        stop = self.stop
        if stop.patience is None:
            return math.inf
        pops_in_order = self.finishing == Finishing.HELD and self.scoring.is_raw
        if pops_in_order and stop.patience == 1:
            return self.n_best
        # half of one counts as one, which `round` does for odd numbers only
        return math.floor(stop.patience * self.width + 0.5)

    @property
    def perturbs(self) -> bool:
        """Whether what ranks hypotheses is no log-probability; see `Processor.perturbs`."""
        return any(map(base.perturbs, self.processors))

    @property
    def most_rows(self) -> int:
        """Rows that a source may have in a step."""
        if self.draft is None:
            return self.width
        is_known = isinstance(self.max_length, int)
        return self.draft.max_rows(self.max_length if is_known else DEFAULT_MAX_LENGTH)

    @property
    def tokens_per_step(self) -> int:
        """By which a hypothesis may grow in a step."""
        return 1 if self.draft is None else self.most_rows

    @property
    def growth(self) -> int:
        """How many times as many rows a beam rarely has after a step; a guess where candidates are pruned."""
        if self.draft is not None:
            return self.most_rows
        most = self.width if self.pruning.max_candidates is None else self.pruning.max_candidates
        is_pruned = min(self.pruning.margin, self.pruning.local_margin) < math.inf
        return int(min(most, self.width, 2 if is_pruned else self.width))


_FIXED = {"width", "finishing", "pruning", "num_groups"}
_OPTIONS = {field.name for field in dataclasses.fields(Algorithm)} - _FIXED


def _algorithm(
    width: int,
    finishing: Finishing,
    pruning: Pruning = UNPRUNED,
    /,
    *,
    processors: Sequence[AnyProcessor] = (),
    **options,
) -> Algorithm:
    if callable(processors) or not isinstance(processors, Iterable):
        raise TypeError(f"`processors` must be a list, but is {processors!r}; put it into one")
    others = options.keys() - _OPTIONS
    if others:
        raise TypeError(
            f"`{min(others)}` is no option of this algorithm; there are {', '.join(sorted(_OPTIONS))}"
        )
    return Algorithm(width, finishing, pruning, processors=tuple(processors), **options)


def greedy(**options) -> Algorithm:
    """Take the most probable token until EOS.

    Args:
        options: as for `fixed_beam`; the width is 1.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    return _algorithm(1, Finishing.REFILL, **options)


def fixed_beam(width: int, **options) -> Algorithm:
    """Beam search of fixed width with fairseq's finishing rule.

    Of the best ``2 * width`` candidates of a step, one that ends in EOS at rank < width finishes and its
    place is refilled from the ranks behind; EOS at rank >= width is dropped. The search stops when
    `width` hypotheses have finished. `n_best` only trims what is returned.

    Args:
        width: 1 to 128.
        n_best: hypotheses to return, at most `width`.
        min_length: tokens before EOS may be produced (EOS not counted; nothing is renormalised).
        max_length: generated tokens, EOS counted, after which live rows finish as they are, or a
            `pybeam.limits.SourceLimit`; None: ``min(256, the model's positions)``.
        scoring: from `pybeam.scoring`.
        processors: from `pybeam.processors`, or functions ``(logits [R, V], rows) -> logits``, applied
            before each selection.
        stop: from `pybeam.stopping`.
        prefix: a `pybeam.limits.PrefixRule`.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Ott et al. 2019 (fairseq).
    """
    return _algorithm(width, Finishing.REFILL, **options)


def variable_beam(
    width: int,
    threshold: float | None = None,
    max_candidates: float | None = None,
    relative_threshold: float | None = None,
    local_threshold: float | None = None,
    **options,
) -> Algorithm:
    """Beam search of variable width: `Pruning` decides how many of `width` rows are alive.

    A candidate that ends in EOS is held in the beam as a no-op that competes with its score; a leading
    run of ended candidates is popped, each pop costs one place. The search stops when `width` (with
    raw scoring: `n_best`) hypotheses are popped or the beam is empty. Without thresholds this is the
    paper's FIXED-OURS.

    Args:
        width: 1 to 128.
        threshold, max_candidates, relative_threshold, local_threshold: see `Pruning`.
        options: as for `fixed_beam`.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Freitag and Al-Onaizan 2017; Yang et al. 2020.
    """
    pruning = Pruning(threshold, max_candidates, relative_threshold, local_threshold)
    return _algorithm(width, Finishing.HELD, pruning, **options)


def optimal_beam(
    width: int,
    length_reward: float = 0.0,
    length_ratio: float | None = None,
    **options,
) -> Algorithm:
    """Beam search that stops when no continuation can beat what has finished.

    ``final_score = score + length_reward * min(length_ratio * |x|, n)``; without ratio every token is
    rewarded. ``scoring=`` may be given in place of the two. The winner is the one that the same search
    would find if it ran to its length limit, and `Result.stop_reason` is "optimal" where that is proven.

    The beam is that of `fixed_beam`: places of finished hypotheses are refilled, while the paper's
    shrinks; of the finished hypotheses the best `width` are kept.

    Args:
        width: 1 to 128.
        length_reward: added for every generated token up to the ratio.
        length_ratio: target tokens per source token that are rewarded, such as the mean of a
            data file (`pybeam.stopping.length_ratio`).
        options: as for `fixed_beam`.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Huang, Zhao and Ma 2017.
    """
    if length_reward != 0 or length_ratio is not None:
        if "scoring" in options:
            raise ValueError(
                "give either `scoring` or `length_reward` and `length_ratio`, not both"
            )
        options["scoring"] = reward(length_reward, length_ratio)
    return _algorithm(width, Finishing.REFILL, **{"stop": optimal(), **options})


def shrinking_beam(
    width: int,
    threshold: float | None = None,
    max_candidates: float | None = None,
    relative_threshold: float | None = None,
    local_threshold: float | None = None,
    **options,
) -> Algorithm:
    """Beam search in which a hypothesis that ends leaves the beam and its place stays empty.

    Stops when all `width` places are gone, or no row is left. With ``regrows=True`` a place stays empty
    for one step only (OpenNMT-py).

    Args:
        width: 1 to 128.
        threshold, max_candidates, relative_threshold, local_threshold: see `Pruning`.
        options: as for `fixed_beam`.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Bahdanau et al. 2015 (RNNsearch); a baseline of Huang et al. 2017.
    """
    pruning = Pruning(threshold, max_candidates, relative_threshold, local_threshold)
    return _algorithm(width, Finishing.SHRINK, pruning, **options)
