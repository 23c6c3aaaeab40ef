"""A whole step of the decoder as it is replayed, and each of its phases alone.

"step" is what a CUDA graph of the engine holds: plan, rows, model, selection, books, report. Its phases are
timed apart, each in a graph of its own, whose launch counts; so they add up to more than the step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

import pybeam
from benchmarks.gpu import expected
from benchmarks.gpu.journal import Journal, WrongResult
from benchmarks.gpu.one_step import OneStep
from benchmarks.gpu.timing import Timer
from benchmarks.networks import Networks
from benchmarks.sizes import CUDA
from pybeam import backends
from pybeam.models.base import Model

# hypotheses end behind all the steps that are done here
LONGEST = 64
LIMITS = dict(min_length=LONGEST - 2, max_length=LONGEST)
ALGORITHMS = {
    "fixed_beam": lambda width: pybeam.fixed_beam(width, **LIMITS),
    "variable_beam": lambda width: pybeam.variable_beam(width, 1.5, 5, **LIMITS),
}
SOURCE_TOKENS, DEPTH = 30, 16
# steps that show whether results are right
FEW = 2
# a network to try all this out
TINY = "tiny"
# products of two backends round differently, and a beam whose candidates are nearly tied goes another way
LEAST_SAME = 0.9


@dataclass(frozen=True)
class Case:
    network: str
    num_beams: int
    width: int
    dtype: str = "bfloat16"
    algorithm: str = "fixed_beam"
    has_phases: bool = False

    @property
    def shape(self) -> str:
        name = "" if self.algorithm == "fixed_beam" else f", {self.algorithm}"
        return f"{self.network}, {self.num_beams}x{self.width}{name}"


def cases(tiny: bool) -> list[Case]:
    if tiny:
        names = [("fixed_beam", True), ("variable_beam", False)]
        return [Case(TINY, 2, 3, "float32", *name) for name in names]
    example = [Case("example", n, k, has_phases=k == 5) for n, k in ((64, 5), (1, 5), (64, 50))]
    widened = [Case("widened", n, k, has_phases=k == 5) for n, k in ((64, 5), (1, 5), (64, 50))]
    others = [
        Case("example", 64, 5, algorithm="variable_beam"),
        Case("example", 64, 50, algorithm="variable_beam"),
        Case("example", 64, 5, "float32"),
    ]
    return [*example[:2], *widened[:2], *others, example[2], widened[2]]


class Phase(NamedTuple):
    """Something to time; `before` is called before every replay."""

    name: str
    call: Callable[[], object]
    before: Callable[[], None]


def phases(step: OneStep) -> Iterator[Phase]:
    """The parts of a step, each with the inputs that the ones before it make."""
    state, session, slot = step.work.state, step.work.session, step.slot
    plan = partial(state.plan, slot, step.rules())
    yield Phase("plan", plan, step.restore)
    step.restore()
    moving, _ = plan()
    read = partial(state.begin, moving, step.limit, step.longest)
    yield Phase("read", read, step.restore)
    begun, program = read(), state._arrays.program
    yield Phase("model", partial(session.step, begun.rows), _nothing)
    logits = session.step(begun.rows)
    yield Phase("select", partial(begun.choose, logits), _nothing)
    survivors = begun.kind.survivors(begun.rows, logits)

    def commit() -> None:
        # a commit spends what was chosen
        program.take(moving, survivors)
        program.commit(slot)

    yield Phase("commit", commit, step.restore)
    yield Phase("report", partial(state.report, slot), step.restore)
    step.restore()


def _nothing() -> None:
    """Phases that change no books need nothing before they are done again."""


def measure(timer: Timer, journal: Journal, names: list[str], tiny: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        known: dict[tuple[str, str], Model] = {}
        for case in cases(tiny):
            if journal.is_over:
                return
            key = case.network, case.dtype
            if key not in known:
                known[key] = model_of(*key, Path(folder) / case.dtype, timer.device)
            for name in names:
                _measure_case(timer, journal, case, known[key], name)


def model_of(network: str, dtype: str, folder: Path, device: torch.device) -> Model:
    """Load a network of this name; what is made on the way goes to the folder."""
    if network == TINY:
        # it takes seconds to import
        from tests.support.tiny_models import save_tiny_model

        save_tiny_model(folder, "m2m_100", max_position_embeddings=2 * LONGEST)
        return pybeam.load_model(folder, device=device, dtype=dtype)
    return Networks(folder, str(device), dtype, CUDA.widened).ours(network)


def _measure_case(timer: Timer, journal: Journal, case: Case, model: Model, name: str) -> None:
    network = expected.network_of(model.config)
    sizes = case.num_beams, case.width, case.dtype
    row = {"shape": case.shape, "dtype": case.dtype, "backend": name}
    step: OneStep | None = None

    def whole():
        nonlocal step
        step = step_of(model, case, name)
        return timer.graph_of([step], step.restore)

    journal.measure(
        {"op": "step", **row},
        whole,
        check=partial(check, model, case, name),
        expected=expected.of_step(network, *sizes),
    )
    if step is None or not case.has_phases:
        return
    for phase in phases(step):
        journal.measure(
            {"op": f"step, {phase.name}", **row},
            partial(timer.graph_of, [phase.call], phase.before),
            expected=expected.of_phase(network, *sizes, phase.name),
        )


def step_of(model: Model, case: Case, backend: str, depth: int | None = None) -> OneStep:
    """The step behind so many, of sources that are the same for every backend."""
    generator = torch.Generator().manual_seed(0)
    shape = case.num_beams, SOURCE_TOKENS
    tokens = torch.randint(4, model.vocab_size, shape, generator=generator).tolist()
    algorithm = ALGORITHMS[case.algorithm](case.width)
    if depth is None:
        depth = FEW if case.network == TINY else DEPTH
    return OneStep(model, algorithm, backends.load(backend), tokens, LONGEST, depth)


def check(model: Model, case: Case, backend: str, depth: int = FEW) -> None:
    """Compare the best hypotheses of a few steps with those of the reference."""
    few = Case(case.network, min(2, case.num_beams), min(5, case.width), case.dtype, case.algorithm)
    found = []
    for name in (backend, "reference"):
        step = step_of(model, few, name, depth)
        slots = [slot for slot in step.slot.tolist() if slot]
        found.append(step.work.state.best_rows(slots, LONGEST).cpu())
    is_token = (found[0] >= 0) | (found[1] >= 0)
    share = float((found[0] == found[1])[is_token].float().mean())
    if not share >= LEAST_SAME:
        raise WrongResult(f"{share:.0%} of the best rows' tokens are those of the reference")
