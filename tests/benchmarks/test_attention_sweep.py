"""The sweep of attention's variants: it launches what it names, and shows which is the fastest."""

from __future__ import annotations

from functools import partial

import pytest
import torch

pytest.importorskip("triton", reason="the sweep is about Triton's kernels")


@pytest.fixture
def sweep(monkeypatch):
    from support.paths import ROOT

    monkeypatch.syspath_prepend(ROOT)
    return pytest.importorskip("benchmarks.gpu.attention_sweep")


@pytest.mark.parametrize("is_self", [True, False])
def test_variants_are_launched_as_they_are_named(sweep, is_self):
    from support.aot import recorded

    shape = sweep.Shape(num_heads=2, num_sources=3, width=5, is_self=is_self)
    inputs = sweep.Inputs(shape, torch.device("cpu"))
    assert bool(inputs.expected().isfinite().all())
    chosen = sweep.variants_for(shape)
    assert len(set(chosen)) == len(chosen)
    for variant, num_splits in chosen:
        with sweep.choosing(variant):
            [launch] = recorded(partial(inputs.ours, inputs.pools[0], num_splits))
        assert variant._asdict().items() <= launch.options.items()
        assert launch.grid[1] == num_splits


def test_table(sweep):
    constants = dict(BLOCK_M=16, BLOCK_N=32, num_warps=1, num_stages=2, maxnreg=255, num_splits=1)
    rows = [
        dict(constants, shape="a", limit_us=1.0, us=4.0, error=0.0),
        dict(constants, shape="a", limit_us=1.0, us=5.0, error=0.0, BLOCK_N=64),
        dict(constants, shape="b", limit_us=1.0, us=2.0, error=1.0),
        dict(constants, shape="b", limit_us=1.0, failed="ValueError", BLOCK_N=64),
    ]
    lines = [line.split() for line in sweep.table(rows).splitlines()[2:]]
    assert lines[0][-2:] == ["4.00*", "2.00!"]
    assert lines[1][-2:] == ["5.00", "failed"]
    assert lines[2] == ["limit", "1.00", "1.00"]
    assert lines[3][-1:] == ["25%"], "a wrong result is no time"
