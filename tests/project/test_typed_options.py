"""A type checker refuses what the searches would refuse when they are called."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support.paths import ROOT

RIGHT = """
import pybeam

first: pybeam.Algorithm = pybeam.fixed_beam(5, n_best=3, scoring=pybeam.scoring.power(1.0))
second: pybeam.Algorithm = pybeam.shrinking_beam(
    5, 2.0, ended_only=False, processors=[pybeam.processors.eos_penalty(0.5)]
)
request = pybeam.Request([1], max_length=pybeam.limits.SourceLimit(1.5), ended_only=True)
"""
# each line, and the message about it
WRONG = {
    "pybeam.fixed_beam(5, nbest=3)": 'Unexpected keyword argument "nbest" for "fixed_beam"; did you mean',
    'pybeam.greedy(min_length="3")': 'Argument "min_length" to "greedy" has incompatible type "str"',
    "pybeam.stochastic_beam(5, stop=pybeam.stopping.end())": 'Unexpected keyword argument "stop"',
    "pybeam.jacobi(lenght=3)": 'Unexpected keyword argument "lenght" for "jacobi"; did you mean',
    "pybeam.huang_beam()": 'Missing positional argument "width" in call to "huang_beam"',
}


@pytest.mark.slow
def test_mypy_knows_every_option(tmp_path):
    pytest.importorskip("mypy")
    path = tmp_path / "use.py"
    path.write_text(RIGHT + "\n".join(WRONG), encoding="utf-8")
    config = tmp_path / "mypy.ini"
    # reading torch would take most of the time
    config.write_text("[mypy]\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n", encoding="utf-8")
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", *options, f"--config-file={config}", str(path)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = dict(re.findall(r"use\.py:(\d+): error: (.*)", process.stdout))
    first = RIGHT.count("\n") + 1
    assert [int(line) for line in found] == list(range(first, first + len(WRONG))), process.stdout
    for said, expected in zip(found.values(), WRONG.values(), strict=True):
        assert said.startswith(expected)
