"""`Processor`: the base class, and overrides by requests."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError, ids
from pybeam.backends import Backend
from pybeam.contracts import EditRule
from pybeam.models.base import Model
from pybeam.models.rows import Rows

INF = math.inf
INT = torch.int32

Stage = Literal["logits", "log_probs"]


class Processor(ABC):
    """Changes what the model says of the next token, before `select` sees it; subclass it for your own.

    A plain function ``(logits [R, V], rows) -> logits [R, V]`` is a processor too, of stage "logits". A
    class may have, beyond that, what is kept on the device: parameters that differ between requests,
    constants, and state that follows hypotheses. Subclasses are frozen dataclasses.

    Attributes:
        stage: "logits": it changes logits. They are normalised afterwards, so that the other tokens get
            the probability that one token loses. "log_probs": it changes log-probabilities, and its
            results are added to scores as they are, whatever they sum to.
        per_request: fields that `Request.processors` may change; `parameters` must follow from them.
        state: dtypes of the numbers that it keeps for every hypothesis, see `__call__`.
        begins_behind_prefix: whether what it allows begins anew behind a forced prefix.
        perturbs: whether its results rank hypotheses without being log-probabilities. Then
            `Hypothesis.log_probs` and `score` follow from the log-probabilities that it was given, and
            `final_score` from its results. Such a processor is the last.
        prefix_reach: at how many of the last places of a forced prefix it reads logits. Those before may
            be 0, because nobody reads them.
        takes_slots: whether `__call__` takes the parameters of every slot, [S, ...], and not of every row.
            Large ones that few requests have are then not copied for each row.
        works_ahead: whether `begin` has something to do in a step of a beam.
        can_capture: whether `__call__` may be captured in a CUDA graph: no sizes that depend on data,
            nothing read back, and no numbers of its own that change from step to step. A graph would
            hold those of the captured step. A subclass of your own must say that it may.
        allows_cuts: whether the beginning of an output that it allows may be returned as an output.
        forces_first: whether it allows one token alone behind the start token.
        by_source: whether `of_source` gives each source one of its own.
        separates_groups: whether `next_group` tells a group of a search what earlier groups chose.
        gives_columns: whether it is a `ColumnProcessor`.
        selects: whether it has a say in what `select` keeps, as a `pybeam.rule` has.
        is_neutral: whether it changes nothing for its request, so that steps may leave it out. The
            state of its rows does not follow from that of the rows before.
    """

    stage: Stage = "logits"
    per_request: ClassVar[tuple[str, ...]] = ()
    state: ClassVar[tuple[torch.dtype, ...]] = ()
    begins_behind_prefix: ClassVar[bool] = False
    perturbs: ClassVar[bool] = False
    can_capture: bool = False
    prefix_reach: int = 0
    takes_slots: ClassVar[bool] = False
    works_ahead: ClassVar[bool] = False
    allows_cuts: ClassVar[bool] = True
    separates_groups: ClassVar[bool] = False
    gives_columns: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    forces_first: bool = False
    by_source: bool = False
    is_neutral: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "can_capture" not in vars(cls):
            # nobody has looked at what others write
            cls.can_capture = cls.__module__.startswith("pybeam.")

    def parameters(self) -> tuple[Tensor, ...]:
        """The values of one request, on the host: numbers, or ids padded with -1 on the right."""
        return ()

    def shared(self) -> Any:
        """A large parameter of one request: a tensor [n], all of one size, or an `Automaton`; None: none.

        Requests that return the same object share one copy on the device.
        """
        return None

    def constants(self) -> tuple[Tensor, ...]:
        """Return the tensors that are the same for all requests, on the host."""
        return ()

    def check(self, model: Model) -> None:
        """Raise ValueError if this processor does not fit that model."""

    @property
    def edit(self) -> EditRule | None:
        """The rule of a kernel that does the same as `__call__` to few logits; None: there is none."""
        return None

    @property
    def step_edit(self) -> EditRule | None:
        """The same where steps follow one another, with all arrays that it keeps on the device."""
        return None

    @property
    def longest_output(self) -> int | None:
        """Tokens of the longest output, EOS included, if it sets a limit: the default of `max_length`."""
        return None

    def check_search(self, algorithm: Any) -> None:
        """Raise ValueError or TypeError if this processor does not go with the `algorithm` that has it."""

    def check_lengths(self, min_length: int, max_length: int) -> None:
        """Raise ValueError if it allows no outputs of `min_length` to `max_length` tokens.

        EOS counts in `max_length` alone.
        """

    @property
    def num_outputs(self) -> int | None:
        """How many different outputs it allows; None: nobody has counted them."""
        return None

    def items(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        """Return `Hypothesis.items` of an output of these tokens behind the prefix; None: it has none."""
        return None

    def of_source(self, content: Any, prefix: Sequence[int]) -> Processor:
        """Return the processor of one source, where `by_source`.

        Args:
            content: the source, as its model has checked it.
            prefix: tokens that its hypotheses begin with.
        """
        return self

    def for_target(self) -> Processor:
        """Return the processor that acts where an output is given, and scored."""
        return self

    def next_group(self, chosen: Sequence[Sequence[int]]) -> Processor:
        """Return the processor of the next group of a search in groups.

        Args:
            chosen: for each step, the tokens with which rows of the group that has just ended went on.
        """
        return self

    def begin(self, rows: Rows, data: tuple[Tensor, ...]) -> None:
        """Begin what `__call__` needs for `rows` and `data` before the model does, if `works_ahead`."""

    @abstractmethod
    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        """The logits or log-probabilities that `select` shall see instead.

        Args:
            logits: [R, V] float32 (float64 on the reference backend if the model gives it); may be
                overwritten and returned.
            rows: the rows. `Rows.history` has their tokens, `Rows.seen` also those of prompts.
            data: the shared parameters, [T, n] or all automata, and the line [R] int32 of every row in them,
                if there are some; the parameters of every row, [R, ...] each; the constants; and the state,
                [S, N] of each dtype. The state has a place for every node of the token tree. Write it at the
                rows' nodes, and read it at the nodes' parents.
        """

    def computed(
        self, backend: Backend, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]
    ) -> Tensor:
        """Do what `__call__` does with `logits`, `rows` and `data`, in kernels of `backend` if it can."""
        return self(logits, rows, data)


AnyProcessor = Processor | Callable[[Tensor, Rows], Tensor]


def stage_of(processor: AnyProcessor) -> Stage:
    return processor.stage if isinstance(processor, Processor) else "logits"


def edit_of(processor: AnyProcessor, name: str = "edit") -> EditRule | None:
    edit: EditRule | None = _of_call(processor, name)
    return edit


def is_neutral(processor: AnyProcessor) -> bool:
    return bool(_of_call(processor, "is_neutral"))


def _of_call(processor: AnyProcessor, name: str) -> Any:
    """Return an attribute that tells of `__call__`; None if a class of others has changed that."""
    classes = type(processor).__mro__
    owner = next(cls for cls in classes if {"__call__", name} & vars(cls).keys())
    is_told = isinstance(processor, Processor) and name in vars(owner)
    return getattr(processor, name) if is_told else None


def perturbs(processor: AnyProcessor) -> bool:
    return isinstance(processor, Processor) and processor.perturbs


def forces_first(processors: Iterable[AnyProcessor]) -> bool:
    return any(isinstance(one, Processor) and one.forces_first for one in processors)


def check_order(processors: Sequence[AnyProcessor]) -> None:
    """Raise TypeError if one of them is no processor, ValueError if one is in the wrong place."""
    for i, processor in enumerate(processors):
        if not callable(processor):
            raise TypeError(
                f"`processors` must hold functions or what pybeam.processors makes, "
                f"but number {i} is {processor!r}"
            )
    for processor in processors[:-1]:
        if perturbs(processor):
            raise ValueError(
                f"`processors` must have {processor!r} last, since what it returns are no "
                f"log-probabilities, but {processors[-1]!r} is the last"
            )
    stages = [stage_of(processor) for processor in processors]
    for i in range(1, len(stages)):
        if stages[i] == "logits" and stages[i - 1] == "log_probs":
            raise ValueError(
                f"`processors` must have those of stage 'logits' first, but {processors[i]!r} follows "
                f"{processors[i - 1]!r} of stage 'log_probs'; change the order, or the stage"
            )


def overridden(
    processors: Sequence[AnyProcessor], changes: Iterable[Processor] | None
) -> tuple[AnyProcessor, ...]:
    """Return the processors, with each of `changes`, if there are any, in place of the one of its class.

    Raises TypeError or ValueError if there is none of that class, or two, or if it differs in a field that a
    request cannot change.
    """
    if changes is None:
        return tuple(processors)
    changed = list(processors)
    if isinstance(changes, Tensor) or not isinstance(changes, Iterable):
        raise TypeError(f"`Request.processors` must be a list, but is {changes!r}; put it into one")
    changes = list(changes)
    if len(changes) > len(changed):
        raise ValueError(
            f"`Request.processors` must change each of the algorithm's {len(changed)} processors once at "
            f"most, but holds {len(changes)}"
        )
    for change in changes:
        if not isinstance(change, Processor):
            raise TypeError(
                "`Request.processors` must hold what pybeam.processors makes, "
                f"but holds {change!r}; give functions to the algorithm"
            )
        name = type(change).__name__
        places = [i for i, own in enumerate(changed) if type(own) is type(change)]
        if len(places) != 1:
            raise ValueError(
                f"`Request.processors` must change one of the algorithm's processors, but of class "
                f"{name} it has {len(places)}; give the algorithm one, neutral if need be"
            )
        if not dataclasses.is_dataclass(change):
            raise TypeError(f"a {name} must be a frozen dataclass, so that requests may change it")
        own = changed[places[0]]
        for field in dataclasses.fields(change):
            ours, theirs = getattr(own, field.name), getattr(change, field.name)
            if field.name not in change.per_request and ours != theirs:
                raise ValueError(
                    f"`{field.name}` of a {name} must be the same for all requests, {ours!r}, "
                    f"but is {theirs!r}; a request may change: {', '.join(change.per_request)}"
                )
        changed[places[0]] = change
    return tuple(changed)


def check_stage(stage: object) -> None:
    if stage not in get_args(Stage):
        raise ValueError(f"`stage` must be 'logits' or 'log_probs', but is {stage!r}")


def check_ids(name: str, values: Iterable[int], model: Model) -> None:
    """Raise ValueError for an id that is not in the model's vocabulary."""
    largest = max(values, default=0)
    if largest >= model.vocab_size:
        problem = f"must hold ids of the model's vocabulary, 0 to {model.vocab_size - 1}, but holds {largest}"
        raise ArgumentError(name, problem)


def ban(logits: Tensor, token: Tensor, is_banned: Tensor) -> Tensor:
    """Write -inf at tokens [R, n] where is_banned [R, n]. Tokens may occur twice."""
    limit = torch.where(is_banned, -INF, INF).to(logits.dtype)
    return logits.scatter_reduce_(1, token.long(), limit, "amin")


def lists_of_ids(name: str, values: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"`{name}` must be a list of lists of token ids, but is {values!r}")
    return tuple(ids(name, value) for value in values)
