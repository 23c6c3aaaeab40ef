"""Options and fixtures of the whole suite: which device and which backends."""

from __future__ import annotations

import pytest
import torch

from pybeam import backends

ISAS = ("generic", "avx2", "avx512")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu")
    parser.addoption("--backend", choices=("all", *backends.NAMES), default="all")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(2)


def _require(request: pytest.FixtureRequest, name: str) -> None:
    """Skip the test unless this backend was asked for and runs on the device of this run."""
    if request.config.getoption("--backend") not in ("all", name):
        pytest.skip(f"--backend {request.config.getoption('--backend')}")
    device = request.config.getoption("--device")
    if name == "native" and device != "cpu":
        pytest.skip(f"backend {name!r} does not run on {device}")
    try:
        backends.load(name)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of this run."""
    name = request.config.getoption("--device")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return torch.device(name)


@pytest.fixture(params=backends.NAMES)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of every backend in turn."""
    _require(request, request.param)
    return request.param


@pytest.fixture(params=[f"native-{isa}" for isa in ISAS])
def kernel(request: pytest.FixtureRequest):
    """The name of every backend but the reference, native on every instruction set."""
    name, _, isa = request.param.partition("-")
    _require(request, name)
    if not isa:
        yield name
        return
    native = backends.load("native")
    before = native.isa()
    try:
        native.set_isa(isa)
    except RuntimeError as error:
        pytest.skip(str(error))
    assert native.isa() == isa
    yield name
    native.set_isa(before)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """New memory holds NaN or a number that is no index, so a result nobody wrote shows."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
