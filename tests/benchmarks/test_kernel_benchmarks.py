"""The benchmarks of kernels run on tiny shapes, as on a CPU and as on a GPU, and keep what they measure."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from support.cuda_code import own_operators
from support.paths import ROOT

for module in ("pytest_benchmark", "tabulate"):
    pytest.importorskip(module)
native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)

from benchmarks.gpu import expected  # noqa: E402
from benchmarks.gpu.count_kernels import PHASES  # noqa: E402
from benchmarks.kernels.bench_select import Select  # noqa: E402
from benchmarks.kernels.bench_step import PHASES as PHASES_OF_A_STEP  # noqa: E402
from benchmarks.kernels.kernel import Case, Kernel, WrongResult, all_kernels, same  # noqa: E402
from benchmarks.kernels.plan import worth  # noqa: E402

KERNELS = ROOT / "benchmarks" / "kernels"
# Triton kernels that only a step launches, and the phase of bench_step.py that times each
AS_PHASES = {"read_kernel": "read", "report_kernel": "report"}
# what `python -m benchmarks ctc` times with all that is around it
IN_CTC = {"ctc_align", "ctc_beam_search", "ctc_prefix_scores"}
# timed as phases of a step; `line_of` launches nothing
IN_STEPS = {"read_beams", "beam_commit", "beam_report", "line_of"}
# a step and its trees are states of ours
NOT_IN_TORCH = {"step", "tree_release"}
COMPILED = [
    kernel
    for kernel in all_kernels()
    if kernel.cases.cuda is not None and kernel.op not in NOT_IN_TORCH
]
# inductor unrolls its loop over rows for a minute
COMPILES_LONG = {"draft_commit"}
HALVES = (torch.bfloat16, torch.float16)
SETTINGS = {
    "isa",
    "set_isa",
    "bfloat16_products",
    "set_bfloat16_products",
    "unwritten",
    "count_kernels",
}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    # a process that pytest-xdist starts is none of its workers, in which nothing is timed
    inherited = {n: value for n, value in os.environ.items() if not n.startswith("PYTEST_XDIST")}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
    )


def test_every_operator_has_a_benchmark():
    operators = {
        name.removeprefix("pybeam::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("pybeam::")
    }
    measured = {kernel.op.partition(",")[0] for kernel in all_kernels()}
    # all layers in one launch, and a selection from peaks, are timed with the kernels beside them
    operators -= own_operators()
    assert operators - {name for name in operators if name.startswith("beam_")} == (
        operators & (measured | IN_CTC | SETTINGS)
    )


def test_every_kernel_of_a_gpu_has_a_benchmark():
    """Every Triton kernel is launched by a benchmark, or is a phase of a step there."""
    pytest.importorskip("triton")
    from benchmarks.gpu.count_kernels import many_multiprocessors
    from benchmarks.gpu.needed_kernels import of_benchmarks
    from pybeam import triton_kernels
    from pybeam.triton_kernels.dependent_launch import MarkedKernel
    from support.aot import recording

    found = pkgutil.walk_packages(triton_kernels.__path__, f"{triton_kernels.__name__}.")
    modules = [importlib.import_module(module.name) for module in found]
    every = {
        own.kernel.__name__
        for module in modules
        for own in vars(module).values()
        if isinstance(own, MarkedKernel)
    }
    launched = set()
    note = recording(lambda launch: launched.add(launch.kernel.__name__))
    with note, torch.inference_mode(), many_multiprocessors():
        of_benchmarks(is_tiny=True)
    assert launched <= every
    assert every - launched == set(AS_PHASES)
    assert set(AS_PHASES.values()) <= set(PHASES_OF_A_STEP)


def test_every_function_of_the_triton_backend_has_a_benchmark():
    """Some kernels are launched by several, and none alone would be missed above."""
    source = (ROOT / "pybeam" / "backends" / "triton.py").read_text("utf-8")
    imported = [
        name.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and "triton_kernels" in (node.module or "")
        for name in node.names
    ]
    on_gpu = [kernel for kernel in all_kernels() if kernel.cases.cuda is not None]
    measured = {kernel.op.partition(",")[0] for kernel in on_gpu}
    assert set(imported) - measured == IN_STEPS


def test_torch_compile_stands_beside_every_kernel_of_a_gpu():
    on_gpu = [kernel for kernel in all_kernels() if kernel.cases.cuda is not None]
    without = {
        kernel.op
        for kernel in on_gpu
        if not any("torch.compile" in kernel.peers("cuda", case) for case in kernel.cases.cuda)
    }
    assert without == NOT_IN_TORCH
    # what has taken long to compile would be in a dry run's way
    tried = [peer for own in on_gpu for case in own.cases.tiny for peer in own.peers("cuda", case)]
    assert "torch.compile" not in tried


def compiled_call(own: type[Kernel], device: torch.device):
    """A tiny case, and a call of what torch.compile makes of it."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    case = own.cases.tiny[0]
    given = own(device, case.dtype, *case.size)
    [call, *_] = given.calls("torch.compile")
    return given, call


