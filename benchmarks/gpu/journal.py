"""The journal of the microbenchmarks: microseconds, bytes and the share of the copy rate."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import journal

IDENTITY = ("op", "shape", "dtype", "backend")


class Journal(journal.Journal):
    def measure(
        self, row: dict, time_it: Callable[[], float], num_bytes: int | None = None
    ) -> float | None:
        """Add a row with microseconds, or with the error that came instead."""

        def numbers() -> dict:
            us = time_it()
            columns = {"us": round(us, 2)}
            if num_bytes is not None:
                rate = num_bytes / us / 1e3
                columns["gb_per_s"] = round(rate, 1)
                if "copy_gb_per_s" in self.machine:
                    columns["of_copy"] = round(rate / self.machine["copy_gb_per_s"], 3)
            return columns

        measured = self.attempt(row, numbers)
        if measured is None:
            return None
        self.say("  ".join(f"{name}={value}" for name, value in {**row, **measured}.items()))
        return measured["us"]
