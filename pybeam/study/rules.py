"""Rules of a search in Python: who is pruned, who finishes and when a search stops, on arrays of one step.

A rule is a value among the processors of an algorithm. A step has these moments, in this order:

1. The model's logits have been through all processors. The best continuations of each row are candidates.
2. `score`: the rule may change their scores, and drop some. Nobody has been ranked.
3. They are ranked. The algorithm says who finishes and who goes on (`Finishing`).
4. `finish`: the rule may change that. Then the algorithm's own thresholds prune those that go on.
5. Those that finish are finished hypotheses, the others are the next beam.
6. `stop`: the rule may end the search.

Ties are those of every search: among equal scores the row that stands first in its beam wins, then the token
with the larger log-probability, then the smaller token.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError, flag, real, whole
from pybeam.backends.arrays import HEURISTIC, NULL_SLOT, PLACES, RUNNING, Beams
from pybeam.backends.tensor_beams import Select
from pybeam.backends.torch_beams import final_score
from pybeam.contracts import MAX_WIDTH
from pybeam.diversity import Diversity
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, Processor
from pybeam.search.algorithms import Algorithm
from pybeam.study.candidates import Candidates, Given
from pybeam.study.lone_beam import lines_of, select_with, where_on
from pybeam.study.ruled_select import Moments, check_like

__all__ = ["Beam", "Candidates", "Rule", "rule"]

Hook = Callable[..., Any]
MOMENTS = ("score", "finish", "stop")


class Beam:
    """The A beams of a step, as a rule may ask for them. Columns are [A, 1], a line for each beam.

    At the moments `score` and `finish` they are as the step has found them, at `stop` as it leaves them.
    """

    def __init__(
        self,
        beams: Beams,
        slot: Tensor,
        rows: Rows,
        width: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> None:
        self._beams, self._slot, self._width, self._chosen = beams, slot, width, chosen
        self.rows = rows  #: `pybeam.models.Rows` of the step, for their tokens

    @cached_property
    def _ints(self) -> Tensor:
        """[A, n], the columns of these slots."""
        return lines_of(self._beams.ints, self._slot)

    @cached_property
    def _floats(self) -> Tensor:
        return lines_of(self._beams.floats, self._slot)

    def _column(self, name: str) -> Tensor:
        array, place = PLACES[name]
        return (self._ints if array == "ints" else self._floats)[:, place, None]

    @cached_property
    def _scoring(self) -> Any:
        """The numbers of `Scoring` [A] as `final_score` takes those of beams."""
        values = self._floats.double()
        names = ("alpha", "offset", "scale", "reward", "cap")
        return SimpleNamespace(**{name: values[:, PLACES[name][1]] for name in names})

    @property
    def width(self) -> Tensor:
        """[A, 1] int32, places of the next beam; at `stop` the last width of the search."""
        return self._column("width") if self._width is None else self._width[:, None]

    @property
    def num_generated(self) -> Tensor:
        """[A, 1] int32, tokens of the rows behind the prefix."""
        return self._column("depth") - self._column("prefix_length")

    @property
    def length(self) -> Tensor:
        """[A, 1] int32, tokens of the rows that count in scoring, as n does in `pybeam.Scoring`."""
        return self._column("depth") - self._column("scored_from")

    @property
    def max_length(self) -> Tensor:
        """[A, 1] int32, the `length` at which rows are cut."""
        past = self._column("prefix_length") - self._column("scored_from")
        return self._column("max_length") + past

    @property
    def n_best(self) -> Tensor:
        """[A, 1] int32, hypotheses that are asked for."""
        # a line of padding asks for none
        return self._column("certified").clamp(min=1)

    @property
    def num_finished(self) -> Tensor:
        """[A, 1] int32, finished hypotheses that are kept."""
        return self._column("num_finished")

    @property
    def best_finished(self) -> Tensor:
        """[A, 1] float32, the best accumulated score of a finished hypothesis; -inf without one."""
        return self._column("best_finished")

    @property
    def score(self) -> Tensor:
        """[A, K] float32, accumulated scores of the rows, best first; -inf where an entry is no row."""
        is_alive = self._beams.is_alive[self._slot]
        return torch.where(is_alive, self._beams.score[self._slot], -INF)

    @property
    def finished(self) -> Tensor:
        """[A, F] float32, final scores of the finished hypotheses, best first; -inf where there is none."""
        final = self._beams.finished_final[self._slot]
        place = torch.arange(final.shape[1], device=final.device)
        found = torch.where(place < self.num_finished, final, -INF)
        return found.sort(dim=1, descending=True).values

    @property
    def earlier(self) -> Tensor:
        """[A, C] int32, tokens with which rows of earlier groups went on in this step, padded with -1.

        A token stands there as often as it was chosen. It is for rules with ``groups=True``.
        """
        chosen = self._chosen  # [A, T, C]
        if chosen is None or not chosen.numel():
            return self._ints.new_full((len(self._slot), 1), -1)
        step = self.num_generated.long().clamp(min=0)
        is_told = step < chosen.shape[1]
        place = torch.where(is_told, step, 0)[..., None].expand(-1, 1, chosen.shape[2])
        return chosen.gather(1, place)[:, 0].masked_fill(~is_told, -1)

    def final_score(self, score: Tensor, length: Tensor) -> Tensor:
        """[A, n] float32, by the beam's scoring, for accumulated scores and lengths [A, n]."""
        every: Any = slice(None)
        return final_score(self._scoring, every, score, length)


