"""Guesses that are accepted, and others that are made: `draft_commit`, beside the same in torch."""

from __future__ import annotations

import torch
from torch import Tensor

import pybeam
from benchmarks.gpu import expected
from benchmarks.gpu.forecast import ALONE_US, GAP_US, KERNEL_US
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends import torch_drafts
from pybeam.backends.arrays import Beams, Drafts, DraftTokens, TreeArrays, tree_survivors
from pybeam.contracts import Survivors
from pybeam.inspect.work import Work
from pybeam.state.draft_state import DraftState
from pybeam.state.new_beam import NewBeam

START, EOS, VOCABULARY = 0, 2, 8000
# tokens of an output before it begins again
PERIOD = 5
# arrays of a tree, and which of them says how many numbers of a source count
COUNTED = {
    "token": "num_nodes",
    "parent": "num_nodes",
    "log_prob": "num_nodes",
    "live_cell": "num_live",
    "live_mask": "num_live",
}
MAX_LENGTH, PAGES = 512, 40
# torch.compile unrolls torch's loop over rows, and takes longer for more of them
COMPILED = (64, 3, 32)


def ready(num_sources: int, num_rows: int, length: int) -> DraftState:
    """Sources whose outputs have so many tokens at least, and whose rows wait for survivors."""
    algorithm = pybeam.gauss_seidel_jacobi(num_rows, max_length=MAX_LENGTH)
    reference = backends.load("reference")
    state = DraftState(algorithm, (EOS,), reference, torch.device("cpu"), vocab_size=VOCABULARY)
    state.reserve(num_sources + 1, algorithm.max_rows, MAX_LENGTH + 1)
    state.tree.reserve_pages(PAGES * num_sources)
    slot = slots_of(num_sources)
    beams = [NewBeam(slot=one, algorithm=algorithm, source_length=1) for one in slot.tolist()]
    state.open(beams, START)
    is_enough = False
    while not is_enough:
        # the last one begins no block, whose guesses are bad
        is_enough = int(state.beams.depth[1:].min()) >= length
        commit(state.tree.arrays, state.beams, state.drafts, slot, survivors_of(state.beams))
    return state


def slots_of(num_sources: int) -> Tensor:
    """Those behind the null slot."""
    return torch.arange(1, num_sources + 1, dtype=torch.int32)


def survivors_of(beams: Beams) -> Survivors:
    """One token for each row of all slots. As many guesses of a source come true as its slot says."""
    num_slots, most = beams.score.shape
    place, entry = torch.arange(num_slots)[:, None], torch.arange(most)
    is_other = (entry > place % most) & (beams.steps[:, None] % 2 == 1)
    token = 3 + (beams.depth[:, None] + entry) % PERIOD + PERIOD * is_other
    token = token[entry < beams.num_rows[:, None]].int()[:, None]
    return tree_survivors(token, torch.zeros_like(token), -token.float())


def commit(
    tree: TreeArrays, beams: Beams, drafts: Drafts, slot: Tensor, survivors: Survivors
) -> None:
    """In plain torch."""
    tokens = DraftTokens(EOS, VOCABULARY)
    torch_drafts.draft_commit(tree, beams, drafts, slot, survivors, None, tokens)


class DraftCommit(Kernel):
    op = "draft_commit"
    label = "{}x{}, T={}"
    cases = Cases(
        cuda=cases(["int32"], [(64, 8, 32), (1, 8, 32), (64, 32, 32), COMPILED]),
        tiny=[Case("int32", (2, 3, 4))],
    )
    # acceptance and guesses, then pages and rows
    num_kernels = 2

    def __init__(
        self, device: torch.device, dtype: str, num_sources: int, num_rows: int, length: int
    ) -> None:
        state = ready(num_sources, num_rows, length)
        survivors = survivors_of(state.beams)
        arrays = state.tree.arrays, state.beams, state.drafts
        tree, beams, drafts = (type(one)(*[x.to(device) for x in one]) for one in arrays)
        self.changes = [*tree, *beams, *drafts]
        self._kept = [array.clone() for array in self.changes]
        self.before = self._restore
        slot = slots_of(num_sources).to(device)
        survivors = Survivors(*[None if x is None else x.to(device) for x in survivors])
        self.copies = [(tree, beams, drafts, slot, survivors)]
        # lines of sources are read and written, and the masks, tokens and cells of rows
        lines = sum(array.nbytes for array in (beams.ints, beams.floats, drafts.ints))
        masks = 8 * num_sources * num_rows * tree.live_mask.shape[2]
        self.work = Work(2 * lines + masks + 5 * 4 * num_sources * num_rows, 0)

    def _restore(self) -> None:
        for array, kept in zip(self.changes, self._kept, strict=True):
            array.copy_(kept)

    def result(self, name: str) -> list[Tensor]:
        """Without the places that nobody may read."""
        changed = super().result(name)
        tree = TreeArrays(*changed[: len(TreeArrays._fields)])
        for array, counter in COUNTED.items():
            own, number = getattr(tree, array), getattr(tree, counter)
            own[torch.arange(own.shape[1], device=own.device) >= number[:, None]] = 0
        return changed

    @classmethod
    def compiled(cls, case: Case) -> tuple[str, ...]:
        return ("torch.compile",) if case.size == COMPILED else ()

    def expected(self, dtype: str) -> expected.Expected:
        """Each replay is one call alone, because the books are put back before the next."""
        least = expected.of_work(self.work, dtype)
        us = ALONE_US + self.num_kernels * (KERNEL_US["books"] + GAP_US)
        return expected.Expected(least.limit, us + least.limit)

    def ours(self, backend: backends.Backend, *arguments: object) -> None:
        functions = backend.DRAFT_FUNCTIONS  # type: ignore[attr-defined]
        functions.commit(*arguments, None, DraftTokens(EOS, VOCABULARY))

    def in_torch(self, *arguments: object) -> None:
        commit(*arguments)  # type: ignore[arg-type]


bench_draft_commit = times(DraftCommit)
