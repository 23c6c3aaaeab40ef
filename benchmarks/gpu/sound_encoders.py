"""Encoders of sound as CUDA graphs, beside the same encoders as operators.

    python -m benchmarks.gpu.sound_encoders [--seconds 60] [--only fireredasr copies] [--dry-run]

Networks have random weights and the shapes of published ones: Whisper's, and FireRedASR-AED-L's with two
layers in its decoder. They hear noise, windows of 30 seconds or recordings of 10. A call encodes one or
eight of them, and keeps what a decoder needs. Systems take turns, and times are medians: `µs` until the
device is done, `of the host` until the host may go on. Graphs have up to 4,096 positions, two windows, and
with "at once" all of them. `error` is the largest difference of keys and values from those of operators, as a
share of the largest of these. "copies" are what numbers cost on their way: `packed`, and the same copied to
new pinned memory. All goes to sound-encoders.json, in $OUT if that is set, else in
benchmarks/results/<gpu>/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

import pybeam
from benchmarks.journal import Journal, results_folder, table
from pybeam import backends
from pybeam.backends.pinned import Floats, packed
from pybeam.engine.workspace import Workspace
from pybeam.export import fireredasr
from pybeam.models.base import Model
from pybeam.models.transformer import captured

# hidden size, layers, heads; inner layers are four times as wide
SHAPES = {
    "whisper tiny": (384, 4, 6),
    "whisper base": (512, 6, 8),
    "whisper small": (768, 12, 12),
    "fireredasr": (1280, 16, 20),
}
COPIES = "copies"
DRY = {"whisper": (64, 1, 1), "fireredasr": (64, 1, 2)}
NUM_FEATURES, VOCAB_SIZE = 80, 1000
NUM_FRAMES = {"whisper": 3000, "fireredasr": 1000}
# positions at once
AS_USERS, AT_ONCE = captured.MOST_POSITIONS, 1 << 14
SYSTEMS = {"operators": (False, AS_USERS), "graphs": (True, AS_USERS), "at once": (True, AT_ONCE)}
LEAST_ROUNDS = 5


class Encoder:
    """Encodes windows as one system does."""

    def __init__(self, model: Model, num: int, uses_graphs: bool, most_positions: int) -> None:
        backend, is_on_gpu = backends.resolve("auto", model.device), model.device.type == "cuda"
        graphs = uses_graphs and is_on_gpu
        self._work = Workspace(model, pybeam.greedy(), backend, uses_graphs=graphs)
        self.session = self._work.session
        self.session.reserve(num + 1, 1, 16)
        self.session._most_tokens = most_positions
        if uses_graphs and not is_on_gpu:
            self.session.replay = lambda key, work, numbers: work(numbers)
        self._slots = list(range(1, num + 1))

    def __call__(self, windows: list[Tensor]) -> None:
        self.session.release(self._slots)
        self.session.encode(windows, range(len(windows)), self._slots)

    def kept(self) -> Tensor:
        """Keys and values of the first window, [layers, positions, 2, H, D]."""
        source = self.session._source
        cell = source.cell[1, : source.length[1]]
        return torch.stack([layer[cell] for layer in self.session._cross.both]).float()


def network(folder: Path, kind: str, shape: tuple[int, int, int], device: torch.device) -> Model:
    """Load a network with random weights."""
    torch.manual_seed(0)
    if kind == "whisper":
        save_whisper(folder, *shape)
    else:
        save_fireredasr(folder, *shape, device)
    return pybeam.load_model(folder, device=device, dtype="bfloat16")


def save_whisper(folder: Path, size: int, layers: int, heads: int) -> None:
    of_stack = dict(layers=layers, attention_heads=heads, ffn_dim=4 * size)
    config = transformers.WhisperConfig(
        vocab_size=VOCAB_SIZE,
        d_model=size,
        num_mel_bins=NUM_FEATURES,
        **{
            f"{stack}_{name}": n for name, n in of_stack.items() for stack in ("encoder", "decoder")
        },
        **{f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "decoder_start")},
    )
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)


def save_fireredasr(folder: Path, size: int, layers: int, heads: int, device: torch.device) -> None:
    sizes = dict(
        idim=NUM_FEATURES,
        odim=VOCAB_SIZE,
        d_model=size,
        n_head=heads,
        n_layers_enc=layers,
        n_layers_dec=2,
        kernel_size=33,
        pe_maxlen=5000,
        sos_id=3,
        eos_id=4,
        pad_id=2,
    )
    (folder / "config.json").write_text(json.dumps(fireredasr._config(sizes)))
    stored = fireredasr._layout(sizes, has_ctc=False).values()
    # 1.5 GB, which a CPU draws in ten seconds
    new = partial(torch.randn, dtype=torch.bfloat16, device=device)
    weights = {one.name: new(one.kept).mul_(0.02) for one in stored}
    save_file(weights, folder / "model.safetensors")


def in_turns(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, tuple]:
    """Return the medians of each call in microseconds, until the device is done and until the host is."""
    for call in calls.values():
        # a graph is captured when it comes for the second time
        for _ in range(3):
            call()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or min(map(len, times.values())) < LEAST_ROUNDS:
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            call()
            host = time.perf_counter()
            wait()
            times[name].append((time.perf_counter() - start, host - start))
    return {
        name: tuple(round(1e6 * statistics.median(own), 1) for own in zip(*rounds, strict=True))
        for name, rounds in times.items()
    }


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def encoded(name: str, model: Model, num: int, seconds: float) -> Iterator[dict]:
    """Rows of one network and so many windows."""
    generator = torch.Generator().manual_seed(num)
    shape = NUM_FRAMES[name.split()[0]], NUM_FEATURES
    windows = [torch.randn(shape, generator=generator) for _ in range(num)]
    encoders = {system: Encoder(model, num, *facts) for system, facts in SYSTEMS.items()}
    calls = {
        system: lambda encoder=encoder: encoder(windows) for system, encoder in encoders.items()
    }
    medians = in_turns(calls, seconds)
    expected = encoders["operators"].kept()
    for system, encoder in encoders.items():
        error = float((encoder.kept() - expected).abs().max() / expected.abs().max())
        us, host = medians[system]
        row = {"case": f"{name}, {num}", "system": system, "µs": us, "of the host, µs": host}
        yield {
            **row,
            "ratio": round(us / medians["operators"][0], 3),
            "largest difference": round(error, 5),
        }


def copied(device: torch.device, seconds: float) -> Iterator[dict]:
    """Rows of numbers on their way up: a window, and what a refill of text has."""
    window = torch.randn(NUM_FRAMES["whisper"], NUM_FEATURES).numpy()
    given = {
        "window": [Floats(window.shape, [window])],
        "few numbers": [np.arange(64), np.arange(512).reshape(4, 128), np.arange(4)],
    }

    def pinned(arrays: list) -> Tensor:
        whole = packed(arrays, torch.device("cpu"))
        return (whole.pin_memory() if device.type == "cuda" else whole).to(
            device, non_blocking=True
        )

    for name, arrays in given.items():
        calls = {
            "packed": lambda own=arrays: packed(own, device).to(device, non_blocking=True),
            "pin_memory": lambda own=arrays: pinned(own),
        }
        for system, (us, host) in in_turns(calls, seconds).items():
            yield {"case": name, "system": system, "µs": us, "of the host, µs": host}


@torch.inference_mode()
def measured(is_dry: bool, seconds: float, only: Sequence[str]) -> Iterator[dict]:
    device = torch.device("cpu" if is_dry else "cuda")
    captured.MOST_POSITIONS = AT_ONCE
    shapes, nums = (DRY, (1, 2)) if is_dry else (SHAPES, (1, 8))
    shapes = {name: shape for name, shape in shapes.items() if not only or name in only}
    each = seconds / (len(shapes) * len(nums) + 1)
    if not only or COPIES in only:
        yield from copied(device, each / 2)
    for name, shape in shapes.items():
        with tempfile.TemporaryDirectory() as folder:
            model = network(Path(folder), name.split()[0], shape, device)
        for num in nums:
            yield from encoded(name, model, num, each)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="of calls, all together")
    parser.add_argument("--only", nargs="+", choices=[*SHAPES, COPIES], default=(), help="some")
    parser.add_argument("--dry-run", action="store_true", help="a tiny one on the CPU, no file")
    options = parser.parse_args()
    keeps = not options.dry_run or "OUT" in os.environ
    with nullcontext() if keeps else tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if scratch else results_folder("cpu" if options.dry_run else "cuda")
        journal = Journal(folder, "sound-encoders", ("case", "system"))
        for row in measured(
            options.dry_run, 0.0 if options.dry_run else options.seconds, options.only
        ):
            journal.add(row)
        journal.finish()
        journal.say("\n" + table(journal.own_rows))


if __name__ == "__main__":
    main()
