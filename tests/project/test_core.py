"""One decode takes the core, and no wing; one step takes a few of its functions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

import pybeam
from pybeam.backends import poison
from pybeam.engine.engine import Engine
from support.paths import ROOT

# neither may grow: what is new is a wing, or takes something's place
MOST_FILES, MOST_LINES = 95, 13_500
WINGS = {"catalogue", "cli", "compat", "corpus", "ctc", "diversity", "export", "hub"}
WINGS |= {
    "inspect",
    "ray",
    "reranking",
    "server",
    "serving",
    "shortlist",
    "speech",
    "study",
    "tasks",
}
DECODE = """
import json, sys, pybeam
folder = sys.argv[1]
tokenizer = pybeam.load_tokenizer(folder)
decoder = pybeam.Decoder(pybeam.load_model(folder), pybeam.fixed_beam(2), pybeam.Batch(1))
[result] = decoder.decode(tokenizer.encode(["Jesús lloró."]))
found = {name: module.__file__ for name, module in sys.modules.items() if name.startswith("pybeam.")}
print(json.dumps({name: file for name, file in found.items() if (file or "").endswith(".py")}))
"""


def test_a_decode_imports_no_wing():
    folder = ROOT / "examples" / "models" / "bible-es-en"
    command = [sys.executable, "-c", DECODE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    files = json.loads(done.stdout)
    assert not {name.split(".")[1] for name in files} & WINGS
    assert len(files) <= MOST_FILES
    lines = sum(Path(file).read_text("utf-8").count("\n") for file in files.values())
    assert lines <= MOST_LINES


# of pybeam's own functions, between the beginnings of two steps
MOST_FUNCTIONS, MOST_FUNCTION_FILES, MOST_CALLS = 45, 14, 90


def test_a_step_is_few_calls(monkeypatch):
    """A reader follows them through a plain beam on a CPU."""
    monkeypatch.setattr(poison, "IS_ON", False)
    monkeypatch.setattr(Engine, "_most_steps", lambda engine: 1)
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    folder = ROOT / "examples" / "models" / "bible-es-en"
    decoder = pybeam.Decoder(pybeam.load_model(folder), pybeam.fixed_beam(5), pybeam.Batch(4))
    sources = [pybeam.load_tokenizer(folder).encode(["Jesús lloró."])[0]] * 4
    decoder.decode(sources)
    steps: list[list[CodeType]] = [[]]

    def note(frame, event, _argument) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT / "pybeam")):
            if code.co_qualname == "Engine._advance":
                steps.append([])
            steps[-1].append(code)

    sys.setprofile(note)
    try:
        decoder.decode(sources)
    finally:
        sys.setprofile(None)
    # the second step claims no first pages, and the last one closes sources
    for calls in steps[3:-1]:
        assert len(calls) <= MOST_CALLS
        assert len(set(calls)) <= MOST_FUNCTIONS
        assert len({code.co_filename for code in calls}) <= MOST_FUNCTION_FILES
    assert len(steps) > 5
