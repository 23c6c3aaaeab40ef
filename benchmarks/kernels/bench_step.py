"""A whole step of the decoder as a GPU replays it, and each of its phases alone.

"step" is what a CUDA graph of the engine holds: plan, rows, model, selection, books, report. Its phases are
timed apart, each in a graph of its own, whose launch counts; so they add up to more than the step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch

import pybeam
from benchmarks import decoders
from benchmarks.gpu import expected
from benchmarks.gpu.forecast import PROMPT_TOKENS, parts, whole
from benchmarks.gpu.one_step import OneStep
from benchmarks.kernels.kernel import Case, Cases, Kernel, WrongResult, times
from benchmarks.networks import Networks
from benchmarks.sizes import CUDA
from pybeam import backends
from pybeam.engine.partials import best_rows
from pybeam.models.base import Model
from pybeam.state.step import Step as BegunStep
from pybeam.state.step import StepPlan

# hypotheses end behind all the steps that are done here
LONGEST = 64
LIMITS = dict(min_length=LONGEST - 2, max_length=LONGEST)
JACOBI = "hybrid_jacobi"
ALGORITHMS = {
    "fixed_beam": lambda width: pybeam.fixed_beam(width, **LIMITS),
    "variable_beam": lambda width: pybeam.variable_beam(width, 1.5, 5, **LIMITS),
    # of so many rows: the last token and the guesses behind it
    JACOBI: lambda width: pybeam.hybrid_jacobi(width, **LIMITS),
}
SOURCE_TOKENS, DEPTH = 30, 16
# steps that show whether results are right
FEW = 2
# a network to try all this out
TINY = "tiny"
# products of two backends round differently, and a beam whose candidates are nearly tied goes another way
LEAST_SAME = 0.9
WHOLE = "step"
PHASES = ("read", "model", "select", "commit", "report")


def of_search(dtype: str, *beam, algorithm="fixed_beam", timed=(WHOLE, *PHASES)) -> list[Case]:
    """Network, beams, width, algorithm and what is timed."""
    return [Case(dtype, (*beam, algorithm, name)) for name in timed]


def step_cases() -> list[Case]:
    """Those of a GPU: what is worth most comes first."""
    whole, other = (WHOLE,), "variable_beam"
    both = [(name, n, 5) for name in ("example", "widened") for n in (64, 1)]
    of_half = partial(of_search, "bfloat16")
    return [
        *[case for beam in both for case in of_half(*beam)],
        *of_half("example", 64, 5, algorithm=other, timed=whole),
        *of_half("example", 64, 50, algorithm=other, timed=whole),
        # "commit" accepts guesses, and makes others
        *of_half("example", 64, 8, algorithm=JACOBI, timed=(WHOLE, "commit")),
        *of_search("float32", "example", 64, 5, timed=whole),
        *of_half("example", 64, 50, timed=whole),
        *of_half("widened", 64, 50, timed=whole),
    ]


class Step(Kernel):
    op = "step"
    label = "{}, {}x{}"
    cases = Cases(
        cpu=of_search("float32", "example", 16, 5),
        cuda=step_cases(),
        tiny=[
            *of_search("float32", TINY, 2, 3),
            *of_search("float32", TINY, 2, 3, algorithm="variable_beam", timed=(WHOLE,)),
            *of_search("float32", TINY, 2, 3, algorithm=JACOBI, timed=(WHOLE, "commit")),
        ],
    )

    @classmethod
    def names(cls, size: tuple) -> tuple[str, str]:
        *beam, algorithm, timed = size
        shape = cls.label.format(*beam)
        return (
            cls.op if timed == WHOLE else f"step, {timed}",
            shape if algorithm == "fixed_beam" else f"{shape}, {algorithm}",
        )

    @classmethod
    def isas(cls, dtype: str) -> tuple[str, ...]:
        return ("avx2", "avx512")

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        return ()

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        network: str,
        num_beams: int,
        width: int,
        algorithm: str,
        timed: str,
    ) -> None:
        self._search = Search(network, dtype, device, num_beams, width, algorithm)
        self._timed = timed
        self._sizes = expected.network_of(self._search.model.config), num_beams, width, dtype
        self.work = whole(parts(*self._sizes))

    def calls(self, name: str) -> list[Callable[[], object]]:
        step = ready_step(self._search, name)
        if self._timed == WHOLE:
            self.before = step.restore
            return [step]
        # it goes on when the next phase is asked for, so that this one finds the books as they are now
        self._phases = phases(step)
        phase = next(one for one in self._phases if one.name == self._timed)
        self.before = phase.before
        return [phase.call]

    def check(self, name: str, dtype: str) -> None:
        if self._timed == WHOLE:
            check(self._search, name)

    def expected(self, dtype: str) -> expected.Expected:
        if self._timed == WHOLE:
            return expected.of_step(*self._sizes)
        return expected.of_phase(*self._sizes, self._timed)

    def held_bytes(self) -> float:
        return self.work.num_bytes


class Search(NamedTuple):
    """Sources of random tokens that are decoded, the same for every backend."""

    network: str
    dtype: str
    device: torch.device
    num_beams: int
    width: int
    algorithm: str

    @property
    def model(self) -> Model:
        return model_of(self.network, self.dtype, self.device)

    def step(self, backend: str, depth: int | None = None) -> OneStep:
        """The step behind so many."""
        generator = torch.Generator().manual_seed(0)
        model, is_alone = self.model, self.network in decoders.SHAPES
        shape = self.num_beams, PROMPT_TOKENS if is_alone else SOURCE_TOKENS
        tokens = torch.randint(4, model.vocab_size, shape, generator=generator).tolist()
        algorithm = ALGORITHMS[self.algorithm](self.width)
        if depth is None:
            depth = FEW if self.network == TINY else DEPTH
        return OneStep(model, algorithm, backends.load(backend), tokens, LONGEST, depth)


@cache
def model_of(network: str, dtype: str, device: torch.device) -> Model:
    """Load a network of this name, one of `Networks` or of `decoders.SHAPES`."""
    with tempfile.TemporaryDirectory() as folder:
        if network == TINY:
            # it takes seconds to import
            from tests.support.tiny_models import save_tiny_model

            save_tiny_model(Path(folder) / TINY, "m2m_100", max_position_embeddings=2 * LONGEST)
            return pybeam.load_model(Path(folder) / TINY, device=device, dtype=dtype)
        if network in decoders.SHAPES:
            decoders.save_random(network, Path(folder) / network)
            return pybeam.load_model(Path(folder) / network, device=device, dtype=dtype)
        # weights of fewer bits are made as a model is loaded
        written = dtype if dtype == "float32" else "bfloat16"
        return Networks(Path(folder), str(device), written, CUDA.widened).ours(network, dtype)


@lru_cache(maxsize=1)
def ready_step(search: Search, backend: str) -> OneStep:
    """A step and its phases follow one another."""
    return search.step(backend)


class Phase(NamedTuple):
    """Something to time; `before` is called before every replay."""

    name: str
    call: Callable[[], object]
    before: Callable[[], None]


def phases(step: OneStep) -> Iterator[Phase]:
    """The parts of a step, each with the inputs that the ones before it make."""
    state, session, slot = step.work.state, step.work.session, step.slot
    sized = StepPlan(slot, step.limit, step.longest)

    def read() -> BegunStep:
        """Choose who moves, too."""
        return state.begin(state.plan(sized, step.rules()))

    yield Phase("read", read, step.restore)
    step.restore()
    begun, program = read(), state.program
    yield Phase("model", partial(session.step, begun.rows), _nothing)
    logits = session.step(begun.rows)
    yield Phase("select", partial(begun.choose, logits), _nothing)
    survivors = begun.survivors(logits)

    def commit() -> None:
        # a commit spends what was chosen
        program.take(begun.rows.slot, survivors)
        program.commit(slot)

    yield Phase("commit", commit, step.restore)
    yield Phase("report", partial(state.report, slot), step.restore)
    step.restore()


def _nothing() -> None:
    """Phases that change no books need nothing before they are done again."""


def check(search: Search, backend: str, depth: int = FEW) -> None:
    """Compare the best hypotheses of a few steps with those of the reference."""
    few = search._replace(num_beams=min(2, search.num_beams), width=min(5, search.width))
    found = []
    for name in (backend, "reference"):
        step = few.step(name, depth)
        slots = [slot for slot in step.slot.tolist() if slot]
        found.append(best_rows(step.work.state, slots, LONGEST).cpu())
    is_token = (found[0] >= 0) | (found[1] >= 0)
    share = float((found[0] == found[1])[is_token].float().mean())
    if not share >= LEAST_SAME:
        raise WrongResult(f"{share:.0%} of the best rows' tokens are those of the reference")


bench_step = times(Step)