@dataclass(frozen=True)
class Rule(Processor):
    """A rule, made by `pybeam.rule`. It goes among the `processors` of an algorithm.

    Attributes:
        score, finish, stop: its functions; None: it does nothing then.
        siblings, groups: see `pybeam.rule`.
        options: names and values of its options.
    """

    score: Hook | None = None
    finish: Hook | None = None
    stop: Hook | None = None
    siblings: int | None = None
    options: tuple[tuple[str, float], ...] = ()
    groups: bool = False
    is_on: bool = field(default=True, repr=False)
    told: Diversity = field(default=Diversity(1.0), repr=False)
    per_request: ClassVar[tuple[str, ...]] = ("options", "is_on", "told")
    takes_slots: ClassVar[bool] = True
    selects: ClassVar[bool] = True
    begins_behind_prefix: ClassVar[bool] = True
    can_capture: bool = field(default=False, init=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the first of its functions."""
        return next(name_of(one) for one in map(self._hook, MOMENTS) if one is not None)

    def __repr__(self) -> str:
        given = "".join(f", {name}={value}" for name, value in self.options)
        return f"pybeam.rule({self.name}{given})"

    @property
    def acts_on_candidates(self) -> bool:
        """Whether it acts before a step ends, and not by `stop` alone."""
        return not (self.score is self.finish is self.siblings is None)

    def using(self, **options: float) -> Rule:
        """Return the rule with other options: for an algorithm, or for one `Request`."""
        known = dict(self.options)
        for name, value in options.items():
            if name not in known:
                raise TypeError(
                    f"`{name}` is no option of {self!r}; it has: {', '.join(known) or 'none'}"
                )
            real(name, value)
        return dataclasses.replace(self, options=tuple({**known, **options}.items()))

    def parameters(self) -> tuple[Tensor, ...]:
        values = [torch.tensor(value, dtype=torch.float32) for _, value in self.options]
        chosen = self.told.parameters()[1:] if self.groups else ()
        return torch.tensor(self.is_on), *values, *chosen

    @property
    def separates_groups(self) -> bool:  # type: ignore[override]
        return self.groups

    def next_group(self, chosen: Sequence[Sequence[int]]) -> Rule:
        return dataclasses.replace(self, told=self.told.next_group(chosen)) if self.groups else self

    def for_target(self) -> Rule:
        return dataclasses.replace(self, is_on=False)

    def check_search(self, algorithm: Algorithm) -> None:
        if algorithm.draft is not None:
            raise ValueError(
                f"{self!r} acts on the candidates of a step, but an algorithm that guesses tokens ahead "
                "takes the most probable token and has none; use pybeam.greedy()"
            )
        if sum(isinstance(one, Rule) for one in algorithm.processors) > 1:
            raise ArgumentError(
                "processors",
                f"must hold one rule, but holds {self!r} and another; call both functions in one",
            )
        most = MAX_WIDTH - 8
        if algorithm.max_width > most:
            raise ArgumentError(
                "width", f"must be at most {most} beside a rule, but is {algorithm.max_width}"
            )

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        return logits

    def _hook(self, moment: str) -> Hook | None:
        hook: Hook | None = getattr(self, moment)
        return hook

    def _given(self, slot: Tensor, data: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The options of the rule in slots [A], each [A, 1]."""
        return {
            name: lines_of(one, slot)[:, None]
            for (name, _), one in zip(self.options, data[1:], strict=False)
        }

    def _bound(self, moment: str, given: dict[str, Tensor], beam: Beam) -> Hook | None:
        hook = self._hook(moment)
        if hook is None:
            return None
        own = {name: given[name] for name in options_of(hook, moment)}
        return lambda candidates: hook(candidates, beam, **own)

    def selector(
        self, select: Select, beams: Beams, rows: Rows, data: tuple[Tensor, ...]
    ) -> Select:
        """Return `select` of a backend with this rule in it, for one step."""
        if not self.acts_on_candidates:
            return select

        def ruled(
            logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, options: Any
        ) -> Any:
            slot = rows.slot
            own = self._given(slot, data)
            beam = Beam(beams, slot, rows, width, data[-1][slot] if self.groups else None)
            acts = where_on(beams, slot, data[0])
            score_hook, finish_hook = (
                self._bound(moment, own, beam) for moment in ("score", "finish")
            )
            moments = Moments(score_hook, finish_hook, acts, self.siblings)
            given = Given(select, rows, logits, score, offset, width, options)
            return select_with(given, moments)

        return ruled

    def stops_some(self, beams: Beams, rows: Rows, data: tuple[Tensor, ...]) -> bool:
        """End searches of slots that have moved, as the rule says. Returns whether it may have ended some."""
        if self.stop is None:
            return False
        slot = rows.slot[rows.slot != NULL_SLOT].long()
        is_on, given = data[0].index_select(0, slot)[:, None], self._given(slot, data)
        beam = Beam(beams, slot, rows, chosen=data[-1][slot] if self.groups else None)
        own = {name: given[name] for name in options_of(self.stop, "stop")}
        stops = self.stop(beam, **own)
        check_like("what `stop` returns", stops, is_on)
        ends = (stops & is_on & (beam.num_generated > 0))[:, 0]
        if ends.device.type == "cpu" and not ends.any():
            return False
        reason = beams.reason[slot]
        beams.reason[slot] = torch.where(ends & (reason == RUNNING), HEURISTIC, reason)
        return True


def name_of(hook: Hook) -> str:
    """Return the name of a function; of an object that is called, that of its class."""
    if isinstance(hook, partial):
        return name_of(hook.func)
    name: str = getattr(hook, "__name__", type(hook).__name__)
    return name


@lru_cache(maxsize=256)
def options_of(hook: Hook, moment: str) -> dict[str, float]:
    """Return the options of a function of a rule, which are its parameters behind the first ones.

    Raises TypeError unless it takes what it is given at that moment, and each option has a number as default.
    """
    given = ("beam",) if moment == "stop" else ("candidates", "beam")
    parameters = list(inspect.signature(hook).parameters.values())
    first, others = parameters[: len(given)], parameters[len(given) :]
    if [one.name for one in first] != list(given):
        raise TypeError(
            f"`{moment}` of a rule must be a function of {', '.join(given)} and options, but takes "
            f"{', '.join(one.name for one in parameters) or 'nothing'}"
        )
    for one in others:
        if one.default is one.empty:
            raise TypeError(
                f"`{one.name}` is an option of a rule and must have a number as default, but has none"
            )
        real(one.name, one.default)
    return {one.name: float(one.default) for one in others}


def rule(
    score: Hook | None = None,
    *,
    finish: Hook | None = None,
    stop: Hook | None = None,
    siblings: int | None = None,
    groups: bool = False,
) -> Rule:
    """Make a rule of Python functions on arrays of one step; ``@pybeam.rule`` does so for the first of them.

    A step has three moments at which a rule may act; the head of `pybeam.study.rules` has all of a step.

    ``score(candidates, beam)``: the candidates are scored, and nobody is ranked. Change
    `candidates.score`, or drop some: ``candidates.keep &= ...``.
    ``finish(candidates, beam)``: they are ranked, best first. Change `candidates.finishes` and
    `candidates.goes_on`.
    ``stop(beam)``: the step is done. Return [A, 1] bool, whether the search is over. The rows that are left
    are no hypotheses then, and `Result.stop_reason` is "heuristic".

    The functions get lines of A beams at once, see `Candidates` and `Beam`, and change tensors in place or
    replace them. A function may have options, parameters with numbers as defaults, which it gets as [A, 1]
    float32. `Rule.using` gives them other values, for an algorithm or a request.

    A rule goes among the processors of an algorithm, before those of stage "log_probs":
    ``pybeam.fixed_beam(5, processors=[sibling])``. It acts behind a request's prefix. It sees the numbers of
    processors, those of samples included, and scores hold what it adds, except in `stochastic_beam`: its
    results have the model's scores, and a rule changes what is drawn. Given outputs (`Request.target`) have
    no candidates, so that the rule does nothing there. Results are those of the same rule alone,
    whatever the schedule, the batch and the backend. Steps take plain torch instead of kernels, and a GPU
    runs them without graphs.

    Args:
        score, finish, stop: the functions; None: the rule does nothing at that moment.
        siblings: the best continuations of each row that are candidates. None: as many as the beam has
            places and the model has EOS tokens, of which all that could survive without a rule are part.
        groups: whether it tells the groups of a search apart, by `Beam.earlier`. It is the last processor
            then, and ``dataclasses.replace(algorithm, num_groups=3)`` makes three groups, as in `diverse`.

    Raises:
        TypeError: they are no such functions, or there is none.
        ValueError: `siblings` is less than 1 or more than 4,096, or two functions have other defaults for an
            option.
        ValueError: when an algorithm is built, if it has another rule, or guesses tokens ahead and so has no
            candidates.
    """
    hooks = dict(score=score, finish=finish, stop=stop)
    options: dict[str, float] = {}
    for moment, hook in hooks.items():
        if hook is None:
            continue
        if not callable(hook):
            raise TypeError(f"`{moment}` must be a function, but is {hook!r}")
        own = options_of(hook, moment)
        for name in own.keys() & options.keys():
            if own[name] != options[name]:
                raise ValueError(
                    f"option `{name}` must have one default in a rule, but has {options[name]} and, in "
                    f"`{moment}`, {own[name]}; use the same default or two names"
                )
        options |= own
    if not any(hooks.values()):
        raise TypeError(
            "a rule must have a function, but `score`, `finish` and `stop` are None; with options write "
            "pybeam.rule(function, siblings=3)"
        )
    if siblings is not None:
        whole("siblings", siblings, 1, MAX_WIDTH)
    flag("groups", groups)
    return Rule(score, finish, stop, siblings, tuple(options.items()), groups)
