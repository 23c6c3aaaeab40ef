"""Every case of every benchmark starts, and so does every command."""

import subprocess
import sys

import pytest

pytest.importorskip("tabulate")

from benchmarks import smoke
from support.paths import ROOT

# processes that others start, and what builds, downloads or draws
OTHERS = {
    *("catalogue", "corpus_runs", "gpu.ctranslate2_process", "memory", "offline", "peer_server"),
    *("named_threads", "plain_server"),
    *("worker", "wrapped", "tools.data", "gpu.cross_build", "gpu.pack", "gpu.unpack", "plots"),
    *("gpu.flashinfer_kernels", "gpu.code_time", "gpu.emulated_lines", "gpu.interpreted_lines"),
    *("tools.first_output", "tools.loading", "tools.ssru", "tools.constrained_steps"),
    *("tools.instructions", "gpu.layers_time", "gpu.exchange"),
}


def test_every_command_is_tried():
    folder = ROOT / "benchmarks"
    found = {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__main__")
        for path in folder.rglob("*.py")
        if '__name__ == "__main__"' in path.read_text("utf-8")
    }
    assert found - {"__main__"} == OTHERS | set(smoke.COMMANDS)


@pytest.mark.parametrize(
    ("code", "failed", "said"),
    [
        ("", 0, " s): starts"),
        ("raise ImportError('No module named x')", 0, "left out: ImportError: No module named x"),
        ("raise KeyError('models')", 1, "FAILED: "),
        (
            "import os; open(os.environ['OUT'] + '/a.json', 'w').write("
            '\'{"rows": [{"case": "b", "error": "ValueError: 5"}]}\')',
            1,
            "FAILED: b: ValueError: 5",
        ),
    ],
)
def test_what_fails_is_told_from_what_is_missing(monkeypatch, tmp_path, capsys, code, failed, said):
    (tmp_path / "a_job.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(smoke, "_jobs", lambda *_: {"a": ["a_job"]})
    # this job needs none of them
    monkeypatch.setattr(smoke, "IMPORTED", [])
    assert smoke.smoke(["a"], tmp_path) == failed
    assert said in capsys.readouterr().out


@pytest.mark.slow
def test_everything_starts():
    command = [sys.executable, "-m", "benchmarks", "--smoke"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
