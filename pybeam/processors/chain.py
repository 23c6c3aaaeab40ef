"""Run processors, and keep their numbers on the device for the slots of one workspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pybeam.backends import Backend, poison
from pybeam.backends.arrays import resized
from pybeam.backends.defaults import HALVES
from pybeam.backends.transfer import to_device
from pybeam.contracts import Edit, EditList, EditRule, Survivors
from pybeam.models.rows import Rows
from pybeam.processors.base import (
    AnyProcessor,
    Processor,
    edit_of,
    is_neutral,
    perturbs,
    stage_of,
)

if TYPE_CHECKING:
    from pybeam.backends.torch_automata import StepColumns
    from pybeam.processors.columns import ColumnProcessor, Columns
    from pybeam.processors.edits import Edits
    from pybeam.processors.shared import SharedArrays


class ProcessorChain:
    """The processors of an algorithm, applied to a step's logits in their order.

    Attributes:
        normalises: whether the results are logits still, which `select` must normalise.
        perturbs: whether the results are no log-probabilities, see `Processor`.
        log_probs: [R, V], the log-probabilities of the last call, where `perturbs`.
        has_state: whether one of them keeps numbers per node.
        prefix_reach: the largest of `Processor.prefix_reach`; None: all logits are read.
        rule: the processor that has a say in the selection, with its numbers; None: there is none.
        columns: what the last call has narrowed to columns; None: it has not.
        prompts: [S, P] int32, the tokens that hypotheses go on from, see `Rows.prompt`.
    """

    def __init__(
        self, processors: Sequence[AnyProcessor], device: torch.device, backend: Backend
    ) -> None:
        self._backend = backend
        self._processors = [_DeviceProcessor(p, device) for p in processors]
        selecting = [one for one in self._processors if getattr(one.processor, "selects", False)]
        self.rule: Any = selecting[0] if selecting else None
        others = [one for one in self._processors if one not in selecting]
        self._runs = _runs(others, device, backend)
        self._ends_in_columns = bool(processors) and _gives_columns(processors[-1])
        # those that no program knows, and slots where one of them has something to do
        rules = [edit_of(p) or edit_of(p, "step_edit") for p in processors]
        self._others = [i for i, rule in enumerate(rules) if rule is None]
        # some that give columns are edits, too
        self._knows_last = bool(rules) and rules[-1] is not None
        if self._ends_in_columns and not self._knows_last:
            self._others.pop()
        self._busy: set[int] = set()
        self.normalises = all(stage_of(p) == "logits" for p in processors)
        self.perturbs = any(map(perturbs, processors))
        # what normalises reads halves, and writes float32
        self._normalises_first = not self.normalises and stage_of(processors[0]) == "log_probs"
        self.log_probs: Tensor | None = None
        # functions of others may read any row
        known = [p for p in processors if isinstance(p, Processor)]
        self._ahead = [
            kept for kept in self._processors if getattr(kept.processor, "works_ahead", 0)
        ]
        reach = max((p.prefix_reach for p in known), default=0)
        self.prefix_reach = reach if len(known) == len(processors) else None
        self.has_state = any(isinstance(p, Processor) and p.state for p in processors)
        self.prompts = torch.zeros(0, 0, dtype=torch.int32, device=device)
        self.columns: Columns | None = None

    def reserve(self, num_slots: int, num_nodes: int) -> None:
        """Make room for that many slots and nodes per slot. If there is no memory, all is as before."""
        larger = [kept.larger(num_slots, num_nodes) for kept in self._processors]
        self.prompts = resized(self.prompts, (num_slots, 0), -1)
        for kept, (line, arrays) in zip(self._processors, larger, strict=True):
            kept.replace(line, arrays)
        self._build()

    def open(
        self,
        slots: Sequence[int],
        processors: Sequence[tuple[AnyProcessor, ...]],
        prompts: Sequence[Tensor | None] = (),
    ) -> None:
        """Keep the parameters of these slots' requests, whose processors stand in the algorithm's order.

        `prompts` are as `Model.prompt` gives them.
        """
        for kept, column in zip(self._processors, zip(*processors, strict=True), strict=True):
            kept.open(slots, column)
        self._busy.difference_update(slots)
        self._busy.update(
            slot
            for slot, own in zip(slots, processors, strict=True)
            if not all(is_neutral(own[i]) for i in self._others)
        )
        self._build()
        known = [prompt for prompt in prompts if prompt is not None]
        if self._processors and known:
            # a model gives prompts to all of its sources or to none
            assert len(known) == len(slots)
            self._open_prompts(slots, known)

    def close(self, slots: Sequence[int]) -> None:
        """Let what slots share know that these are empty."""
        for shared in (kept.shared for kept in self._processors if kept.shared is not None):
            shared.close(slots)

    def forget(self, is_empty: Tensor, num_nodes: Tensor) -> None:
        """Poison what is kept for slots that are empty [S], and behind so many nodes [S] of the others."""
        for kept in self._processors:
            kept.forget(is_empty, num_nodes)
        poison.forget([self.prompts[1:]], is_empty[1:])

    def _build(self) -> None:
        for run in self._runs:
            if not isinstance(run, _DeviceProcessor):
                run.told()

    def _open_prompts(self, slots: Sequence[int], prompts: Sequence[Tensor]) -> None:
        # prompts end in the same column, so that generated tokens follow all of them
        padded = pad_sequence(
            list(prompts), batch_first=True, padding_value=-1, padding_side="left"
        )
        missing = padded.shape[1] - self.prompts.shape[1]
        if missing > 0:
            self.prompts = F.pad(self.prompts, (missing, 0), value=-1)
        padded = F.pad(padded, (max(-missing, 0), 0), value=-1)
        slot = to_device(slots, torch.long, self.prompts.device)
        self.prompts[slot] = to_device(padded, torch.int32, self.prompts.device)

    def buffers(self) -> tuple[Tensor, ...]:
        """Return all arrays as they are now. A captured step refers to them."""
        arrays = tuple(array for kept in self._processors for array in kept.arrays)
        return *arrays, self.prompts

    def dtype(self, logits: Tensor) -> torch.dtype:
        """The dtype of the results for such logits."""
        # in half precision a penalty or a division would turn distinct logits into ties
        halves = bool(self._processors) and logits.dtype in HALVES
        return torch.float32 if halves else logits.dtype

    def can_narrow(self, eos_ids: tuple[int, ...], own: Sequence[AnyProcessor]) -> bool:
        """Whether a call may give columns, those of the last processor; see `ColumnProcessor`."""
        last = self._processors[-1].processor if self._processors else None
        if last is None or not _gives_columns(last) or self.rule is not None:
            return False
        is_worth_it = last.narrows_on_gpu or self.prompts.device.type == "cpu"
        return is_worth_it and last.can_narrow(eos_ids, own[-1])

    def wanted(self, rows: Rows) -> Tensor | None:
        """The tokens [U] whose logits a call that narrows reads; None: all, or the host cannot know."""
        if len(self._processors) != 1 or self.prompts.is_cuda:
            return None
        kept = self._processors[0]
        assert _gives_columns(kept.processor)
        return kept.processor.wanted(self._backend, rows, kept.data(rows))

    def is_known(self, slots: Sequence[int], *, narrows: bool) -> bool:
        """Whether a program can do what a call does to the logits of these slots, step after step."""
        knows_all = narrows == self._ends_in_columns or (self._knows_last and not narrows)
        return knows_all and self._busy.isdisjoint(slots)

    def edits(self, *, narrows: bool) -> tuple[EditList, Tensor]:
        """All edits as one list, for a program that does the whole chain, and the prompts."""
        rules: list[int] = []
        arrays: tuple[Tensor, ...] = ()
        are_logits = True
        for run in self._runs[:-1] if narrows else self._runs:
            if are_logits and run.stage == "log_probs":
                rules, are_logits = [*rules, *EditRule(Edit.LOG_SOFTMAX).words], False
            if not isinstance(run, _DeviceProcessor):
                own = run.told()
                rules, arrays = rules + own.rules, arrays + own.arrays
            elif (rule := edit_of(run.processor, "step_edit")) is not None:
                rules, arrays = rules + rule.words, (*arrays, *run.arrays)
        return EditList(rules, arrays), self.prompts

    def step_columns(self, eos_id: int) -> StepColumns:
        """Return what a program needs to make the columns of what edits leave, where a call narrows."""
        *others, last = self._processors
        assert _gives_columns(last.processor)
        are_logits = all(kept.stage == "logits" for kept in others)
        return last.processor.in_steps(last.arrays, eos_id, are_logits=are_logits)

    def begin(self, rows: Rows) -> None:
        """Begin what a call for these rows needs, before the model does."""
        for kept in self._ahead if self._busy else ():
            kept.processor.begin(rows, kept.data(rows))  # type: ignore[union-attr]

    def __call__(self, logits: Tensor, rows: Rows, *, narrows: bool = False) -> Tensor:
        """The logits or log-probabilities [R, V] that `select` shall see; `logits` may be overwritten.

        With `narrows`, those of columns [R, M + 1]; see `columns`.
        """
        self.columns = None
        if not self._processors:
            return logits
        result = logits if self._normalises_first else logits.to(self.dtype(logits))
        are_logits = True
        for kept in self._runs:
            if isinstance(kept, _DeviceProcessor) and _gives_columns(kept.processor):
                given = self._backend, result, rows, kept.data(rows)
                if narrows and kept is self._runs[-1]:
                    self.columns = kept.processor.columns(*given, are_logits=are_logits)
                    return self.columns.log_probs
                result = kept.processor.spread(*given, are_logits=are_logits)
                are_logits = False
                continue
            if are_logits and kept.stage == "log_probs":
                result, are_logits = self._backend.log_softmax(result), False
            if not isinstance(kept, _DeviceProcessor):
                result = kept(result, rows)
                continue
            if perturbs(kept.processor):
                self.log_probs = result
            result = kept(self._backend, result, rows)
            is_tensor = isinstance(result, Tensor)
            if not is_tensor or result.shape != logits.shape or not result.dtype.is_floating_point:
                found = f"{result.dtype} {list(result.shape)}" if is_tensor else repr(result)
                raise ValueError(
                    f"{kept.processor!r} must return floats [R, V] = {list(logits.shape)}, "
                    f"but returned {found}"
                )
            # a function may return halves, or columns, which kernels do not read
            result = result.to(self.dtype(result))
            result = result if result.stride(1) == 1 else result.contiguous()
        return result


def restore_log_probs(
    backend: Backend, chosen: Survivors, rows: Rows, is_alive: Tensor, log_probs: Tensor
) -> Survivors:
    """Return the survivors of `select` with log-probs [R, V] in place of the numbers that ranked them.

    `is_alive` [S, K] says which entries of the beams are rows. Held entries do not change, nor do rows within
    a prefix.
    """
    if not log_probs.shape[0]:
        return chosen  # nothing moves
    given = chosen.log_prob, chosen.parent, chosen.token, log_probs, is_alive
    places = rows.prefix_length, rows.slot, rows.offset, rows.position
    return chosen._replace(log_prob=backend.restore_log_probs(*given, *places))


def _gives_columns(processor: AnyProcessor) -> TypeGuard[ColumnProcessor]:
    return isinstance(processor, Processor) and processor.gives_columns


def _runs(
    processors: Sequence[_DeviceProcessor], device: torch.device, backend: Backend
) -> list[_DeviceProcessor | Edits]:
    """Put neighbours together that one launch can do, if the backend has the kernel."""
    runs: list[_DeviceProcessor | Edits] = []
    for kept in processors:
        rule = None if backend.edit_list is None else edit_of(kept.processor)
        if rule is None:
            runs.append(kept)
        elif runs and not isinstance(runs[-1], _DeviceProcessor) and runs[-1].stage == kept.stage:
            runs[-1].add(kept, rule)
        else:
            from pybeam.processors.edits import Edits

            edits = Edits(kept.stage, device, backend)
            edits.add(kept, rule)
            runs.append(edits)
    return runs


class _DeviceProcessor:
    """A processor with its parameters by slot, constants and state on the device."""

    def __init__(self, processor: AnyProcessor, device: torch.device) -> None:
        self.processor, self.stage, self._device = processor, stage_of(processor), device
        self._num_parameters = 0
        self.shared: SharedArrays | None = None
        self._arrays: list[Tensor] = []
        if not isinstance(processor, Processor):
            return
        shared = processor.shared()
        if shared is not None:
            # few processors are large
            from pybeam.processors.shared import arrays_for

            self.shared = arrays_for(shared, device)
        self._own = processor.parameters()
        self._num_parameters = len(self._own)
        self._arrays += [
            torch.full((0, *value.shape), -1, dtype=value.dtype, device=device)
            for value in self._own
        ]
        self._arrays += [to_device(value, value.dtype, device) for value in processor.constants()]
        self._arrays += [torch.zeros(0, 0, dtype=dtype, device=device) for dtype in processor.state]

    @property
    def arrays(self) -> list[Tensor]:
        """All arrays as they are now."""
        if self.shared is None:
            return self._arrays
        return [*self.shared.tables, self.shared.line, *self._arrays]

    def larger(self, num_slots: int, num_nodes: int) -> tuple[Tensor | None, list[Tensor]]:
        """Return lines of slots, if they share some, and arrays, with room for so many slots and nodes."""
        line = None if self.shared is None else resized(self.shared.line, (num_slots,))
        arrays = list(self._arrays)
        for i in range(self._num_parameters):
            arrays[i] = resized(arrays[i], (num_slots, *arrays[i].shape[1:]), -1)
        if isinstance(self.processor, Processor) and self.processor.state:
            kept = len(self.processor.state)
            arrays[-kept:] = [resized(array, (num_slots, num_nodes)) for array in arrays[-kept:]]
        return line, arrays

    def replace(self, line: Tensor | None, arrays: list[Tensor]) -> None:
        """Take what `larger` has returned."""
        self._arrays = arrays
        if self.shared is not None and line is not None:
            self.shared.line = line

    def forget(self, is_empty: Tensor, num_nodes: Tensor) -> None:
        parameters = self._arrays[: self._num_parameters]
        if self.shared is not None:
            parameters = [self.shared.line, *parameters]
        poison.forget([array[1:] for array in parameters], is_empty[1:])
        if isinstance(self.processor, Processor) and self.processor.state:
            state = self._arrays[-len(self.processor.state) :]
            poison.forget_behind([array[1:] for array in state], num_nodes[1:])

    def open(self, slots: Sequence[int], processors: Sequence[Processor]) -> None:
        if self.shared is not None:
            self.shared.open(slots, [p.shared() for p in processors])
        if not self._num_parameters:
            return
        given = [self._own if p is self.processor else p.parameters() for p in processors]
        slot = to_device(slots, torch.long, self._device)
        for i, values in enumerate(zip(*given, strict=True)):
            shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
            padded = torch.stack([resized(value, tuple(shape), -1) for value in values])
            array = resized(self._arrays[i], (0, *shape), -1)
            # older values of other requests stand behind those of these requests
            padded = resized(padded, (len(slots), *array.shape[1:]), -1)
            array[slot] = to_device(padded, padded.dtype, self._device)
            self._arrays[i] = array

    def __call__(self, backend: Backend, logits: Tensor, rows: Rows) -> Tensor:
        if not isinstance(self.processor, Processor):
            return self.processor(logits, rows)
        return self.processor.computed(backend, logits, rows, self.data(rows))

    def data(self, rows: Rows) -> tuple[Tensor, ...]:
        """The arguments of the processor beside logits and rows."""
        parameters = self._arrays[: self._num_parameters]
        if self.shared is not None:
            parameters = [self.shared.line, *parameters]
        if not (isinstance(self.processor, Processor) and self.processor.takes_slots):
            parameters = [array.index_select(0, rows.row_slot) for array in parameters]
        if self.shared is not None:
            parameters = [*self.shared.tables, *parameters]
        return (*parameters, *self._arrays[self._num_parameters :])
