"""An algorithm, as data for the kernels and the engine.

An algorithm never calls the model and never loops; `pybeam.engine.engine` does both, once. The functions
in `beams`, `parallel` and `several` beside this file build them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pybeam.arguments import LARGEST_INT32, ArgumentError, flag, whole
from pybeam.contracts import Finishing
from pybeam.limits import FREE, PrefixRule, SourceLimit
from pybeam.processors import base
from pybeam.processors.base import AnyProcessor
from pybeam.scoring import Scoring
from pybeam.search import widths
from pybeam.search.pruning import Pruning
from pybeam.search.widths import Width
from pybeam.stopping import COUNT, Stop

if TYPE_CHECKING:
    from pybeam.drafts import Draft

DEFAULT_MAX_LENGTH = 256
UNPRUNED, RAW = Pruning(), Scoring()


@dataclass(frozen=True)
class Algorithm:
    """A search: how wide the beam is, what happens to its candidates, and when it stops.

    Built by `pybeam.greedy`, `pybeam.fixed_beam` and the functions beside them. A `Request` may override
    `width`, `n_best`, the two lengths, `scoring`, `ended_only`, the thresholds of `pruning` and
    parameters of `processors`.

    Args:
        width: rows of a beam at most, 1 to 4,096, or a sequence: the places of the beam after step 1, 2, …;
            see `pybeam.fixed_beam`.
        finishing: what happens to a candidate that ends in EOS.
        pruning: which candidates leave the beam early.
        num_groups: searches of a request, one after another: the groups of `pybeam.diverse`, the draws of
            `pybeam.sample`.
        regrows: with `Finishing.SHRINK`: a place is empty for one step only.
        draft: how tokens are guessed ahead; None: one token a step.
        n_best, min_length, max_length, scoring, processors, stop, prefix, ended_only: see
            `pybeam.fixed_beam`.

    Raises:
        ValueError, TypeError: a value is out of range or of the wrong type, or they do not fit together.
    """

    width: Width
    finishing: Finishing
    pruning: Pruning = UNPRUNED
    n_best: int = 1
    min_length: int = 0
    max_length: int | SourceLimit | None = None
    scoring: Scoring = RAW
    processors: tuple[AnyProcessor, ...] = ()
    stop: Stop = COUNT
    num_groups: int = 1
    prefix: PrefixRule = FREE
    ended_only: bool = False
    regrows: bool = False
    draft: Draft | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", widths.checked(self.width))
        whole("n_best", self.n_best, 1)
        whole("min_length", self.min_length, 0, LARGEST_INT32)
        if not (self.max_length is None or isinstance(self.max_length, SourceLimit)):
            whole("max_length", self.max_length, 1, LARGEST_INT32)
        if self.n_best > self.last_width:
            raise ArgumentError(
                "n_best",
                f"must be at most `width` = {self.last_width}, but is {self.n_best}; widen the beam or ask "
                "for fewer hypotheses",
            )
        if isinstance(self.max_length, int) and self.min_length >= self.max_length:
            raise ArgumentError(
                "min_length",
                f"must be less than `max_length` = {self.max_length} (which counts EOS), but is "
                f"{self.min_length}",
            )
        flag("ended_only", self.ended_only)
        self._check_steps()
        self._check_stop()
        self._check_prefix()
        if self.regrows and self.finishing != Finishing.SHRINK:
            raise ValueError(
                f"`regrows` gives back the places that {Finishing.SHRINK!r} takes, but `finishing` is "
                f"{self.finishing!r}; leave it out"
            )
        base.check_order(self.processors)
        for processor in self.processors:
            if isinstance(processor, base.Processor):
                processor.check_search(self)
        self._check_groups()
        if self.draft is not None:
            self._check_draft()

    def _check_steps(self) -> None:
        """Raise TypeError if there is a width for each step in a search that has one width."""
        has_places = self.finishing in (Finishing.REFILL, Finishing.HELD)
        if isinstance(self.width, int) or (has_places and self.draft is None and not self.perturbs):
            return
        raise TypeError(
            f"`width` must be an int in this search, but is {self.width!r}; widths by step go with "
            "fixed_beam, variable_beam and optimal_beam"
        )

    def _check_stop(self) -> None:
        """Raise TypeError or ValueError unless the stop rule goes with the scoring and n_best."""
        if not isinstance(self.stop, Stop):
            raise TypeError(
                f"`stop` must come from pybeam.stopping, such as optimal(), but is {self.stop!r}"
            )
        if not isinstance(self.scoring, Scoring):
            raise TypeError(
                f"`scoring` must come from pybeam.scoring, such as power(1.0), but is {self.scoring!r}"
            )
        if self.scoring.coverage and self.stop.certificate:
            raise ValueError(
                "`scoring` with coverage ranks the hypotheses after the search, so `stop` cannot "
                f"certify the best one, but is {self.stop!r}; use stopping.end() or count()"
            )
        if not self.stop_at >= self.n_best:
            raise ArgumentError(
                "n_best",
                f"must be at most round(patience * width) = {self.stop_at}, after which the search "
                f"stops, but is {self.n_best}; have more patience, or ask for fewer hypotheses",
            )

    def _check_prefix(self) -> None:
        """Raise TypeError or ValueError unless `prefix` is a rule that goes with `finishing`."""
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

    def _check_groups(self) -> None:
        """Raise ValueError unless the groups of a search, if there are several, avoid each other."""
        last = self.processors[-1] if self.processors else None
        tells = isinstance(last, base.Processor) and last.separates_groups
        if self.num_groups > 1 and not tells:
            raise ValueError(
                f"`processors` must have Diversity or Sample last in a search in {self.num_groups} groups, "
                f"which tells them apart, but {last!r} is the last; put others in front of it, or take an "
                "algorithm without groups"
            )

    def _check_draft(self) -> None:
        """Raise ValueError unless the search follows one hypothesis to its end, by log-probabilities."""
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

    # the next ones are kept, because every request asks for them many times

    @cached_property
    def last_width(self) -> int:
        """The width of all steps but the first ones: the K that finishing and stop rules count."""
        return widths.last(self.width)

    @cached_property
    def max_width(self) -> int:
        """The largest width of any step."""
        return widths.widest(self.width)

    @property
    def refills(self) -> bool:
        """Whether other hypotheses take the places of finished ones in the next step."""
        return self.regrows or self.finishing == Finishing.REFILL

    @property
    def stop_at(self) -> float:
        """The number of finished hypotheses that ends the search; infinity if none does.

        Held hypotheses are popped best first, so with raw scoring the first n_best are the result.
        """
        stop = self.stop
        if stop.patience is None:
            return math.inf
        pops_in_order = self.finishing == Finishing.HELD and self.scoring.is_raw
        if pops_in_order and stop.patience == 1:
            return self.n_best
        # `round` would round halves to even numbers
        num = stop.patience * self.last_width + 0.5
        return num if math.isinf(num) else math.floor(num)

    @cached_property
    def perturbs(self) -> bool:
        """Whether something else than log-probabilities ranks hypotheses; see `Processor.perturbs`."""
        return any(map(base.perturbs, self.processors))

    @cached_property
    def by_source(self) -> bool:
        """Whether a processor is another one for each source; see `Processor.by_source`."""
        return any(isinstance(one, base.Processor) and one.by_source for one in self.processors)

    @cached_property
    def max_rows(self) -> int:
        """Most rows of a source in a step."""
        if self.draft is None:
            return self.max_width
        known = self.max_length if isinstance(self.max_length, int) else DEFAULT_MAX_LENGTH
        return self.draft.max_rows(known)

    @property
    def tokens_per_step(self) -> int:
        """Most tokens that a hypothesis may gain in a step."""
        return 1 if self.draft is None else self.max_rows

    @cached_property
    def growth(self) -> int:
        """A guess of how many times its rows a beam may grow to in a step.

        It is 2 if a threshold prunes candidates, and otherwise the most that the rules allow.
        """
        if self.draft is not None:
            return self.max_rows
        most = (
            self.max_width if self.pruning.max_candidates is None else self.pruning.max_candidates
        )
        is_pruned = min(self.pruning.margin, self.pruning.local_margin) < math.inf
        return int(min(most, self.max_width, 2 if is_pruned else self.max_width))

    @cached_property
    def first_rows(self) -> int:
        """Rows for which a schedule makes room when a beam begins.

        A beam that no threshold prunes is as wide as it may be after its first step.
        """
        return self.growth if self.growth > 2 else 1
