"""The Triton kernels of beams without a GPU: right in the interpreter, and compiled well."""

from __future__ import annotations

import pytest

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.backends.arrays import PlanRules
from pybeam.backends.beam_program import BeamRules
from pybeam.contracts import Certificate, Finishing, Top
from support.aot import CAPABILITIES_TO_TEST, assemble, distinct
from support.triton_launches import commit_launches, draft_launches, read_launches

RULES = (
    BeamRules((2,), Finishing.REFILL, False, Top.IGNORED, Certificate.NONE, True, True),
    BeamRules((2,), Finishing.HELD, False, Top.NOW, Certificate.NONE, True, True),
    BeamRules((2,), Finishing.SHRINK, True, Top.EVER, Certificate.BOUND, True, True),
    BeamRules((2,), Finishing.HELD, True, Top.IGNORED, Certificate.CURRENT, True, True),
)


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/interpreted/test_beam_operators.py",
        "tests/ops/interpreted/test_plan_and_read.py",
        "tests/ops/interpreted/test_draft_operators.py",
        "tests/ops/interpreted/test_beams_in_the_loop.py",
    )


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_read_and_report_are_compiled_well(capability):
    """One launch each, whether all move or a schedule chooses."""
    rules = [
        PlanRules(is_least, order, 99, 9) for is_least in (True, False) for order in (1, -1, 0)
    ]
    calls = [read_launches(5, True, one, size) for one in rules for size in (1, 64, 1024)]
    for width in (1, 5, 64, 128, 512, 4096):
        calls += [read_launches(width, width % 2 == 0, one) for one in (None, rules[0])]
    assert {len(launches) for launches in calls} == {2}
    launches = distinct([launch for call in calls for launch in call])
    names = {launch.kernel.__name__ for launch in launches}
    assert names == {"read_kernel", "report_kernel"}
    for launch in launches:
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0
        assert assembly.registers <= 104


def test_lists_of_any_alignment_run_the_same_code():
    """`select` returns lists that stand one behind another, wherever they begin."""
    launches = [x for num in (3, 4) for x in commit_launches(5, RULES[0], num_sources=num)]
    assert len(launches) == 2
    assert len(distinct(launches)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("width", [1, 5, 64, 128, 512, 4096])
def test_commit_is_compiled_well(width, capability):
    launches = distinct(
        [x for rules in RULES for x in commit_launches(width, rules, has_paths=width > 128)]
    )
    assert [launch.kernel.__name__ for launch in launches] == ["commit_kernel"] * len(RULES)
    for launch in launches:
        assembly = assemble(launch, capability)
        assert assembly.local == 0
        assert assembly.registers <= 128
        # divisions in float64 are calls, which save registers; the widest beams spill a little beside
        assert assembly.stack <= (32 if width < 4096 else 176)


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_drafts_are_compiled_well(capability):
    """Two launches, whether a source begins or goes on."""
    calls = [draft_launches(width, opens) for width in (1, 8, 64, 128) for opens in (True, False)]
    assert {len(launches) for launches in calls} == {2}
    for launch in distinct([launch for call in calls for launch in call]):
        assembly = assemble(launch, capability)
        assert assembly.local == 0
        assert assembly.registers <= 128
        assert assembly.stack <= 32, "divisions in float64 are calls, which save registers"
