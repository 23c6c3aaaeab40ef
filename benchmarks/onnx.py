"""Models decoded by our kernels, by ONNX Runtime under our search, and by one ONNX graph, also in int8.

A translator on lines of text and a recogniser on spoken numbers, which espeak-ng synthesises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jiwer
import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch.nn.utils.rnn import pad_sequence

import pybeam
from benchmarks import corpus, speech
from benchmarks.plans import CHOSEN
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from benchmarks.translation import MAX_LENGTH, NORMALISED, Decoding
from pybeam.export import export_onnx

WIDTH, N = 5, 64


class Job(NamedTuple):
    """A model, our own and exported, and what it is given; `quality` is in percent."""

    model: object
    directory: Path
    exported: object
    graphs: dict[str, Path]  # by the algorithm, and with ", int8" behind it
    sources: Sequence
    pruning: tuple[float, int]  # threshold and candidates of the beam that prunes
    quality: Callable[[list[list[int]]], dict]


def onnx(setup: Setup) -> Iterator[list[Task]]:
    """A translator and a recogniser by our kernels, by ONNX Runtime under the engine, by one graph."""
    for name, load in (("text", _text), ("speech", _speech)):
        job = cache(lambda load=load, name=name: load(setup, setup.folder / f"onnx-{name}"))
        makers = {
            way: lambda make=make, job=job: Way(job(), make(job())) for way, make in WAYS.items()
        }
        yield in_turn(name, makers)


def _text(setup: Setup, folder: Path) -> Job:
    data = setup.corpus().first(setup.lines or 128)
    return _job(
        corpus.MODEL,
        folder,
        data.sources,
        CHOSEN[WIDTH],
        lambda outputs: {"BLEU": data.bleu(outputs)},
    )


def _speech(setup: Setup, folder: Path) -> Job:
    heard = speech.load_recordings(setup.lines or 512)

    def word_errors(outputs: list[list[int]]) -> dict:
        spoken = [heard.tokenizer.decode(tokens) for tokens in outputs]
        return {"WER": 100 * jiwer.wer(heard.texts, spoken)}

    return _job(speech.MODEL, folder, heard.sources, (2.5, 3), word_errors)


def _job(directory: Path, folder: Path, sources: Sequence, pruning, quality) -> Job:
    model = pybeam.load_model(directory, device="cpu", dtype="float32")
    job = Job(model, directory, model, {}, sources, pruning, quality)
    for name, algorithm in (("fixed", None), ("variable", _variable(job))):
        export_onnx(model, folder / name, algorithm)
        job.graphs[name] = folder / name / "search.onnx"
        job.graphs[f"{name}, int8"] = _quantised(job.graphs[name])
    return job._replace(exported=pybeam.load_model(folder / "fixed"))


def _quantised(graph: Path) -> Path:
    """Write the graph with int8 weights in its products, those within its loop too."""
    target = graph.with_name("search.int8.onnx")
    quantize_dynamic(
        graph,
        target,
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
    )
    return target


def _int8(job: Job):
    return pybeam.load_model(job.directory, device="cpu", dtype="int8")


def _limits(job: Job) -> dict:
    return dict(max_length=min(MAX_LENGTH, job.model.max_positions), scoring=NORMALISED)


def _fixed(job: Job):
    return pybeam.fixed_beam(WIDTH, **_limits(job))


def _variable(job: Job):
    return pybeam.variable_beam(WIDTH, *job.pruning, **_limits(job))


# the fixed beam in every way, and a beam that prunes in those that can
WAYS = {
    "fixed, pybeam": lambda job: Decoding(job.model, _fixed(job), pybeam.Batch(N)),
    "fixed, ONNX Runtime under the engine": lambda job: Decoding(
        job.exported, _fixed(job), pybeam.Batch(N)
    ),
    "fixed, pybeam, int8": lambda job: Decoding(_int8(job), _fixed(job), pybeam.Batch(N)),
    "fixed, one graph": lambda job: Graph(job.graphs["fixed"]),
    "fixed, one graph, int8": lambda job: Graph(job.graphs["fixed, int8"]),
    "variable, pybeam, Fifo": lambda job: Decoding(job.model, _variable(job), pybeam.Fifo(N)),
    "variable, ONNX Runtime under the engine, Fifo": lambda job: Decoding(
        job.exported, _variable(job), pybeam.Fifo(N)
    ),
    "variable, one graph": lambda job: Graph(job.graphs["variable"]),
    "variable, one graph, int8": lambda job: Graph(job.graphs["variable, int8"]),
}


class Way:
    """One way to decode one model's sources: what is timed."""

    def __init__(self, job: Job, decode: Callable[[Sequence], list[list[int]]]) -> None:
        self._job, self._decode = job, decode
        decode(job.sources[:2])

    def __call__(self) -> list[list[int]]:
        return self._decode(self._job.sources)

    def columns(self, timed: Timed) -> dict:
        rate = len(self._job.sources) / timed.seconds
        return {"sources/s": rate, **self._job.quality(timed.output)}


class Graph:
    """`search.onnx` on batches of N sources of like length, ids or features."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(path, options)
        self._names = [one.name for one in self._session.get_inputs()]

    def __call__(self, sources: Sequence) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in sources]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        for start in range(0, len(order), N):
            part = order[start : start + N]
            padded = pad_sequence([torch.as_tensor(sources[i]) for i in part], batch_first=True)
            inputs = (
                padded.numpy(),
                np.array([len(sources[i]) for i in part]),
                np.array(WIDTH),
                np.array(MAX_LENGTH),
                np.array(NORMALISED.alpha, dtype=np.float32),
            )
            given = dict(zip(self._names, inputs, strict=True))
            tokens, found, *_ = self._session.run(None, given)
            for line, length, i in zip(tokens[:, 0], found[:, 0], part, strict=True):
                outputs[i] = line[:length].tolist()
        return outputs
