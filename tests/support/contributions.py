"""The steps of `CONTRIBUTING.md`, taken for a processor, an algorithm and a kernel of no use.

A step is a list of edits. A test follows all steps in a clone, and then leaves one out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT


class Edit(NamedTuple):
    """Text that is put in front of the only place of `before`; at the end of the file without one."""

    path: str
    text: str
    before: str = ""

    def make(self, root: Path) -> None:
        path = root / self.path
        old = path.read_text("utf-8") if path.exists() else ""
        if not self.before:
            path.write_text(old + self.text, "utf-8")
            return
        assert old.count(self.before) == 1, f"{self.path}: {self.before}"
        path.write_text(old.replace(self.before, self.text + self.before), "utf-8")


class Clone:
    """A copy of the working tree, without what git ignores but with the extension."""

    def __init__(self, root: Path) -> None:
        self.root = root
        subprocess.run(["git", "clone", "-q", str(ROOT), str(root)], check=True)
        listed = ["git", "ls-files", "-z", "-m", "-o", "--exclude-standard"]
        changed = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, changed.stdout.split("\0")):
            if (ROOT / name).exists():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        for built in (ROOT / "pybeam").glob("_C*.so"):
            shutil.copy2(built, root / "pybeam" / built.name)

    def call(self, *command: str) -> subprocess.CompletedProcess:
        """Run Python with these arguments, and modules of the clone before those of the tree."""
        paths = (self.root, self.root / "tests", self.root / "packages" / "client")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        # objects that another tree has compiled are those of the clone
        environment |= {"CCACHE_BASEDIR": str(self.root), "CCACHE_NOHASHDIR": "1"}
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def failed(self, tests: Iterable[str], *options: str) -> set[str]:
        """Run these tests. Returns the functions that failed, or the last lines if none could run."""
        command = "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *options
        done = self.call(*command, *tests)
        names = set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", done.stdout, re.M))
        return names if names or done.returncode == 0 else {done.stdout[-2000:]}

    def formatted(self) -> str:
        """Repair the style, as `make fmt` does, and return what is left to say."""
        self.call("-m", "ruff", "check", "-q", "--fix", ".")
        self.call("-m", "ruff", "format", "-q", ".")
        return self.call("-m", "ruff", "check", "-q", ".").stdout

    def follow(self, steps: Mapping[str, list[Edit]], without: str = "") -> None:
        """Make the edits of all steps but one, in a tree that is as it was cloned."""
        for name in {edit.path for edits in steps.values() for edit in edits}:
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, self.root / name)
            else:
                (self.root / name).unlink(missing_ok=True)
        for name, edits in steps.items():
            for edit in edits if name != without else ():
                edit.make(self.root)


PROCESSOR = {
    "class": [
        Edit(
            "pybeam/processors/odd.py",
            '''"""`odd_penalty`: a penalty for every second token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import real
from pybeam.models.rows import Rows
from pybeam.processors.base import Processor


@dataclass(frozen=True)
class OddPenalty(Processor):
    penalty: float
    per_request: ClassVar[tuple[str, ...]] = ("penalty",)

    def __post_init__(self) -> None:
        real("penalty", self.penalty)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.penalty),)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        logits[:, 1::2] -= data[0][:, None]
        return logits


def odd_penalty(penalty: float) -> OddPenalty:
    """Subtract a penalty from the logits of odd tokens: ``logit[v] -= penalty * (v % 2)``.

    Per request: the penalty.

    Raises:
        TypeError: the penalty is no number.
    """
    return OddPenalty(penalty)
