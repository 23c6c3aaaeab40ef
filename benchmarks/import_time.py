"""Times `import pybeam` beside `import torch`, in fresh interpreters that take turns.

python -m benchmarks.import_time [--repeats 9]

`import pybeam` loads nothing; `first use` also takes the names that a translation needs, which loads
torch and the kernels.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from benchmarks.journal import Journal, results_folder

PROGRAMS = {
    "import torch": "import torch",
    "import pybeam": "import pybeam",
    "first use": "import pybeam; pybeam.Decoder, pybeam.fixed_beam, pybeam.load_model, "
    "pybeam.load_tokenizer; from pybeam import backends; backends.available()",
}
# the interpreter's own start does not count
CLOCK = "import time; begin = time.perf_counter(); {}; print(time.perf_counter() - begin)"


def seconds(program: str) -> float:
    command = [sys.executable, "-c", CLOCK.format(program)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(repeats + 1):  # the first round reads files that later ones find in memory
        for name, program in PROGRAMS.items():
            taken[name].append(seconds(program))
    medians = {name: statistics.median(values[1:]) for name, values in taken.items()}
    journal = Journal(results_folder("cpu"), "import-time", ("program",))
    for name, median in medians.items():
        ratio = round(median / medians["import torch"], 3)
        journal.add({"program": name, "seconds": round(median, 4), "of import torch": ratio})
    journal.finish(journal.own_rows)


if __name__ == "__main__":
    main()
