"""The journal of the microbenchmarks: microseconds, bytes, the share of the copy rate, and the forecast."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import journal
from benchmarks.gpu.expected import Expected, of_bytes
from benchmarks.gpu.timing import Graphed

IDENTITY = ("op", "shape", "dtype", "backend")


class WrongResult(Exception):
    """A kernel does not compute what its reference does, so its time says nothing."""


class Journal(journal.Journal):
    def measure(
        self,
        row: dict,
        time_it: Callable[[], float | Graphed],
        num_bytes: int | None = None,
        *,
        check: Callable[[], object] | None = None,
        expected: Expected | None = None,
    ) -> float | None:
        """Add a row with microseconds, or with the error that came instead.

        Args:
            num_bytes: what must be read and written.
            check: raises if the result is wrong; it is called first.
            expected: the forecast; by default one kernel that moves `num_bytes`.
        """

        def numbers() -> dict:
            if check is not None:
                check()
            timed = time_it()
            us, nodes = timed if isinstance(timed, Graphed) else (timed, None)
            columns = {"us": round(us, 2)}
            if nodes is not None:
                columns["nodes"] = nodes
            if num_bytes is not None:
                rate = num_bytes / us / 1e3
                columns["gb_per_s"] = round(rate, 1)
                if "copy_gb_per_s" in self.machine:
                    columns["of_copy"] = round(rate / self.machine["copy_gb_per_s"], 3)
            forecast = expected or (None if num_bytes is None else of_bytes(num_bytes))
            return columns | (forecast.columns(us) if forecast else {})

        measured = self.attempt(row, numbers)
        if measured is None:
            return None
        self.say("  ".join(f"{name}={value}" for name, value in {**row, **measured}.items()))
        return measured["us"]


def same(ours, theirs, tolerance: float | None = None) -> None:
    """Compare tensors, or tuples of them. Raises WrongResult.

    Args:
        tolerance: of floats, as a share of the largest number; None: all must be equal.
    """
    if isinstance(ours, tuple | list):
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, tolerance)
        return
    ours, theirs = ours.detach().to(theirs.device).double(), theirs.detach().double()
    if ours.shape != theirs.shape:
        raise WrongResult(f"the shape is {tuple(ours.shape)}, and must be {tuple(theirs.shape)}")
    # equal infinities have no difference
    apart = (ours - theirs).abs().masked_fill(ours == theirs, 0)
    finite = theirs.masked_fill(~theirs.isfinite(), 0)
    allowed = (tolerance or 0) * float(finite.abs().amax()) if finite.numel() else 0
    num_wrong = int((~(apart <= allowed)).sum())
    if num_wrong:
        raise WrongResult(
            f"{num_wrong} of {ours.numel()} numbers are wrong, by up to {apart.max():.3g}"
        )
