"""Each benchmark here runs for every case of its kernel and every system that computes the kernel.

A result is compared with the reference's before it is timed. `extra_info` holds the bytes and operations, and
how much of the machine's limit is reached. With `--journal` every row is kept at once, as all results are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from benchmarks.gpu import machine
from benchmarks.gpu.expected import significant
from benchmarks.gpu.summary import summary
from benchmarks.kernels import clock, kernel
from benchmarks.kernels.kernel import OURS, Case, Kernel
from benchmarks.kernels.plan import Plan, worth
from benchmarks.meter import GIGA
from pybeam.inspect import limits

CLOCK = clock.Clock()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernels")
    group.addoption("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    group.addoption("--tiny", action="store_true", help="next to nothing, to try it out")
    group.addoption("--trial-of-cuda", action="store_true", help="tiny, on a CPU, as on a GPU")
    group.addoption("--threads", type=int, default=1, help="of a CPU")
    group.addoption("--minutes", type=float, help="skip what is left after so long")
    group.addoption("--journal", type=Path, metavar="DIR", help="keep every row in this folder")


PLAN = pytest.StashKey[Plan]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PLAN] = Plan(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    plan: Plan = metafunc.config.stash[PLAN]
    own = metafunc.function.kernel
    metafunc.parametrize(
        ("size", "dtype", "backend", "isa"),
        [
            pytest.param(
                case.size,
                case.dtype,
                backend,
                isa,
                id=", ".join(filter(None, (own.names(case.size)[1], case.dtype, backend, isa))),
                marks=pytest.mark.benchmark(**_options(plan, own, case)),
            )
            for case in plan.cases(own)
            for backend, isa in plan.systems(own, case)
        ],
    )


def _options(plan: Plan, own: type[Kernel], case: Case) -> dict:
    """Systems of a case share a table, and on a GPU time is that of the device."""
    group = ", ".join((*own.names(case.size), case.dtype))
    return dict(group=group, timer=CLOCK) if plan.kind == "cuda" else dict(group=group)


def pytest_collection_modifyitems(config: pytest.Config, items: list) -> None:
    if config.stash[PLAN].like_cuda:
        items.sort(key=worth)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.stash[PLAN].is_over:
        pytest.skip("time is over")


@pytest.fixture(scope="session")
def plan(request: pytest.FixtureRequest) -> Iterator[Plan]:
    plan: Plan = request.config.stash[PLAN]
    threads = torch.get_num_threads()
    if plan.threads:
        torch.set_num_threads(plan.threads)
    torch.manual_seed(0)
    with torch.inference_mode():
        if plan.like_cuda and plan.journal:
            machine.measure(plan.device, plan.journal, plan.is_tiny)
        yield plan
    torch.set_num_threads(threads)
    _inputs.cache_clear()


@lru_cache(maxsize=1)
def _inputs(own: type[Kernel], device: torch.device, dtype: str, size: tuple) -> Kernel:
    """The systems of a case follow one another, and share its inputs."""
    return own(device, dtype, *size)


class Trial(NamedTuple):
    """A system that computes a case of a kernel."""

    own: type[Kernel]
    case: Case
    backend: str
    isa: str

    @property
    def row(self) -> dict:
        op, shape = self.own.names(self.case.size)
        names = {"op": op, "shape": shape, "dtype": self.case.dtype, "backend": self.backend}
        return names | ({"isa": self.isa} if self.isa else {})


@pytest.fixture
def timed(request, benchmark, plan, size, dtype, backend, isa) -> Callable[[], None]:
    """Check the system's result, time the system, and say what it reaches."""
    trial = Trial(request.function.kernel, Case(dtype, size), backend, isa)
    if absence := trial.own.absence(backend):
        plan.absent.setdefault(absence, set()).add(trial.own.op)
        pytest.skip(absence)

    def measure() -> dict:
        given = _inputs(trial.own, plan.device, dtype, size)
        with kernel.instruction_set(isa or None):
            if backend in OURS:
                given.check(backend, dtype)
            calls = given.calls(backend)
            run = _on_cuda if plan.kind == "cuda" else _on_cpu
            nodes = run(benchmark, calls, given, is_eager=backend == "torch")
        if benchmark.stats is None:  # --benchmark-disable
            return {}
        seconds = benchmark.stats.stats.median
        reached = _reached(plan, given, trial, seconds)
        benchmark.extra_info.update(reached | nodes)
        return {"us": round(1e6 * seconds, 2), **nodes, **reached}

    def call() -> None:
        row = trial.row | ({"threads": plan.threads} if plan.threads else {})
        if plan.journal is None:
            measure()
        elif plan.journal.attempt(row, measure) is None:
            pytest.fail("the journal has the error", pytrace=False)

    return call


def _on_cpu(benchmark, calls: list, given: Kernel, is_eager: bool) -> dict:
    following = cycle(calls)
    if given.before is not None:
        benchmark.pedantic(calls[0], setup=given.before, rounds=5)
    else:
        benchmark(calls[0] if len(calls) == 1 else lambda: next(following)())
    return {}


def _on_cuda(benchmark, calls: list, given: Kernel, is_eager: bool) -> dict:
    replay = clock.Replay(calls, given.before, is_eager)
    CLOCK.num_calls = len(calls)
    benchmark.pedantic(replay, setup=replay.prepare, rounds=clock.REPLAYS, warmup_rounds=1)
    return {} if replay.num_nodes is None else {"nodes": replay.num_nodes}


def _reached(plan: Plan, given: Kernel, trial: Trial, seconds: float) -> dict:
    """The work, the least time that the machine needs for it, and the share of its speed that is reached."""
    work, dtype = given.work, trial.case.dtype
    rate = work.num_bytes / seconds / GIGA
    found = {"bytes": work.num_bytes, "flops": work.flop, "gb_per_s": round(rate, 1)}
    if plan.journal and "copy_gb_per_s" in plan.journal.machine:
        found["of_copy"] = round(rate / plan.journal.machine["copy_gb_per_s"], 3)
    if plan.like_cuda:
        return found | given.expected(dtype).columns(1e6 * seconds)
    limit = limits.seconds(work, given.held_bytes(), dtype, plan.threads)
    return found | {"limit µs": significant(1e6 * limit), "of limit": significant(limit / seconds)}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    plan: Plan = session.config.stash[PLAN]
    if plan.journal is not None:
        for absence, ops in plan.absent.items():
            plan.journal.say(f"not compared, since {absence}: {', '.join(sorted(ops))}")
        plan.journal.finish(*([summary(plan.journal.rows)] if plan.like_cuda else []))
