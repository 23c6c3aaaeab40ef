"""Install one wheel, without a compiler, beside several versions of torch and Python, and try it.

    python -m release.wheel_test [--wheel FILE] [--torch 2.11.0 ...] [--python 3.11 ...]

Every pair gets a fresh environment, which is deleted afterwards: torch as pip finds it (several
gigabytes of CUDA libraries each, on Linux), then the wheel and that of the example models, then
README's first program, the demo and the tests of release/smoke.txt. Prints the matrix, and writes
it to benchmarks/results/wheel.json, which keeps the rows of other pairs. A version of Python that
this machine lacks is a row of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from benchmarks.sources import measured_by

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "wheel.json"
TORCHES = ("2.11.0", "2.13.0", "2.15.0")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# no test may take longer
LIMIT = 1800
IMPORTS = """
import json, time
begin = time.perf_counter()
import pybeam
light = time.perf_counter() - begin
import torch
begin = time.perf_counter()
from pybeam import backends
backends.load("native")
kernels = time.perf_counter() - begin
print(json.dumps({"pybeam": pybeam.__file__, "build": torch.__version__, "isa": torch.ops.pybeam.isa(),
                  "import seconds": round(light, 4), "kernels' seconds": round(kernels, 3)}))
"""


class Failure(Exception):
    """A command that failed, with the end of what it said."""


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or one of pyenv's."""
    places = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    places += sorted(str(path) for path in pyenv.glob(f"{version}.*/bin/python"))
    for place in filter(None, places):
        said = subprocess.run([place, "--version"], capture_output=True, text=True).stdout
        if said.startswith(f"Python {version}."):
            return place
    return None


def run(command: list, env: dict[str, str], cwd: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env=env,
        cwd=cwd,
        timeout=LIMIT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise Failure("\n".join(done.stdout.splitlines()[-30:]))
    return done.stdout


def tried(wheel: Path, python: str, torch: str) -> dict:
    """Install and try the wheel once; the row says how far it came."""
    row: dict = {"torch": torch, "passed": False}
    with tempfile.TemporaryDirectory() as folder:
        bin_ = Path(folder, "venv", "bin")
        # nothing but the environment is on the path; a folder that a script stands in does not count
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env |= {
            "PATH": str(bin_),
            "CC": "/nowhere/cc",
            "CXX": "/nowhere/c++",
            "PYTHONSAFEPATH": "1",
        }
        env |= {"PYBEAM_EXPECT_NATIVE": "1", "OMP_WAIT_POLICY": "passive"}
        pip = [bin_ / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        try:
            row["step"] = "torch"
            run([python, "-m", "venv", Path(folder, "venv")], env, folder)
            run([*pip, "--no-cache-dir", f"torch=={torch}"], env, folder)
            row["step"] = "install"
            begin = time.perf_counter()
            run([*pip, "--only-binary=:all:", wheel, *examples(wheel.parent)], env, folder)
            row["install seconds"] = round(time.perf_counter() - begin, 1)
            row["step"] = "import"
            row |= json.loads(run([bin_ / "python", "-c", IMPORTS], env, folder).splitlines()[-1])
            if not row.pop("pybeam").startswith(folder):
                raise Failure("another pybeam was imported than the one that was installed")
            row["step"] = "first program"
            if examples(wheel.parent):
                run([bin_ / "python", "-c", first_program()], env, folder)
            row["step"] = "demo"
            run([bin_ / "python", ROOT / "examples" / "demo.py"], env, folder)
            run([bin_ / "pybeam", "info"], env, folder)
            row["step"] = "smoke"
            run([*pip, "pytest>=8"], env, folder)
            said = run([bin_ / "pytest", *smoke()], env, folder)
            row["smoke"] = said.splitlines()[-1]
            row |= {"step": "all", "passed": True}
        except (Failure, subprocess.TimeoutExpired) as error:
            row["error"] = str(error)
    return row


def examples(dist: Path) -> list[Path]:
    """The wheel of the example models, if `make wheel` has built it there."""
    return sorted(dist.glob("pybeam_search_examples-*.whl"))


def first_program() -> str:
    """The first program of README.md."""
    _, _, rest = (ROOT / "README.md").read_text("utf-8").partition("```python\n")
    return rest.partition("```")[0]


def smoke() -> list[str]:
    """The arguments of pytest."""
    files = (ROOT / "release" / "smoke.txt").read_text("utf-8").split()
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    return [*options, f"--rootdir={ROOT}", *(str(ROOT / name) for name in files)]


def matrix(rows: list[dict]) -> str:
    """The tests that passed, a line per version of Python and a column per torch."""
    torches = list(dict.fromkeys(row["torch"] for row in rows))
    lines = ["python    " + "".join(f"{f'torch {torch}':<16}" for torch in torches)]
    for python in dict.fromkeys(row["python"] for row in rows):
        cells = {row["torch"]: row for row in rows if row["python"] == python}
        words = [_word(cells.get(torch)) for torch in torches]
        lines.append(f"{python:<10}" + "".join(f"{word:<16}" for word in words))
    return "\n".join(lines)


def _word(row: dict | None) -> str:
    if row is None:
        return ""
    return "passed" if row["passed"] else row.get("missing") or f"failed: {row['step']}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, help="default: the one in dist/")
    parser.add_argument("--torch", nargs="+", default=TORCHES, metavar="VERSION")
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="VERSION")
    parser.add_argument("--output", type=Path, default=RECORD, metavar="FILE")
    options = parser.parse_args()
    built = (ROOT / "dist").glob("pybeam_search-*.whl")
    wheels = [options.wheel] if options.wheel else sorted(built)
    if len(wheels) != 1:
        parser.error(
            f"there must be one wheel in dist/, but there are {len(wheels)}: run `make wheel`"
        )
    wheel = wheels[0].resolve()
    rows: list[dict] = []
    for python in options.python:
        found = interpreter(python)
        for torch in options.torch:
            row = {"python": python, "torch": torch, "passed": False, "missing": "no Python"}
            if found:
                row = {"python": python, **tried(wheel, found, torch)}
            rows.append(row)
            print(json.dumps({k: v for k, v in row.items() if k != "error"}), flush=True)
            print(row.get("error", ""), file=sys.stderr, flush=True)
            write(options.output, wheel, rows)
    print(matrix(rows))
    return not all(row["passed"] or "missing" in row for row in rows)


def write(path: Path, wheel: Path, rows: list[dict]) -> None:
    """Write the rows of this run. Pairs that it has not tried keep the rows of earlier runs."""
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {"runs": {}, "rows": []}
    tried_now = [(row["python"], row["torch"]) for row in rows]
    others = [row for row in kept["rows"] if (row["python"], row["torch"]) not in tried_now]
    runs = {run: kept["runs"][run] for run in dict.fromkeys(row["run"] for row in others)}
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    name = str(max(map(int, runs), default=0) + 1)
    runs[name] = {
        "command": "make wheel-test",
        "date": date.today().isoformat(),
        "commit": commit,
        "system": re.sub(r"-v\d+", "", platform.platform()),
        "wheel": wheel.name,
        "bytes": wheel.stat().st_size,
    }
    record = {
        "measures": list(measured_by("wheel")),
        "runs": runs,
        "rows": [*others, *({**row, "run": name} for row in rows)],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
