"""Write the stubs of a new operator, its tests, which fail, and its benchmark: recipe 1 of `CONTRIBUTING.md`.

make kernel NAME=smooth

The operator maps [R, V] float32 to [R, V]. Change its arguments in all places, follow the recipe from its
first step to its last, and the tests pass.
"""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

from support.paths import ROOT

OPS = '''

def NAME(x: Tensor, *, backend: str = "auto") -> Tensor:
    """Say in one sentence for which numbers `NAME` is.

    ``out[r, v] = x[r, v]``: write the formula, and the order of ties.

    Args:
        x: [R, V] float32, any strides with the last one 1.

    Returns:
        [R, V] float32, contiguous.

    Raises:
        ValueError: a shape or dtype is wrong.
    """
    checks.NAME(x)
    return backends.resolve(backend, x.device).NAME(x)
'''
CHECKS = '''

def NAME(x: Tensor) -> None:
    """Check the arguments of `ops.NAME`."""
    _dtype("x", x, torch.float32)
    _shape("x", x, "[R, V]", (None, None))
    if x.numel() and x.stride(1) != 1:
        _fail("the last stride of `x`", 1, x.stride(1), "call `.contiguous()`")
'''
REFERENCE = """

def NAME(x: Tensor) -> Tensor:
    raise NotImplementedError("write the plainest torch code of `NAME` that is right")
"""
FAKE = '@torch.library.register_fake("pybeam::log_softmax")\n'
PARAMS = """\
// Arguments of the kernel `NAME`.
#pragma once

#include <cstdint>

namespace pybeam {

// out [num_rows, size], contiguous, from x, whose rows are `row_stride` numbers apart.
struct CAMELParams {
    const float* x;
    int64_t row_stride;
    float* out;
    int64_t num_rows;
    int64_t size;
    int num_threads;
};

void launch_NAME(const CAMELParams& params);

}  // namespace pybeam
"""
OPERATOR = """\
// The operator `NAME`.
#pragma once

#include "../params/NAME.h"
#include "check.h"

namespace pybeam {

inline Tensor NAME(const Tensor& x) {
    check_dim("x", x, 2);
    PYBEAM_CHECK_VALUE(float_type("x", x) == DType::kFloat32, "`x` must be float32, but is ",
                       x.scalar_type());
    check_unit_stride("x", x);
    Tensor out = empty(x.sizes(), ScalarType::kFloat32);
    CAMELParams params{};
    params.x = data<const float>(x);
    params.row_stride = x.stride(0);
    params.out = data<float>(out);
    params.num_rows = x.size(0);
    params.size = x.size(1);
    params.num_threads = num_threads();
    launch_NAME(params);
    return out;
}

}  // namespace pybeam
"""
CPU = """\
#include "../params/NAME.h"

#include <limits>

#include "parallel.h"

namespace pybeam {

void launch_NAME(const CAMELParams& p) {
    const int64_t work = p.num_rows * p.size;
    parallel_for(threads_for(work, p.num_rows, p.num_threads), p.num_rows, [&](int64_t row) {
        float* out = p.out + row * p.size;
        for (int64_t i = 0; i < p.size; ++i) out[i] = std::numeric_limits<float>::quiet_NaN();
    });
}

}  // namespace pybeam
"""
TRITON = '''\
"""`NAME`: a program has a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.dependent_launch import await_kernels, begins_early

BLOCK = 1024


@begins_early
@triton.jit
def NAME_kernel(p_out, p_x, row_stride, size, BLOCK: tl.constexpr):
    await_kernels()
    i_row = tl.program_id(0).to(tl.int64)
    for start in range(0, size, BLOCK):
        o_x = start + tl.arange(0, BLOCK)
        b_x = tl.load(p_x + i_row * row_stride + o_x, mask=o_x < size, other=0.0)
        tl.store(p_out + i_row * size + o_x, b_x + float("nan"), mask=o_x < size)


def NAME(x: Tensor) -> Tensor:
    """Compute `pybeam.ops.NAME` of rows [R, V]."""
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if out.numel():
        NAME_kernel[(len(out),)](out, x, x.stride(0), x.shape[1], BLOCK=BLOCK)
    return out
'''
TEST = '''\
"""`NAME` beside its formula in plain Python, which shares no code with the library."""

from __future__ import annotations

import pytest
import torch

from pybeam import ops
from support.threads import every_thread_count


def plain(row: list[float]) -> list[float]:
    raise NotImplementedError("write `NAME` of one row in plain Python")


def test_by_hand(backend):
    pytest.fail("write numbers of the contract here, ties included")


@pytest.mark.parametrize(("num_rows", "size"), [(0, 4), (1, 1), (3, 0), (5, 63), (2, 129)])
def test_as_its_formula(backend, device, num_rows, size):
    x = (3 * torch.randn(num_rows, size + 5)).to(device)[:, 3 : 3 + size]
    out = ops.NAME(x, backend=backend)
    expected = torch.tensor([plain(row) for row in x.double().tolist()], dtype=torch.float64)
    assert out.shape == x.shape
    torch.testing.assert_close(out.double(), expected.view(x.shape), rtol=3e-6, atol=1e-6)


def test_in_float64(device):
    from pybeam.backends import reference

    row = torch.randn(7, dtype=torch.float64)
    expected = torch.tensor([plain(row.tolist())], dtype=torch.float64)
    torch.testing.assert_close(reference.NAME(row[None]), expected)


def test_any_team(isa):
    x = torch.randn(201, 100)
    torch.set_num_threads(1)
    expected = ops.NAME(x, backend="native")
    assert not expected.isnan().any()
    for _ in every_thread_count():
        assert torch.equal(ops.NAME(x, backend="native"), expected)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(4), r"`x` must be \\[R, V\\]"),
        (torch.zeros(3, 4).double(), "`x` must be torch.float32"),
        (torch.zeros(4, 3).t(), "the last stride of `x`"),
    ],
)
def test_wrong_arguments(backend, x, message):
    with pytest.raises(ValueError, match=message):
        ops.NAME(x, backend=backend)
'''
TRITON_TEST = '''\
"""The Triton kernel `NAME`, without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.triton_kernels.NAME import NAME
from support.aot import CAPABILITIES_TO_TEST, assemble, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/test_NAME.py", "-k", "not any_team and not float64")


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_compiled_well(capability):
    for launch in recorded(lambda: NAME(torch.empty(9, 4096))):
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0
        assert assembly.registers <= 64
'''
BENCH = '''\
"""`NAME` beside the best that torch alone can do."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.inspect.work import Work
from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times


class CAMEL(Kernel):
    op = "NAME"
    label = "[{}, {}]"
    cases = Cases(
        cpu=cases(["float32"], [(5, 8000), (320, 8000)]),
        cuda=cases(["float32"], [(5, 42000), (320, 42000)]),
        tiny=[Case("float32", (3, 50))],
    )
    tolerance = 1e-5

    def __init__(self, device: torch.device, dtype: str, num_rows: int, size: int) -> None:
        # each number is read and written once
        self.work = Work(num_rows * size * 8, 0)
        self.copies = [
            (torch.randn(num_rows, size, device=device),)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    def in_torch(self, x: Tensor) -> Tensor:
        raise NotImplementedError("write the fastest `NAME` of torch")


bench_NAME = times(CAMEL)
'''
FILES = {
    "csrc/params/NAME.h": PARAMS,
    "csrc/ops/NAME.h": OPERATOR,
    "csrc/cpu/NAME.cpp": CPU,
    "triton_kernels/NAME.py": TRITON,
    "tests/ops/test_NAME.py": TEST,
    "tests/ops/test_triton_NAME.py": TRITON_TEST,
    "benchmarks/kernels/bench_NAME.py": BENCH,
}
# file -> lines there, and lines that are put in front of each
BEFORE = {
    "pybeam/ops/__init__.py": [('    "scatter_rows",\n', '    "NAME",\n')],
    "pybeam/ops/fakes.py": [(FAKE, '@torch.library.register_fake("pybeam::NAME")\n')],
    "pybeam/backends/__init__.py": [
        ("    backtrace: Callable[", "    NAME: Callable[[Tensor], Tensor]\n")
    ],
    "pybeam/backends/native.py": [
        ('fill_panels = operator("fill_panels")\n', 'NAME = operator("NAME")\n')
    ],
    "pybeam/backends/triton.py": [
        (
            "from pybeam.triton_kernels.tree import backtrace as backtrace\n",
            "from pybeam.triton_kernels.NAME import NAME as NAME\n",
        )
    ],
    "pybeam/backends/reference.py": [("\n\nBEAM_FUNCTIONS = ", REFERENCE)],
    "csrc/registration.cpp": [
        ('#include "ops/soft_cap.h"\n', '#include "ops/NAME.h"\n'),
        ('    m.def("log_softmax(', '    m.def("NAME(Tensor x) -> Tensor");\n'),
        (
            '    pybeam::implement<&pybeam::log_softmax>(m, "log_softmax");\n',
            '    pybeam::implement<&pybeam::NAME>(m, "NAME");\n',
        ),
    ],
    "tests/ops/test_opcheck.py": [
        ('    "rms_norm": lambda: (', '    "NAME": lambda: (torch.randn(3, 70),),\n')
    ],
    "tests/ops/test_triton_interpreter.py": [
        ('    "ops/test_rms_norm.py": (', '    "ops/test_NAME.py": ("test_as_its_formula",),\n')
    ],
    "docs/reference/kernels.md": [
        (".. autofunction:: pybeam.ops.backtrace\n", ".. autofunction:: pybeam.ops.NAME\n\n")
    ],
    "tests/project/defaults.toml": [("'pybeam.ops.scatter_rows' = ", "DEFAULTS\n")],
}
DEFAULTS = "'pybeam.ops.NAME' = '''backend='auto''''"
AT_THE_END = {"pybeam/ops/__init__.py": OPS, "pybeam/ops/checks.py": CHECKS}


