"""Estimates from machine code: what waits for what, how often code runs, and the budgets of kernels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence

import pytest

from benchmarks.gpu import roles, sass
from pybeam.backends import poison
from support.paths import ROOT

FREE = sass.NO_SCOREBOARD


def line(name: str, rest="", guard="", stall=1, sets=FREE, waits: Sequence[int] = (), at=1) -> str:
    """An instruction of line `at` as it is disassembled, but for its address."""
    bits = sum(1 << board for board in waits)
    control = (stall | sets << 5 | FREE << 8 | bits << 11) << 41
    text = f"{guard and '@' + guard} {name} {rest}".strip()
    place = f'\t//## File "/a/triton_kernels/kernel.py", line {at}\n'
    return f"{place}        /*%04x*/   {text} ;   /* 0x0 */\n   /* 0x{control:016x} */"


def code(*lines: str) -> list[sass.Instruction]:
    numbers = iter(range(0, 16 * len(lines), 16))
    text = [one if one.endswith(":") else one % next(numbers) for one in lines]
    return sass.parsed("\n".join(text))


def once(one: sass.Instruction) -> float | None:
    return None


def cycles(*lines: str, times: sass.Times = once, line_cycles: int = 0) -> int:
    return sass.time_of(code(*lines), times, line_cycles).cycles


LOAD, EXIT = sass.LATENCY["LDGSTS|LDG|LD[.]"], line("EXIT")


def chain(length: int, waits: bool = True) -> list[str]:
    """Loads, each of which waits for the one before, or which are on their way together."""
    boards = [i % sass.SCOREBOARDS for i in range(length)]
    return [
        line("LDG.E", "R4, [R2.64]", sets=board, waits=boards[i - 1 : i] if waits else ())
        for i, board in enumerate(boards)
    ]


def test_a_load_more_in_a_chain_takes_as_long_as_a_load():
    last = line("FADD", "R4, R4, R4", waits=range(sass.SCOREBOARDS))
    chained, together = (
        [cycles(*chain(n, waits), last, EXIT) for n in (2, 3)] for waits in (True, False)
    )
    assert chained[1] - chained[0] == LOAD
    assert together[1] - together[0] == 1 and together[0] < chained[0]


def test_instructions_wait_as_long_as_the_compiler_says():
    assert cycles(line("IADD3", stall=5), line("IADD3", stall=2), EXIT) == 8


def test_a_line_of_code_is_waited_for_once():
    # eight instructions of 16 bytes are 128 bytes
    own = [*[line("IADD3")] * 16, EXIT]
    assert cycles(*own, line_cycles=30) - cycles(*own) == 3 * 30


@pytest.mark.parametrize("turns", [0, 1, 7])
def test_a_loop_takes_its_turns(turns):
    body = [".L_x_1:", line("IADD3", stall=4, at=2), line("BRA", "`(.L_x_1)", "P0", at=2)]
    times = {1: 1.0, 2: float(turns)}
    own = [line("IADD3"), *body, line("IADD3"), EXIT]
    assert cycles(*own, times=lambda one: times[one.places[0].line]) == 3 + 5 * turns


def test_loops_multiply():
    inner = [".L_x_2:", line("IADD3", at=3), line("BRA", "`(.L_x_2)", "P0", at=3)]
    outer = [".L_x_1:", line("IADD3", at=2), *inner, line("BRA", "`(.L_x_1)", "P0", at=2)]
    times = {1: 1.0, 2: 4.0, 3: 12.0}
    found = sass.time_of(code(*outer, EXIT), lambda one: times[one.places[0].line], 0)
    assert found.issued == 4 * 2 + 12 * 2 + 1


def test_code_that_has_not_run_and_the_shorter_of_two_ways_are_left_out():
    long = [line("IADD3")] * 5
    ways = [
        line("BRA", "`(.L_x_1)", "P0"),
        *[line("IADD3"), line("BRA", "`(.L_x_2)")],
        *[".L_x_1:", *long, ".L_x_2:"],
    ]
    skipped = [line("BRA", "`(.L_x_3)", "P0"), *[line("FADD", at=9)] * 8, ".L_x_3:"]
    own = [*ways, *skipped, EXIT, *long]
    found = sass.time_of(code(*own), lambda one: float(one.places[0].line != 9), 0)
    assert found.issued == 1 + 5 + 1 + 1


@pytest.fixture(scope="module")
def rows():
    path = ROOT / "benchmarks" / "results" / "code-time.json"
    return json.loads(path.read_text("utf-8"))["rows"]


def test_kernels_are_within_their_budgets(rows):
    """Those of one beam in the small network, by name without a number."""
    own = [row for row in rows if row["case"] == "example, 1x5"]
    names = {row["system"].partition(",")[0] for row in own}
    assert names == roles.CODE_US.keys()
    above = [row for row in own if row["µs"] > roles.CODE_US[row["system"].partition(",")[0]]]
    assert not above


def test_commit_and_selection_take_no_more_than_was_wanted(rows):
    """In each case, but for one that is named."""
    cases = [
        row for row in rows if row["system"] in roles.WANTED_US and "as measured" not in row["case"]
    ]
    assert len(cases) == 4 * len(roles.WANTED_US)
    above = {
        (row["case"], row["system"]) for row in cases if row["µs"] > roles.WANTED_US[row["system"]]
    }
    assert above == roles.NOT_REACHED


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_the_table_is_of_the_code_of_today(rows, tmp_path, monkeypatch):
    # who poisons memory launches kernels
    monkeypatch.setattr(poison, "IS_ON", False)
    monkeypatch.setenv("PYBEAM_POISON", "0")
    code_time = pytest.importorskip("benchmarks.gpu.code_time")
    known = {(row["case"], row["system"]): row["µs"] for row in rows if "µs" in row}
    code_time.compile_select(tmp_path)
    lines = code_time.interpreted_lines.of_step()
    found = list(code_time.rows_of(code_time.CASES[0], tmp_path, lines, is_measured=False))
    assert found
    for row in found:
        own = pytest.approx(row["µs"], rel=0.1, abs=0.05)
        assert known[row["case"], row["system"]] == own, row


def test_the_estimates_are_better_than_constants(rows):
    own = {row["system"]: row for row in rows if row["case"] == "as measured"}
    for role in ("norm", "books", "product"):
        for off in ("median off by, %", "at most, %"):
            assert own[role][f"code: {off}"] < own[role][f"constants: {off}"]
    # half of the constants for attention are as near, and some are far off
    off = "at most, %"
    assert own["attention"][f"code: {off}"] < own["attention"][f"constants: {off}"]
