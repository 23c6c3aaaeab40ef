"""One decode takes the core, and no wing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

# neither may grow: what is new is a wing, or takes something's place
MOST_FILES, MOST_LINES = 115, 16_200
WINGS = {"catalogue", "cli", "compat", "corpus", "diversity", "export", "inspect", "ray"}
WINGS |= {"reranking", "server", "serving", "speech"}
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
