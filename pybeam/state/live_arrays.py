"""`LiveArrays`: the arrays of all live sources on the device, for beams and for drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pybeam.backends import Backend, poison
from pybeam.backends.arrays import (
    FLOAT_COLUMNS,
    INT_COLUMNS,
    NO_LIMIT,
    RUNNING,
    Beams,
    Drafts,
    RowArrays,
    TreeArrays,
)
from pybeam.backends.beam_program import ActiveRules, BeamProgram, BeamRules
from pybeam.backends.transfer import all_to_device
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.rows import Rows
from pybeam.processors.chain import ProcessorChain
from pybeam.search.algorithms import Algorithm
from pybeam.search.widths import by_step
from pybeam.state.new_beam import NewBeam

INF = float("inf")
INT = torch.int32
CAP = FLOAT_COLUMNS.index("cap")
# algorithms whose lines are kept
MAX_LINES = 64


class LiveArrays:
    """The token tree, the beams and the numbers of processors. Every array has one line per slot.

    Attributes:
        tree: the token tree.
        beams: see `Beams`; replaced when it grows.
        processors: the algorithm's processors.
        can_narrow: whether steps may see columns in place of the vocabulary; not from the first request on
            whose columns would order tokens otherwise.
        skips_forced: whether steps skip logits of rows whose next token is given.
        drafts, vocab_size: see `DraftState`; None and 0 for beams.
        demotes: whether an EOS right behind a prefix must be the best candidate.
        rules: those of the algorithm, for the kernels.
        active: see `ActiveRules`.
        replay: a `pybeam.backends.pinned.Replay` for what opens and closes beams; None: nothing is captured.
    """

    replay: Callable[..., Tensor] | None = None

    def __init__(
        self,
        algorithm: Algorithm,
        eos_ids: tuple[int, ...],
        backend: Backend,
        device: torch.device,
    ) -> None:
        self.algorithm, self.eos_ids, self.device = algorithm, eos_ids, device
        self.backend = backend
        # guesses are written with masks
        self.tree = TokenTree(backend, device, may_have_paths=algorithm.draft is None)
        # steps read a column of `prefix` even if no source has a prefix
        self.beams = Beams.empty(device).reserved(0, 0, prefix=1)
        self.processors = ProcessorChain(algorithm.processors, device, backend)
        self.can_narrow = self.processors.can_narrow(eos_ids, algorithm.processors)
        self.skips_forced = backend.skips_forced_logits
        self.drafts: Drafts | None = None
        self.vocab_size = 0
        self.demotes = algorithm.prefix.leading_eos
        self.active, stop = ActiveRules(), algorithm.stop
        self.rules = BeamRules(
            eos_ids=eos_ids,
            finishing=int(algorithm.finishing),
            keeps_best=stop.keeps_best,
            top=int(stop.top),
            certificate=int(stop.certificate),
            refills=algorithm.refills,
            normalise=self.processors.normalises,
        )
        self._program: BeamProgram | None = None
        # the arrays of the program
        self._bound: tuple[TreeArrays | None, Beams | None, Drafts | None] = None, None, None
        # what opens the beams of an algorithm, by its id
        self._lines: dict[int, tuple[Algorithm, list[int], list[float]]] = {}
        # columns of the beams, cut out once, because a step may need neither
        self._limits: tuple[Beams, Tensor, Tensor, Tensor] | None = None

    @property
    def width_capacity(self) -> int:
        """Number of entries that every beam has room for."""
        return self.beams.score.shape[1]

    @property
    def program(self) -> BeamProgram:
        """All that a step does to the arrays as they are now."""
        tree, beams, drafts = self.tree.arrays, self.beams, self.drafts
        known = self._bound
        if known[0] is tree and known[1] is beams and known[2] is drafts:
            assert self._program is not None
            return self._program
        if drafts is None:
            self._program = self.backend.beam_program(tree, beams, self.rules, self.active)
        else:
            given = tree, beams, drafts, self.rules, self.active, self.vocab_size
            self._program = self.backend.draft_program(*given)
        self._bound = tree, beams, drafts
        if self.replay is not None:
            # only a GPU has graphs, and its programs are `TensorBeams`
            self._program.replay = self.replay  # type: ignore[attr-defined]
        return self._program

    def grow(self, num_slots: int, width: int, length: int, num_nodes: int | None) -> None:
        """Do what `BeamState.reserve` does, or a part of it if there is no memory."""
        self.tree.reserve(num_slots, width, length, num_nodes)
        self.beams = self.beams.reserved(num_slots, width, prefix=1)
        self.processors.reserve(*self.tree.token.shape)

    def buffers(self) -> tuple[Tensor, ...]:
        """Return all arrays as they are now. A captured step refers to them."""
        return *self.tree.arrays, *self.beams, *self.processors.buffers(), *(self.drafts or ())

    def forget(self) -> None:
        """Poison what no counter counts, in all slots but the null slot; see `pybeam.backends.poison`."""
        tree, beams = self.tree, self.beams
        # the last tokens of a path that has stopped are not counted
        has_stopped = (beams.reason != RUNNING) & (tree.num_pages > 0)
        num_known = tree.num_nodes.masked_fill(has_stopped, tree.token.shape[1])
        tree.forget(num_known)
        is_empty = tree.num_pages == 0
        given = torch.maximum(beams.prefix_length, beams.scored_from + beams.target_length)
        of_entries = beams.score, beams.ended_length, beams.eos_log_prob, beams.eos_token
        counted = (
            ((tree.row_node, tree.row_cell, *of_entries), beams.num_entries),
            ((beams.finished_ints, beams.finished_floats), beams.num_finished),
            ([beams.prefix], given),
            ([beams.early_width], beams.num_early_widths),
        )
        for arrays, count in counted:
            poison.forget_behind([array[1:] for array in arrays], count[1:])
        lines = beams.floats, *(self.drafts or ())
        poison.forget([array[1:] for array in lines], is_empty[1:])
        self.processors.forget(is_empty, num_known)

    def new_lines(self, beams: Sequence[NewBeam]) -> tuple[list[int], list[float]]:
        """Store prefixes, targets and processors of these beams. Returns the lines that open them.

        They are those of `NewLines`, one after another.
        """
        slots = [beam.slot for beam in beams]
        given = [(*beam.prefix, *beam.target) for beam in beams]
        widths = [early_widths(beam.algorithm) for beam in beams]
        longest, most = max(map(len, given)), max(map(len, widths))
        if longest or most:
            self.beams = self.beams.reserved(0, 0, longest, most)
            self._write(self.beams.prefix, slots, given, longest)
            self._write(self.beams.early_width, slots, widths, most)
        processors = [beam.algorithm.processors for beam in beams]
        narrow = self.processors.can_narrow
        self.can_narrow = self.can_narrow and all(narrow(self.eos_ids, p) for p in processors)
        self.processors.open(slots, processors, [beam.prompt for beam in beams])
        ints: list[int] = []
        floats: list[float] = []
        for beam in beams:
            own_ints, own_floats = self._line(beam)
            ints += own_ints
            floats += own_floats
        return ints, floats

    def _line(self, beam: NewBeam) -> tuple[list[int], list[float]]:
        """The line that opens this beam. Those without given tokens share the line of their algorithm."""
        algorithm, has_given = beam.algorithm, beam.prefix or beam.target
        kept = None if has_given else self._lines.get(id(algorithm))
        if kept is None:
            columns = columns_of(beam)
            self.active.note(columns)
            ints = [int(columns.get(name, 0)) for name in INT_COLUMNS]
            kept = algorithm, ints, [columns[name] for name in FLOAT_COLUMNS]
            if len(self._lines) >= MAX_LINES:
                self._lines.clear()
            if not has_given:
                # the algorithm is kept, too, so that no other has its id
                self._lines[id(algorithm)] = kept
        _, ints, floats = kept
        cap = algorithm.scoring.cap(beam.source_length)
        return ints, [*floats[:CAP], cap, *floats[CAP + 1 :]]

    def _write(
        self, table: Tensor, slots: Sequence[int], given: Sequence[Sequence[int]], longest: int
    ) -> None:
        """Write numbers, up to `longest` for each slot, into a table [S, …]."""
        if not longest:
            return
        padded = np.zeros((len(slots), longest), dtype=np.int32)
        for line, numbers in zip(padded, given, strict=True):
            line[: len(numbers)] = numbers
        index, lines = all_to_device((slots, padded), self.device)
        table[:, :longest].index_copy_(0, index.long(), lines)

    def rows(self, slot: Tensor, read: RowArrays, longest: int) -> Rows:
        """Return the rows that were read from slots [A]."""
        beams = self.beams
        if self._limits is None or self._limits[0] is not beams:
            self._limits = beams, beams.prefix_length, beams.max_length, beams.min_length
        _, prefix_length, max_length, min_length = self._limits
        return Rows(
            tree=self.tree,
            slot=slot,
            offset=read.offset,
            token=read.token,
            position=read.position,
            row_slot=read.row_slot,
            entry=read.entry,
            node=read.node,
            cell=read.cell,
            longest=longest,
            prefix_length=prefix_length,
            max_length=max_length,
            min_length=min_length,
            eos_ids=self.eos_ids,
            beam_score=beams.score,
            prompt=self.processors.prompts,
        )


def early_widths(algorithm: Algorithm) -> Sequence[int]:
    """Return the widths of the first steps, up to the one whose width holds from then on."""
    return by_step(algorithm.width)[:-1]


def columns_of(beam: NewBeam) -> dict[str, float]:
    """Return the columns of `Beams` that are not zero in a beam of one row, the start token."""
    algorithm, scoring = beam.algorithm, beam.algorithm.scoring
    max_candidates = algorithm.pruning.max_candidates
    assert isinstance(algorithm.max_length, int), "requests have a length limit of their own"
    scored_from = 0 if algorithm.prefix.is_scored else len(beam.prefix)
    return dict(
        num_rows=1,
        num_entries=1,
        width=algorithm.last_width,
        num_early_widths=len(early_widths(algorithm)),
        stop_at=min(algorithm.stop_at, NO_LIMIT),
        certified=algorithm.last_width if algorithm.stop.needs_full_beam else algorithm.n_best,
        max_candidates=NO_LIMIT if max_candidates is None else int(min(max_candidates, NO_LIMIT)),
        min_length=algorithm.min_length,
        max_length=algorithm.max_length,
        prefix_length=len(beam.prefix),
        scored_from=scored_from,
        target_length=len(beam.prefix) + len(beam.target) - scored_from,
        ended_only=int(algorithm.ended_only),
        margin=algorithm.pruning.margin,
        local_margin=algorithm.pruning.local_margin,
        best_finished=-INF,
        alpha=scoring.alpha,
        offset=scoring.offset,
        scale=scoring.scale,
        reward=scoring.reward,
        cap=scoring.cap(beam.source_length),
        cut_length_offset=scoring.cut_length_offset,
    )
