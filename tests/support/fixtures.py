"""Fixtures and hooks of every process that runs tests: which device and which backends."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pybeam import backends
from pybeam.backends import transfer
from pybeam.backends.waiting import HostReadGuard, NoWaiting
from pybeam.engine.engine import Engine
from pybeam.processors import counts, sampling, truncation
from support import cuda_on_cpu, isas, on_a_gpu, thinning, triton_process, workers
from support.device_loop import never_waiting_between_steps
from support.graph_memory import GraphMemory

# deterministic algorithms need it before the first product on a GPU
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# what the fixtures `backend` and `kernel` take in turn
VARIANTS = {
    "backend": backends.NAMES,
    "kernel": (*(f"native-{isa}" for isa in isas.OF_FLOATS), "triton"),
}
# what they check is what registers the CUDA kernel, which is not compiled for the CPU
REGISTRATION = ("test_capacity", "test_float64_is_for_the_reference")

# thousands of tests are made and stay: looking for garbage among them is time lost
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    # tests leave few cycles, so they are looked for more seldom
    gc.set_threshold(5_000, 20, 20)
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(on_a_gpu.Deadline(config.getoption("--minutes")))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(workers)
    if triton_process.is_interpreting():
        triton_process.hasten_interpreter()
        triton_process.shuffle_programs()
        triton_process.launch_one_at_a_time()
        triton_process.poison_masked_loads()
        triton_process.lose_nan()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--device") == "cpu" or not collection_path.match("test_*.py"):
        return None
    return on_a_gpu.needs_no_device(collection_path) or None


# a file that one worker has compiled is read by the others, so they begin at different ends
@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if isinstance(collector, pytest.Directory) and workers.number_of(collector.config) % 2:
        report.result.reverse()
    return report


# before pytest leaves out what is slow
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: str(item.path))
    if not config.getoption("--unthinned"):
        thinning.mark_the_rest_slow(items)
    if config.getoption("--device") == "cuda":
        on_a_gpu.choose(config, items)


# around the fixtures of modules, too
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with on_a_gpu.explicit_devices(item):
        return (yield)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # a test that asks for no device puts its tensors on the CPU
    device = metafunc.config.getoption("--device") if "device" in metafunc.fixturenames else "cpu"
    for fixture in VARIANTS.keys() & set(metafunc.fixturenames):
        variants = _variants(metafunc.config, fixture, device)
        if fixture == "kernel" and _op(metafunc.module) == "select":
            variants += _cuda_variants(metafunc, device)
        metafunc.parametrize(fixture, variants, indirect=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config, lines = session.config, []
    if triton_process.is_interpreting():
        lines.append(f"programs were shuffled: PYBEAM_GRID_SEED={triton_process.grid_seed()}")
    for name in backends.NAMES:
        reason = _reason_to_leave_out(config, name, config.getoption("--device"))
        if reason is not None:
            lines.append(f"backend {name} was not tested here: {reason}")
    workers.say(config, lines)


def _variants(config: pytest.Config, fixture: str, device: str) -> list[str]:
    """A backend that cannot run here gives no tests, unless it was asked for: then they fail."""
    asked = config.getoption("--backend")
    return [
        variant
        for variant in VARIANTS[fixture]
        if asked == variant.partition("-")[0]
        or (
            asked == "all"
            and _reason_to_leave_out(config, variant.partition("-")[0], device) is None
        )
    ]


def _reason_to_leave_out(config: pytest.Config, name: str, device: str) -> str | None:
    asked = config.getoption("--backend")
    if asked not in ("all", name):
        return f"--backend {asked}"
    if name == "native" and device != "cpu":
        return f"it does not run on {device}"
    if name == "triton" and device == "cpu" and not triton_process.is_interpreting():
        return "its tests in the interpreter run in processes of their own (test_triton_*.py)"
    try:
        backends.load(name)
    except ValueError as error:
        return str(error)
    return None


def _op(module) -> str:
    """The op whose tests stand in this module, by its name."""
    name = module.__name__.rpartition("test_")[2]
    return "select" if name.startswith("select") else name


def _cuda_variants(metafunc: pytest.Metafunc, device: str) -> list:
    """The CUDA C++ kernel of `select`: on its device, or compiled for the CPU."""
    if device == "cuda":
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        is_there = "native" in backends.available() and has_kernel("pybeam::select", "CUDA")
        return ["native"] if is_there else []
    if (
        metafunc.config.getoption("--backend") != "all"
        or metafunc.function.__name__ in REGISTRATION
    ):
        return []
    short, long = (f"{cuda_on_cpu.NAME}-{machine}" for machine in cuda_on_cpu.MACHINES)
    return [short, pytest.param(long, marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of this run."""
    name = request.config.getoption("--device")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return torch.device(name)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """The name of every backend in turn."""
    return request.param


