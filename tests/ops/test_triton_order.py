"""Programs that hand results to the last of them: barriers and atomics stand in the right order in PTX.

All threads write, a barrier, one counts the program with release and acquire, its answer goes to all by way
of another barrier, and what the others wrote is read past L1, which may hold older numbers.
"""

from __future__ import annotations

import re

import pytest
import torch

from support import aot
from support.paths import ROOT
from support.triton_launches import attention_launch

EVENT = re.compile(
    r"^\s*(?:@\S+ )?"
    r"(bar\.sync|atom\.\S+|red\.\S+|st\.global|st\.shared|ld\.global\.cg|ld\.global|ld\.shared)",
    re.M,
)
COUNTS = "atom.global.gpu.acq_rel.add.u32"


def assert_in_order(ptx: str) -> None:
    events = EVENT.findall(ptx)
    # those in shared memory count digits, within one program
    atomics = [i for i, one in enumerate(events) if re.match(r"(atom|red)\.(?!shared)", one)]
    assert atomics, "there is no atomic"
    for i in atomics:
        assert events[i - 1 : i + 4] == ["bar.sync", COUNTS, "st.shared", "bar.sync", "ld.shared"]
    # a kernel counts at its end, so that what it reads behind is of others
    assert "ld.global.cg" in events[atomics[-1] :]


def test_parts_of_attention():
    pytest.importorskip("triton")
    assert_in_order(aot.ptx(attention_launch(5, 64, torch.bfloat16, 1, 4), 90))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_slices_of_select(dtype, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(ROOT)
    from support.select_code import select_launch

    assert_in_order(aot.ptx(select_launch(dtype), 90))


@pytest.mark.parametrize("dropped", ["bar.sync", "st.shared", "ld.global.cg", "acq_rel"])
def test_disorder_shows(dropped):
    ptx = f"st.global a\nbar.sync 0;\n{COUNTS} r\nst.shared r\nbar.sync 0;\nld.shared r\nld.global.cg a\n"
    assert_in_order(ptx)
    with pytest.raises(AssertionError):
        assert_in_order(ptx.replace(dropped, "relaxed" if dropped == "acq_rel" else "nop", 1))
