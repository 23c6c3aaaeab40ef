"""faster-whisper's own tests, with the import changed, where a clone of it is given.

``FASTER_WHISPER_SOURCE=path pytest tests/compat/faster_whisper/test_faster_whisper_own_tests.py`` copies them
out of the clone, with the recordings beside them, and runs them; models come from the hub. Without a network,
``FASTER_WHISPER_MODEL=path`` gives the folder of `tiny.en`, which then stands for `tiny`, too.
docs/coming-from/faster-whisper.md has the table.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

CLONE, MODEL = (os.environ.get(f"FASTER_WHISPER_{name}") for name in ("SOURCE", "MODEL"))
# what they say of `tiny` and of the hub is nothing that `tiny.en` without a network could show
OF_OTHERS = {
    "test_transcribe": "the text is that of `tiny`",
    "test_vad": "the text is that of `tiny`",
    "test_cliptimestamps_segments": "the text is that of `tiny`",
    "test_cliptimestamps_timings": "the text is that of `tiny`",
    "test_batched_transcribe": "the language is heard",
    "test_multilingual_transcription": "the languages are heard",
    "test_empty_audio": "the language is heard",
    "test_download_model": "it downloads a model",
    "test_download_model_in_cache": "it downloads a model",
}
# in a clone without its largest recording, which is the fixture `physcisworks_path`
LARGE = "physicsworks.wav"
IMPORT = re.compile(r"^from faster_whisper import", re.MULTILINE)
TEST = re.compile(r"^def (test_\w+)\((.*)\):", re.MULTILINE)


@pytest.mark.skipif(CLONE is None, reason="FASTER_WHISPER_SOURCE names no clone of faster-whisper")
def test_its_own_tests_pass(tmp_path):
    assert CLONE is not None
    source, wanted = Path(CLONE, "tests"), []
    (tmp_path / "data").symlink_to((source / "data").resolve())
    has_large = (source / "data" / LARGE).exists()
    # those of its tokenizer are about inner classes
    for file in ("conftest.py", "test_transcribe.py", "test_utils.py"):
        text = (source / file).read_text("utf-8")
        text = IMPORT.sub("from pybeam.compat.faster_whisper import", text)
        (tmp_path / file).write_text(text, "utf-8")
        for name, fixture in TEST.findall(text):
            if (has_large or fixture != "physcisworks_path") and not (MODEL and name in OF_OTHERS):
                wanted.append(f"{file}::{name}")
    if MODEL:
        # a folder goes before a name of the hub
        for name in ("tiny", "tiny.en"):
            (tmp_path / name).symlink_to(Path(MODEL).resolve())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *wanted]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
