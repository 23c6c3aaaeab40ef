"""A session of benchmarks: the cases and systems that it measures, their order, and its end."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.journal import Journal
from benchmarks.kernels import kernel
from benchmarks.kernels.kernel import OURS, Case, Kernel
from pybeam import backends

IDENTITY = ("op", "shape", "dtype", "backend", "isa", "threads")
# worth most on a GPU, should time run out
FIRST = ("bench_step", "bench_select", "bench_tree_attention")


class Plan:
    """Made of the options of pytest; see `conftest.py`."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.getoption
        self.kind = option("device") or ("cuda" if torch.cuda.is_available() else "cpu")
        self.is_tiny = option("tiny") or option("trial_of_cuda")
        if option("trial_of_cuda"):
            self.kind = "cpu"
        self.device = torch.device(self.kind)
        self.like_cuda = self.kind == "cuda" or option("trial_of_cuda")
        self.threads = None if self.kind == "cuda" else option("threads")
        minutes = option("minutes")
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        # why systems are not here, and the ops that they would have computed
        self.absent: dict[str, set[str]] = {}
        self.journal: Journal | None = None
        if folder := option("journal"):
            name = "gpu-bench" if self.like_cuda else "kernels-cpu"
            settings = {"tiny": self.is_tiny, "threads": self.threads}
            self.journal = Journal(folder, name, IDENTITY, settings, minutes)

    @property
    def is_over(self) -> bool:
        return self._end is not None and time.monotonic() > self._end

    def cases(self, own: type[Kernel]) -> list[Case]:
        cases = own.cases.cuda if self.like_cuda else own.cases.cpu
        if cases is None:
            return []
        if self.is_tiny:
            return list(own.cases.tiny)
        return [*cases, *(own.late if self.like_cuda else ())]

    def systems(self, own: type[Kernel], case: Case) -> list[tuple[str, str]]:
        """Backends or peers, each with its instruction set, "" if that makes no difference."""
        # Triton runs on a CPU only in its interpreter, to try it out
        on_cpu = {"native": own.cases.cpu is not None, "triton": own.cases.cuda is not None}
        ours = own.on_cuda if self.kind == "cuda" else [name for name in OURS if on_cpu[name]]
        found = []
        for name in ours:
            if name not in backends.available():
                continue
            is_cpu_code = name == "native" and self.kind == "cpu"
            isas = kernel.known_isas(own.isas(case.dtype)) if is_cpu_code else [""]
            # one stands for all
            found += [(name, isa) for isa in (isas[-1:] if self.is_tiny else isas)]
        peers = own.peers("cuda" if self.like_cuda else "cpu", case)
        return found + [(name, "") for name in peers]


def worth(item: pytest.Item) -> tuple[bool, bool, int]:
    """Smaller if it is measured earlier: what compiles for seconds, then what was left for late, are last."""
    parameters = item.callspec.params
    if not isinstance(parameters["backend"], str):
        # its kernel has no case on this device, and pytest skips it
        return True, True, len(FIRST)
    case = Case(parameters["dtype"], parameters["size"])
    is_late = case in item.function.kernel.late
    stem = item.path.stem
    place = FIRST.index(stem) if stem in FIRST else len(FIRST)
    return is_late, "compile" in parameters["backend"], place
