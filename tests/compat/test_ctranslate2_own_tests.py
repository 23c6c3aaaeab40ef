"""CTranslate2's own tests of its Translator, with the import changed, where a clone of it is given.

``CTRANSLATE2_SOURCE=path pytest tests/compat/test_ctranslate2_own_tests.py`` copies them out of the clone,
with the small model beside them, and runs them. docs/coming-from/ctranslate2.md has the table.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

CLONE = os.environ.get("CTRANSLATE2_SOURCE")
# name -> why it says nothing about pybeam
NOT_APPLICABLE = {
    "test_random_sampling": "which tokens a seed draws is CTranslate2's own",
    "test_score_api": "numbers of six digits are compared to four, of which float32 leaves three",
    "test_logging": "CTranslate2 logs from C++ to stderr",
}
IMPORT = re.compile(r"^import ctranslate2$", re.MULTILINE)


@pytest.mark.skipif(CLONE is None, reason="CTRANSLATE2_SOURCE names no clone of CTranslate2")
def test_its_own_tests_pass(tmp_path):
    assert CLONE is not None
    source, own = Path(CLONE, "python", "tests"), tmp_path / "python" / "tests"
    own.mkdir(parents=True)
    for name in ("conftest.py", "test_utils.py", "test_translator.py"):
        text = (source / name).read_text("utf-8")
        (own / name).write_text(IMPORT.sub("from pybeam.compat import ctranslate2", text), "utf-8")
    models = tmp_path / "tests" / "data" / "models"
    # they look whether other models are there, too, which they then do without
    (models / "transliteration-aren-all").mkdir(parents=True)
    (models / "v2").symlink_to(Path(CLONE, "tests", "data", "models", "v2").resolve())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_translator.py"]
    for name in NOT_APPLICABLE:
        command += ["--deselect", f"test_translator.py::{name}"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=own, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