def write_stubs(name: str, root: Path) -> list[Path]:
    """Write the stubs of an operator into a tree; returns the files that are new or have changed.

    Raises ValueError if the name cannot be one, or is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"NAME must be a name in small letters, such as smooth, but is {name!r}")

    def filled(text: str) -> str:
        camel = name.title().replace("_", "")
        return text.replace("DEFAULTS", DEFAULTS).replace("NAME", name).replace("CAMEL", camel)

    new = {root / filled(path): filled(text) for path, text in FILES.items()}
    taken = [path for path in new if path.exists()]
    if taken:
        raise ValueError(f"NAME must be new, but there is {taken[0].relative_to(root)}")
    for path, pairs in BEFORE.items():
        text = (root / path).read_text("utf-8")
        for line, added in pairs:
            assert text.count(line) == 1, f"{path}: {line}"
            text = text.replace(line, filled(added) + line)
        new[root / path] = text
    for path, added in AT_THE_END.items():
        new[root / path] = new.get(root / path) or (root / path).read_text("utf-8")
        new[root / path] += filled(added)
    for path, text in new.items():
        path.write_text(text, "utf-8")
    return list(new)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("make kernel NAME=smooth")
    try:
        written = write_stubs(sys.argv[1], ROOT)
    except ValueError as error:
        sys.exit(str(error))
    for path in written:
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
