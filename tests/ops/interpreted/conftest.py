"""Features that only the Triton kernels have are tested where they run: in the interpreter, or on a GPU."""

from pybeam import backends
from support import triton_process

if triton_process.is_interpreting():
    # these tests import kernels directly; loading the backend mends the interpreter for newer NumPy
    backends.load("triton")


def pytest_ignore_collect(collection_path, config):
    on_gpu = config.getoption("--device") == "cuda"
    is_asked = config.getoption("--backend") in ("all", "triton")
    runs = triton_process.is_interpreting() or (on_gpu and is_asked)
    return None if runs else True