@pytest.mark.slow
@pytest.mark.parametrize("own", COMPILED, ids=lambda own: own.__name__)
def test_a_compiled_peer_is_one_graph(own, monkeypatch):
    """As a CUDA graph asks: nothing is read back. Tensors without memory take the way of a GPU."""
    monkeypatch.setattr(
        torch, "compile", partial(torch.compile, fullgraph=True, backend="aot_eager")
    )
    with torch.inference_mode():
        _, call = compiled_call(own, torch.device("meta"))
        call()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "own",
    [own for own in COMPILED if own.op not in COMPILES_LONG],
    ids=lambda own: own.__name__,
)
def test_a_compiled_peer_computes_what_torch_does(own):
    with torch.inference_mode():
        given, call = compiled_call(own, torch.device("cpu"))
        found = [
            numbers_of(given, one) for one in (call, partial(given.in_torch, *given.copies[0]))
        ]
    assert found[0] and len(found[0]) == len(found[1])
    for ours, theirs in zip(*found, strict=True):
        same(ours.flatten(), theirs.flatten(), 2e-2 if theirs.dtype in HALVES else 1e-4)


def numbers_of(given: Kernel, call) -> list[torch.Tensor]:
    """All that a call gives and changes; the changes are taken back."""
    if given.before is not None:
        given.before()
    before = [tensor.clone() for tensor in given.changes]
    found = call()
    found = () if found is None else found if isinstance(found, tuple) else (found,)
    numbers = [tensor.clone() for tensor in (*given.changes, *found)]
    for tensor, old in zip(given.changes, before, strict=True):
        tensor.copy_(old)
    return numbers


def test_every_case_has_a_name_of_its_own():
    for kernel in all_kernels():
        for kind, own in kernel.cases._asdict().items():
            names = [(*kernel.names(case.size), case.dtype) for case in own or ()]
            assert len(set(names)) == len(names), (kernel, kind)


@pytest.mark.slow
@pytest.mark.parametrize("interprets", [False, True], ids=["native", "triton"])
def test_trial_of_a_gpu(tmp_path, interprets):
    """Every kernel of a GPU runs, and what it times is right."""
    if interprets and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not there")
    names = {"OUT": str(tmp_path), "TRITON_INTERPRET": str(int(interprets))}
    done = run("benchmarks.gpu", "--dry-run", "--minutes", "60", **names)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    data = json.loads((tmp_path / "gpu-bench.json").read_text())
    assert data["is_complete"]
    assert not [row for row in data["rows"] if "error" in row]
    on_gpu = {
        kernel.names(case.size)[0]: kernel.cases.cpu is not None
        for kernel in all_kernels()
        if kernel.cases.cuda is not None
        for case in kernel.cases.tiny
    }
    ours = [row for row in data["rows"] if row["backend"] == ("triton" if interprets else "native")]
    assert {row["op"] for row in ours} == {op for op, has in on_gpu.items() if interprets or has}
    assert {row["op"] for row in data["rows"]} == set(on_gpu)
    assert all(row["times forecast"] > 0 for row in ours)
    assert "times forecast" in (tmp_path / "gpu-bench.log").read_text()


