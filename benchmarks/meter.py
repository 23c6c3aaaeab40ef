"""The costs of a run besides time: memory and energy."""

from __future__ import annotations

import gc
from functools import cached_property
from pathlib import Path

import torch

GIGA = 1e9
STATUS = Path("/proc/self/status")


class Meter:
    """Reads a GPU's counters; on a CPU there is nothing that one process could tell of one system."""

    def __init__(self, device: str) -> None:
        self.is_cuda = torch.device(device).type == "cuda"

    def allocated_bytes(self) -> int:
        """Memory in use on the GPU; 0 on a CPU."""
        if not self.is_cuda:
            return 0
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    def restart_peak(self) -> None:
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated() if self.is_cuda else 0

    def joules(self) -> float | None:
        """Energy the GPU has used since its driver was loaded, if NVML can be asked."""
        if self._handle is None:
            return None
        import pynvml

        return pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3

    @cached_property
    def _handle(self):
        if not self.is_cuda:
            return None
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except Exception:  # there are many ways not to have it, and each means: no energy
            return None
        return handle


def resident_bytes(line: str = "VmRSS", status: Path = STATUS) -> int:
    """Memory that this process, or the one of a `status` file, occupies or has at most occupied (``VmHWM``).

    `getrusage` would not do: its peak includes that of the process that started this one.

    Raises:
        OSError: there is no /proc, which Linux alone has.
    """
    lines = status.read_text().splitlines()
    return next(1024 * int(text.split()[1]) for text in lines if text.startswith(f"{line}:"))
