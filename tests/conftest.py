"""Options and fixtures of the whole suite: which device and which backends."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import pytest
import torch

import triton_process
from pybeam import backends

ISAS = ("generic", "avx2", "avx512", "avx512_bf16")
# what the fixtures `backend` and `kernel` take in turn
VARIANTS = {
    "backend": backends.NAMES,
    "kernel": (*(f"native-{isa}" for isa in ISAS), "triton"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu")
    parser.addoption("--backend", choices=("all", *backends.NAMES), default="all")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(2)
    if triton_process.is_interpreting():
        triton_process.mend_interpreter()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # a test that asks for no device puts its tensors on the CPU
    device = metafunc.config.getoption("--device") if "device" in metafunc.fixturenames else "cpu"
    for fixture in VARIANTS.keys() & set(metafunc.fixturenames):
        variants = _variants(metafunc.config, fixture, device)
        if fixture == "kernel" and device == "cuda" and _native_runs(metafunc.module):
            variants.append("native")
        metafunc.parametrize(fixture, variants, indirect=True)


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    for name in backends.NAMES:
        reason = _reason_to_leave_out(config, name, config.getoption("--device"))
        if reason is not None:
            terminalreporter.write_line(f"backend {name} was not tested here: {reason}")


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


def _native_runs(module) -> bool:
    """Whether the op that this module tests has a CUDA C++ kernel here."""
    op = module.__name__.rpartition("test_")[2]
    return (
        op == "select"
        and "native" in backends.available()
        and torch._C._dispatch_has_kernel_for_dispatch_key(f"pybeam::{op}", "CUDA")
    )


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
    name, _, isa = request.param.partition("-")
    with _native_with(isa) if isa else nullcontext():
        yield name


@pytest.fixture(params=ISAS)
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
        pytest.skip(str(error))
    assert native.isa() == isa
    yield
    native.set_isa(before)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """New memory holds NaN or a number that is no index, so a result nobody wrote shows."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