@pytest.mark.slow
def test_a_wrong_result_has_no_time(tmp_path):
    (tmp_path / "breaks.py").write_text(
        "from pybeam.backends import native\n"
        "right = native.backtrace\n"
        "native.backtrace = lambda *given: (right(*given)[0] + 1, right(*given)[1])\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = run(
        *("pytest", str(KERNELS / "bench_backtrace.py"), "--benchmark-only", "--tiny"),
        *("--device=cpu", f"--journal={tmp_path}", "-p", "breaks"),
        PYTHONPATH=path,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    rows = json.loads((tmp_path / "kernels-cpu.json").read_text())["rows"]
    ours = [row for row in rows if row["backend"] == "native"]
    assert ours and all("us" not in row and "WrongResult" in row["error"] for row in ours)


@pytest.mark.slow
def test_rows_say_what_is_reached_of_the_limit(tmp_path):
    done = run(
        *("pytest", str(KERNELS / "bench_linear.py"), "--benchmark-only", "--tiny"),
        *("--device=cpu", f"--journal={tmp_path}", "--benchmark-max-time=0.001"),
        f"--benchmark-json={tmp_path / 'own.json'}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "kernels-cpu.json").read_text())["rows"]
    own = json.loads((tmp_path / "own.json").read_text())["benchmarks"]
    assert len(rows) == len(own) > 4
    for row, kept in zip(rows, own, strict=True):
        info = kept["extra_info"]
        assert info.items() <= row.items()
        assert row["us"] == pytest.approx(1e6 * kept["stats"]["median"], abs=0.01)
        # 128 outputs of 64 inputs, 3 rows
        assert info["flops"] == 2 * 3 * 128 * 64
        assert info["of limit"] == pytest.approx(info["limit µs"] / row["us"], rel=0.05)


@pytest.mark.slow
def test_what_is_left_when_time_is_over_is_skipped(tmp_path):
    done = run(
        *("pytest", str(KERNELS / "bench_backtrace.py"), "--benchmark-only", "--tiny"),
        *("--device=cpu", f"--journal={tmp_path}", "--minutes=0"),
    )
    assert done.returncode == 0 and "2 skipped" in done.stdout, done.stdout + done.stderr
    kept = json.loads((tmp_path / "kernels-cpu.json").read_text())
    assert not kept["is_complete"] and not kept["rows"]


def test_the_most_valuable_rows_come_first():
    def item(kernel: str, of: type, case: Case, backend: str = "triton"):
        parameters = {"dtype": case.dtype, "size": case.size, "backend": backend}
        return SimpleNamespace(
            path=KERNELS / f"{kernel}.py",
            callspec=SimpleNamespace(params=parameters),
            function=SimpleNamespace(kernel=of),
        )

    by_op = {kernel.op: kernel for kernel in all_kernels()}
    first = Select.cases.cuda[0]
    items = [
        item("bench_select", Select, Select.late[0]),
        item("bench_select", Select, first, "torch.compile"),
        item("bench_rows", by_op["gather_rows"], by_op["gather_rows"].cases.cuda[0]),
        item("bench_select", Select, first),
        item("bench_step", by_op["step"], by_op["step"].cases.cuda[0]),
    ]
    assert sorted(items, key=worth) == [items[i] for i in (4, 3, 2, 1, 0)]


def test_select_is_compared_beam_by_beam(monkeypatch):
    inputs = Select(torch.device("cpu"), "float32", *Select.cases.tiny[2].size)
    inputs.check("native", "float32")
    select = native.select

    def wrong(*arguments):
        survivors = select(*arguments)
        return survivors._replace(parent=survivors.parent + 1)

    monkeypatch.setattr(native, "select", wrong)
    with pytest.raises(WrongResult, match="numbers are wrong"):
        inputs.check("native", "float32")


def test_forecast_of_a_row():
    """Bytes at the published rate are the limit; a forecast has slower reads, and a launch."""
    given = expected.of_work(expected.Work(4.8e6, 0), "bfloat16")
    beside = expected.forecast.KERNEL_US["norm"] + expected.GAP_US
    assert given.limit == pytest.approx(1)
    assert given.forecast == pytest.approx(1 / expected.forecast.READ_SHARE + beside)
    columns = given.columns(us=4 * given.forecast)
    assert columns["times forecast"] == 4
    assert columns["of limit"] == pytest.approx(1 / (4 * given.forecast), 1e-2)


def test_a_step_is_its_phases():
    network = expected.Network(3, 256, 1024, 8000)
    sizes = network, 64, 5, "bfloat16"
    phases = [expected.of_phase(*sizes, phase) for phase in PHASES]
    step = expected.of_step(*sizes)
    alone = len(phases) * expected.ALONE_US
    assert sum(one.forecast for one in phases) - alone == pytest.approx(step.forecast)
    assert sum(one.limit for one in phases) == pytest.approx(step.limit, rel=0.1)
