"""The program that times exchanges between the blocks of a launch is compiled, and its output read."""

from __future__ import annotations

import pytest

pytest.importorskip("tabulate")

from benchmarks.gpu import cross_build, exchange


@pytest.mark.slow
def test_the_program_is_compiled(tmp_path):
    try:
        cross_build.toolkit()
    except cross_build.CannotBuild as error:
        pytest.skip(str(error))
    assert exchange.compiled(tmp_path).exists()


def test_lines_are_rows():
    output = "places\t256\t64\t1940\na counter\t1024\t128\t1720\n"
    assert list(exchange.rows_of(output)) == [
        {"case": "5 rows of 256", "system": "places, packs 64 bytes apart", "µs": 1.94},
        {"case": "5 rows of 1024", "system": "a counter, packs 128 bytes apart", "µs": 1.72},
    ]
