"""Instructions of a loop are counted, and the page has the numbers of the result file."""

import json

from benchmarks.stale import RESULTS
from benchmarks.tools.instructions import PAGE, InstructionSet, counted, filled, functions_of

LISTING = """
0000000000000000 <void pybeam::multiply_block<4, false, 0, float, float>(int)>:
   0:\tnop
   4:\tvmovups (%rax),%ymm0
   8:\tvfmadd231ps %ymm0,%ymm1,%ymm2
   c:\tvfmadd231ps %ymm0,%ymm1,%ymm3
  10:\tjne    4 <void pybeam::multiply_block<4, false, 0, float, float>(int)+0x4>
  14:\tjmp    0 <void pybeam::multiply_block<4, false, 0, float, float>(int)>

0000000000000020 <void pybeam::score_all<float, float>(int)>:
  20:\tvfmadd231ps %ymm0,%ymm1,%ymm2
  24:\tjne    20 <void pybeam::score_all<float, float>(int)>
"""


def test_innermost_loops_of_products_are_counted():
    kind = InstructionSet("", "", {"float32": (r"vfmadd\d+ps .*%ymm", 8)})
    assert counted(functions_of(LISTING), kind) == {"float32": 0.25}


def test_the_page_has_the_numbers_of_the_result_file():
    """`python -m benchmarks.tools.instructions` writes both."""
    rows = json.loads((RESULTS / "instructions.json").read_text("utf-8"))["rows"]
    page = PAGE.read_text("utf-8")
    assert filled(page, rows) == page