@pytest.fixture
def kernel(request: pytest.FixtureRequest):
    """The name of every backend but the reference, native on every instruction set."""
    name, _, variant = request.param.partition("-")
    if name == cuda_on_cpu.NAME:
        place = cuda_on_cpu.installed(request.getfixturevalue("cuda_on_cpu"), variant)
    else:
        place = _native_with(variant) if variant else nullcontext()
    with place:
        yield name


@pytest.fixture(scope="session", name="cuda_on_cpu")
def cuda_on_cpu_library():
    """The CUDA kernel of `select`, compiled for the CPU."""
    return cuda_on_cpu.compiled()


@pytest.fixture(params=isas.OF_FLOATS)
def isa(request: pytest.FixtureRequest):
    """Every instruction set in turn, for operators that only the extension has."""
    with _native_with(request.param):
        yield request.param


@contextmanager
def _native_with(isa: str):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    before = native.isa()
    try:
        native.set_isa(isa)
    except RuntimeError as error:
        if isa in os.environ.get("PYBEAM_EXPECT_ISA", "").split(","):
            raise
        pytest.skip(str(error))
    assert native.isa() == isa
    yield
    native.set_isa(before)


@pytest.fixture
def num_threads() -> int:
    """How many threads a test has; tiny products only wait for a second one.

    A folder says otherwise by a fixture of this name, a test by a parameter:

        @pytest.mark.parametrize("num_threads", NUMS_OF_THREADS)
    """
    return 1


@pytest.fixture(autouse=True)
def threads(num_threads: int) -> None:
    """A test may change their number: the next one has its own again."""
    torch.set_num_threads(num_threads)


@pytest.fixture
def inference_mode():
    """Nothing in the test is recorded for gradients."""
    with torch.inference_mode():
        yield


@pytest.fixture
def reads_nothing(monkeypatch):
    """Processors read nothing of what they could read here, as on a GPU."""
    for module in (counts, sampling, truncation):
        monkeypatch.setattr(module, "may_read", lambda x: False)


@pytest.fixture
def guard(reads_nothing, monkeypatch):
    """Guards every step, and what comes between; counts steps, reports and results that the host reads."""
    seen = SimpleNamespace(steps=0, reads=0)
    advance, numpy = Engine._advance, transfer.HostCopy.numpy
    never_waiting_between_steps(monkeypatch)

    def guarded(self):
        seen.steps += 1
        with NoWaiting(), HostReadGuard():
            advance(self)

    def counted(self):
        seen.reads += 1
        return numpy(self)

    monkeypatch.setattr(Engine, "_advance", guarded)
    monkeypatch.setattr(transfer.HostCopy, "numpy", counted)
    return seen


@pytest.fixture(params=["2.11", "2.12"])
def graph_memory(request: pytest.FixtureRequest, reads_nothing, monkeypatch) -> GraphMemory:
    """Memory for captured steps on a CPU, as these versions of torch manage it."""
    memory = GraphMemory(request.param)
    memory.install(monkeypatch)
    return memory
