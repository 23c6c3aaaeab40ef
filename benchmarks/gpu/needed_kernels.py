"""The Triton kernels that `make gpu-bench` and `make gpu-e2e` launch, recorded on tensors without memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import torch

import pybeam
from benchmarks.gpu import bench_norm, bench_rows, bench_select, bench_tree_attention
from benchmarks.gpu.bench_step import ALGORITHMS, LONGEST, SOURCE_TOKENS
from benchmarks.gpu.count_kernels import META, many_multiprocessors
from benchmarks.gpu.one_step import OneStep
from benchmarks.gpu.timing import Graphed
from pybeam import backends
from pybeam.backends import triton as triton_backend
from pybeam.models.base import Model
from tests.support.aot import Launch, distinct, recording

# sizes of what is measured; layers that are alike launch the same kernels
NETWORKS = {
    "example": dict(d_model=256, decoder_ffn_dim=1024, vocab_size=8000),
    "widened": dict(
        d_model=1024,
        decoder_ffn_dim=4096,
        vocab_size=42000,
        encoder_attention_heads=16,
        decoder_attention_heads=16,
    ),
}
ONE_LAYER = dict(encoder_layers=1, decoder_layers=1, max_position_embeddings=128)
DTYPES = {"example": ("bfloat16", "float32"), "widened": ("bfloat16",)}
SHAPES = ((64, 5), (1, 5), (64, 50), (128, 5), (16, 5), (128, 1))
SEARCHES: dict[str, Callable[[int], pybeam.Algorithm]] = {
    **ALGORITHMS,
    "greedy": lambda width: pybeam.greedy(max_length=LONGEST),
}


class Recorder:
    """In place of a timer and a journal: calls everything once, on tensors without memory."""

    device = META
    is_over = False
    own_rows: tuple[dict, ...] = ()

    def graph_of(self, calls, before=None) -> Graphed:
        calls[0]()
        return Graphed(1.0, None)

    def graphed_us(self, calls, before=None) -> float:
        return self.graph_of(calls).us

    eager_us = graphed_us

    def measure(self, row, time_it, num_bytes=None, *, check=None, expected=None) -> None:
        time_it()

    def add(self, row) -> None:
        """Rows are not kept."""

    def say(self, line) -> None:
        """Nobody is told."""


def of_benchmarks(record: Recorder, tiny: bool) -> None:
    """Make every call of the microbenchmarks but those of a whole step."""
    names = ["triton"]
    # it is loaded by name only where there is a GPU
    with patch.object(backends, "load", lambda name: triton_backend):
        bench_select.measure_first(record, record, names, tiny)
        bench_tree_attention.measure(record, record, names, tiny)
        bench_norm.measure(record, record, names, tiny)
        bench_rows.measure(record, record, names, tiny)
        bench_select.measure(record, record, names, tiny)


def of_steps(model: Model, shapes=SHAPES, searches=SEARCHES) -> None:
    """Open, step and close beams of all these searches and shapes."""
    for name, algorithm in searches.items():
        for num_beams, width in shapes:
            if (name == "greedy") != (width == 1):
                continue
            tokens = [[5] * SOURCE_TOKENS] * num_beams
            step = OneStep(model, algorithm(width), triton_backend, tokens, LONGEST)
            step()
            slots = list(range(1, 1 + num_beams))
            work = step.work
            work.state.finished(slots, [1] * num_beams, LONGEST, wants_log_probs=False)
            work.close(slots, num_beams)


def network(name: str, dtype: str, folder: Path) -> Model:
    """One layer of a network, without memory."""
    # it takes seconds to import
    from tests.support.tiny_models import save_tiny_model

    save_tiny_model(folder, "m2m_100", **{**ONE_LAYER, **NETWORKS[name]})
    return pybeam.load_model(folder, device=META, dtype=dtype)


def all_launches() -> list[Launch]:
    """One launch for each machine code that is needed."""
    launches: list[Launch] = []
    with recording(launches.append), torch.inference_mode(), many_multiprocessors():
        for name, dtypes in DTYPES.items():
            for dtype in dtypes:
                with tempfile.TemporaryDirectory() as folder:
                    of_steps(network(name, dtype, Path(folder)))
        of_benchmarks(Recorder(), tiny=False)
    return distinct(launches)


def by_name(launches: list[Launch]) -> Iterator[tuple[str, int]]:
    """The kernels, and how many variants there are of each."""
    names = [launch.kernel.__name__ for launch in launches]
    yield from sorted({name: names.count(name) for name in names}.items())
