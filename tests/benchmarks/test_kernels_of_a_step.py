"""The table of the kernels of a step: read from a trace, and set beside the parts of a step."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("tabulate")

from benchmarks import decoders
from benchmarks.gpu import kernels_of_a_step as tool
from benchmarks.gpu.forecast import MACHINES, NETWORKS, Network, parts
from benchmarks.gpu.roles import BUDGETS_US
from benchmarks.journal import RESULTS
from benchmarks.kernels.bench_step import Search
from pybeam.inspect.gpu_kernels import role_of

SIZES = NETWORKS["3 layers of 256"], 1, 5, "bfloat16"
# those of the H200 did not begin early
RECORDED = [
    row
    for row in json.loads((RESULTS / "nvidia-h100-80gb-hbm3/gpu-step.json").read_text("utf-8"))[
        "rows"
    ]
    if row["system"] == tool.STEP and row["width"] <= tool.NARROW
    if "PYBEAM_DEPENDENT_LAUNCH" not in row["case"]
]
# a commit is one launch since f4f175c9, where it was two of 3.2 and 5.1 µs, and has still to get there
OVER = {
    "widened, 64x5": ["commit_kernel takes 6.5 µs, and its budget is 6.0"],
    "widened, 1x5": ["commit_kernel takes 6.53 µs, and its budget is 6.0"],
}
# of a layer, in order; its last product is split
LAYER = [
    *("nvjet_a", "tree_attention_kernel", "nvjet_a", "add_norm_kernel"),
    *("nvjet_b", "tree_attention_kernel", "nvjet_a", "add_norm_kernel"),
    *("Memset (Device)", "nvjet_c", "nvjet_a", "void splitKreduce_kernel<4>()", "add_norm_kernel"),
]
NAMES = [
    *("plan_kernel", "read_kernel", "void gather_kernel<2>()", "void layer_norm_kernel<2>()"),
    *(*LAYER * 3, "nvjet_d", "select_kernel", "commit_kernel"),
]


def event(name: str, start: float, us: float, kind: str = "kernel") -> dict:
    return {"name": name, "cat": kind, "ts": start, "dur": us}


def test_kernels_are_those_of_a_step_in_their_order():
    events = []
    for start, factor in ((0, 1), (100, 2), (200, 9)):
        events += [
            event(tool.STEP, start, 50, "user_annotation"),
            event("b", start + 20, 3 * factor),
            event("a", start + 10, 1 * factor),
            event("pybeam::model", start + 10, 30, "gpu_user_annotation"),
            # what puts the books back lies between the steps
            event("copy", start + 60, 1, "gpu_memcpy"),
        ]
    # this step had one kernel more
    events.append(event("c", 30, 1))
    assert tool.kernels_of(events, tool.KERNEL) == [("a", 5.5), ("b", 16.5)]


def test_each_kernel_has_its_part():
    kernels = [tool.Kernel(name, 2.0) for name in NAMES]
    rows = tool.listed(kernels, parts(*SIZES), "bfloat16")
    named = [row["part"] for row in rows if "part" in row]
    assert named == [part.name for part in parts(*SIZES)]
    alone = {row["kernel"] for row in rows if "part" not in row}
    assert alone >= {"plan_kernel", "gather_kernel", "Memset ", "splitKreduce_kernel"}
    # one attention for both of a layer: which is which cannot be known
    fewer = [
        kernel for i, kernel in enumerate(kernels) if i != NAMES.index("tree_attention_kernel")
    ]
    rows = tool.listed(fewer, parts(*SIZES), "bfloat16")
    assert not [row for row in rows if row["role"] == "attention" and "part" in row]
    assert [row for row in rows if row["role"] == "product" and "part" in row]


def test_roles_add_up_to_the_step():
    kernels = [tool.Kernel(name, 2.0) for name in NAMES]
    whole, *others = tool.rows_of("a", tool.Times(130.0, 150.0, 51), kernels, SIZES)
    assert sum(row["kernels"] for row in others[:-1]) == whole["kernels"] == len(NAMES)
    for column in ("µs", "forecast, µs"):
        assert sum(row[column] for row in others) == pytest.approx(whole[column], rel=0.01)
    assert whole["cold L2, µs"] == 150 and len(whole["listed"]) == len(NAMES)


def test_what_is_over_its_budget_is_named():
    listed = [{"kernel": name, "µs": us + 1} for name, us in BUDGETS_US.items()]
    assert len(tool.over_budget({"width": 5, "listed": listed})) == len(BUDGETS_US)
    assert not tool.over_budget({"width": 50, "listed": listed})
    assert not tool.over_budget({"width": 5, "listed": [{"kernel": "nvjet_a", "µs": 1e9}]})
    assert all(role_of(name) != "other" for name in BUDGETS_US)


def test_a_decoder_alone_has_rows(monkeypatch):
    """By the clock of the host, for a network of few numbers under that name."""
    kind, sizes = decoders.SHAPES["Qwen3-0.6B"]
    few = dict(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, head_dim=8)
    monkeypatch.setitem(decoders.SHAPES, "Qwen3-0.6B", (kind, sizes | few))
    search = Search("Qwen3-0.6B", "float32", torch.device("cpu"), 2, 3, "fixed_beam")
    with torch.inference_mode():
        step, *rows = tool.measured(search)
    assert step["network"]["layers"] == 2 and not step["network"]["has_cross"]
    assert step["limit, µs"] > 0
    assert rows[-1]["system"] == "between"


def test_a_trial_keeps_its_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["kernels_of_a_step", "--dry-run"])
    with pytest.raises(SystemExit) as end:
        tool.main()
    assert not end.value.code, end.value.code
    rows = json.loads((tmp_path / "gpu-step.json").read_text())["rows"]
    assert [row["system"] for row in rows][-1] == tool.STEP and rows[-1]["listed"]
    assert "aten::" in capsys.readouterr().out


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["case"])
def test_what_was_measured_is_within_budgets_and_near_the_forecast(row, monkeypatch):
    monkeypatch.setattr(tool.expected, "machine", lambda: MACHINES["H100"])
    sizes = Network(**row["network"]), row["sources"], row["width"], row["dtype"]
    kernels = [tool.Kernel(one["kernel"], one["µs"]) for one in row["listed"]]
    whole, *_ = tool.rows_of(row["case"], tool.Times(row["µs"], 0.0, None), kernels, sizes)
    assert abs(whole["forecast is off by, %"]) <= 20
    assert tool.over_budget(row) == OVER.get(row["case"], [])
