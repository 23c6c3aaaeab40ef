"""How long a new user waits: seconds from `pip install` to the first output of README's first program.

python -m benchmarks.tools.first_output                              write results/first-output.json
python -m benchmarks.tools.first_output --torch torch==2.13.0+cpu    the same with the small torch

PIP_EXTRA_INDEX_URL says where pip finds that.

`make wheel` must have built our own wheels. pip fetches all others before the clock starts, since a network's
seconds are not ours. Each repeat has a fresh environment: `install_s` is pip's, from a folder of wheels to
files; `first_output_s` the program's first run, `again_s` its second; `total_s` is `install_s` and
`first_output_s`. `load` is that of the machine when a repeat began.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from benchmarks.journal import Journal, results_folder
from release.wheel_test import first_program

ROOT = Path(__file__).parents[2]
NAME = "pybeam-search[examples]"
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")


def fetch(folder: Path, wheels: Path, torch: str) -> None:
    """Fill a folder with all wheels that the installation needs."""
    download = ("download", "--dest", folder, "--find-links", wheels)
    subprocess.run([sys.executable, *PIP, *download, torch, NAME], check=True)


def seconds(*command: str | Path, cwd: Path) -> float:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    begin = time.perf_counter()
    subprocess.run(command, check=True, cwd=cwd, env=env, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measured(wheels: Path) -> dict[str, float]:
    """Install and run once, in a fresh environment."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        install = ("install", "--no-index", "--find-links", wheels, NAME)
        found = {"install_s": seconds(python, *PIP, *install, cwd=folder)}
        for run in ("first_output_s", "again_s"):
            found[run] = seconds(python, "-c", first_program(), cwd=folder)
    return {**found, "total_s": found["install_s"] + found["first_output_s"], "load": load}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="default: dist/")
    parser.add_argument("--torch", default="torch", metavar="REQUIREMENT", help="which torch")
    options = parser.parse_args()
    journal = Journal(results_folder("cpu"), "first-output", ("system",))
    with tempfile.TemporaryDirectory() as folder:
        fetch(Path(folder), options.wheels, options.torch)
        num_bytes = sum(path.stat().st_size for path in Path(folder).iterdir())
        runs = [measured(Path(folder)) for _ in range(options.repeats)]
    row = {key: round(statistics.median(one[key] for one in runs), 2) for key in runs[0]}
    journal.add({"system": NAME, "wheels_mb": round(num_bytes / 1e6), **row})
    journal.finish(journal.own_rows)


if __name__ == "__main__":
    main()
