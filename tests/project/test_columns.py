"""Kernels name the columns and arrays of the state as Python does, in the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pybeam import contracts
from pybeam.backends import arrays, torch_drafts
from pybeam.backends.packing import PANEL
from pybeam.backends.torch_layers import Activation

CSRC = Path(__file__).parents[2] / "csrc"
HEADERS = "".join(path.read_text("utf-8") for path in sorted(CSRC.rglob("*.h")))


def snake(name: str) -> str:
    """`kNumRows` as num_rows."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name[1:]).lower()


def enum_of(owner: str, name: str) -> list[str]:
    """The enumerators of an enum, without the last one where that is their number."""
    if owner:
        body = re.search(rf"struct {owner} \{{(.*?)\n\}};", HEADERS, re.S)[1]
    else:
        body = HEADERS
    listed = re.search(rf"enum (?:class )?{name}(?: : int32_t)? \{{(.*?)\}}", body, re.S)[1]
    names = re.findall(r"\bk\w+", listed)
    return [snake(one) for one in names if not one.startswith("kNum") or one != names[-1]]


@pytest.mark.parametrize(
    ("owner", "enum", "names"),
    [
        ("TreeArrays", "Array", arrays.TreeArrays._fields),
        ("BeamArrays", "Array", arrays.Beams._fields),
        ("DraftArrays", "Array", arrays.Drafts._fields),
        ("Beams", "Int", arrays.INT_COLUMNS),
        ("Beams", "Float", arrays.FLOAT_COLUMNS),
        (
            "Beams",
            "FinishedInt",
            [n.removeprefix("finished_") for n in arrays.FINISHED_INT_COLUMNS],
        ),
        (
            "Beams",
            "FinishedFloat",
            [n.removeprefix("finished_") for n in arrays.FINISHED_FLOAT_COLUMNS],
        ),
        ("Drafts", "Int", arrays.DRAFT_COLUMNS),
        ("", "EditKind", [n.lower() for n in contracts.Edit.__members__]),
        ("", "Finishing", [n.lower() for n in contracts.Finishing.__members__]),
        ("", "Certificate", [n.lower() for n in contracts.Certificate.__members__]),
        ("", "Top", [n.lower() for n in contracts.Top.__members__]),
        ("", "Activation", [n.lower() for n in Activation.__members__]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_same_names_in_the_same_order(owner, enum, names):
    assert enum_of(owner, enum) == list(names)


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("INT", arrays.INT_COLUMNS),
        ("FLOAT", arrays.FLOAT_COLUMNS),
        ("DRAFT", arrays.DRAFT_COLUMNS),
        ("STOP", arrays.STOP_REASONS),
        ("FINISHED", [n.removeprefix("finished_") for n in arrays.FINISHED_INT_COLUMNS]),
        ("FINISHED", [n.removeprefix("finished_") for n in arrays.FINISHED_FLOAT_COLUMNS]),
    ],
)
def test_the_same_numbers_in_triton(prefix, names):
    beam_columns = pytest.importorskip("pybeam.triton_kernels.beam.columns")
    for number, name in enumerate(names):
        assert getattr(beam_columns, f"{prefix}_{name.upper()}").value == number
    totals = dict(
        NUM_INTS=arrays.INT_COLUMNS,
        NUM_FLOATS=arrays.FLOAT_COLUMNS,
        NUM_DRAFT_INTS=arrays.DRAFT_COLUMNS,
    )
    for total, of in totals.items():
        assert getattr(beam_columns, total).value == len(of)
    assert beam_columns.NUM_FINISHED.value == len(arrays.FINISHED_INT_COLUMNS)
    assert beam_columns.NUM_FINISHED.value == len(arrays.FINISHED_FLOAT_COLUMNS)


def test_there_are_as_many_stop_reasons():
    assert len(enum_of("", "StopReason")) == len(arrays.STOP_REASONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kPageCells", contracts.PAGE_CELLS),
        ("kMaxWidth", contracts.MAX_WIDTH),
        ("kMaskWidth", contracts.MASK_WIDTH),
        ("kPanel", PANEL),
        ("kNumActivations", len(Activation)),
    ],
)
def test_same_sizes(name, value):
    assert re.findall(rf"constexpr \w+ {name} = (\d+);", HEADERS) == [str(value)]


def test_drafts_have_the_same_numbers_in_triton():
    accept = pytest.importorskip("pybeam.triton_kernels.draft.accept")
    constants = (accept.STEP, accept.MOST_NGRAM, accept.ALLOWANCE, accept.MOST_CREDIT)
    ours = (arrays.STEP, arrays.MOST_NGRAM, torch_drafts.ALLOWANCE, torch_drafts.MOST_CREDIT)
    constants = (*constants, accept.FILL_LAST, accept.FILL_NONE)
    ours = (*ours, arrays.FILL_LAST, arrays.FILL_NONE)
    assert tuple(constant.value for constant in constants) == ours