''',
        ),
        Edit(
            "pybeam/processors/__init__.py",
            "    from pybeam.processors.odd import odd_penalty as odd_penalty\n",
            "    from pybeam.processors.penalties import biased_prefix as",
        ),
        Edit(
            "pybeam/processors/__init__.py",
            '    "odd": "odd_penalty",\n',
            '    "penalties": "biased_prefix',
        ),
    ],
    "oracle": [
        Edit(
            "tests/support/processor_oracles.py",
            "def odd_penalty(x, tokens, forced, penalty):\n"
            "    return [v - penalty * (i % 2) for i, v in enumerate(x)]\n\n\n",
            "def eos_penalty(",
        ),
        Edit(
            "tests/processors/test_processors.py",
            '    "odd_penalty": (processors.odd_penalty(0.7), (oracles.odd_penalty, 0.7)),\n',
            '    "eos_penalty": (processors',
        ),
        Edit(
            "tests/law/oracle.py",
            '    "OddPenalty": lambda p: (oracles.odd_penalty, p.penalty),\n',
            '    "TokenPenalty": lambda p',
        ),
    ],
    "axis": [
        Edit(
            "tests/law/axes.py",
            '    "odd_penalty": lambda model: [processors.odd_penalty(0.7)],\n',
            '    "repetition_penalty": lambda model: [processors.repetition_penalty(1.4)]',
        ),
    ],
    "page": [
        Edit(
            "docs/reference/processors.md",
            ".. autofunction:: pybeam.processors.odd_penalty\n\n",
            ".. autofunction:: pybeam.processors.token_penalty\n",
        ),
    ],
}
ALGORITHM = {
    "row": [
        Edit(
            "pybeam/search/beams.py",
            '''@documented(SearchOptions)
def near_beam(width: Width, **options: Unpack[SearchOptions]) -> Algorithm:
    """Beam search in which a candidate is dropped a nat below the best one.

    Args:
        width: rows of the beam at most, 1 to 4,096, or a sequence of them, one for each of the first steps.
        options: see below.

    See Freitag and Al-Onaizan 2017.
    """
    return build_algorithm(width, Finishing.HELD, options, Pruning(1.0))


''',
            '@documented(SearchOptions, stop="optimal()", ended_only="True")\ndef optimal_beam(',
        ),
    ],
    "export": [
        Edit(
            "pybeam/__init__.py",
            "    from pybeam.search.beams import near_beam as near_beam\n",
            "    from pybeam.search.beams import optimal_beam as",
        ),
        Edit(
            "pybeam/__init__.py",
            '    "near_beam": "search.beams",\n',
            '    "optimal_beam": "search',
        ),
        Edit(
            "tests/project/defaults.toml",
            "'pybeam.near_beam' = '''n_best=1, min_length=0, max_length=None, scoring=raw(), "
            "processors=(), stop=count(), prefix=FREE, ended_only=False'''\n",
            "'pybeam.ops.backtrace' = ",
        ),
    ],
    "oracle": [
        Edit(
            "tests/law/oracle.py",
            '    "near_beam": "held",\n',
            '    "variable_beam": "held"',
        ),
    ],
    "axis": [
        Edit(
            "tests/law/axes.py",
            '    "near_beam": lambda: pybeam.near_beam(3, **_OPTIONS),\n',
            '    "shrinking_beam": lambda: pybeam',
        ),
    ],
    "page": [
        Edit(
            "docs/reference/algorithms.md",
            ".. autofunction:: pybeam.near_beam\n\n",
            ".. autofunction:: pybeam.shrinking_beam\n",
        ),
    ],
}
# the stubs of a kernel, filled: what stands in the files, and what is written in its place
KERNEL = {
    "pybeam/backends/reference.py": (
        'raise NotImplementedError("write the plainest torch code of `smooth` that is right")',
        "return x * 0.5",
    ),
    "csrc/cpu/smooth.cpp": ("std::numeric_limits<float>::quiet_NaN()", "row_of_x[i] * 0.5f"),
    "triton_kernels/smooth.py": ('b_x + float("nan")', "b_x * 0.5"),
    "tests/ops/test_smooth.py": (
        'raise NotImplementedError("write `smooth` of one row in plain Python")',
        "return [number / 2 for number in row]",
    ),
    "benchmarks/kernels/bench_smooth.py": (
        'raise NotImplementedError("write the fastest `smooth` of torch")',
        "return x * 0.5",
    ),
}
KERNEL_TOO = {
    "csrc/cpu/smooth.cpp": (
        "        float* out =",
        "        const float* row_of_x = p.x + row * p.row_stride;\n        float* out =",
    ),
    "tests/ops/test_smooth.py": (
        'pytest.fail("write numbers of the contract here, ties included")',
        "x = torch.tensor([[1.0, 4.0]])\n"
        "    assert ops.smooth(x, backend=backend).tolist() == [[0.5, 2.0]]",
    ),
}
