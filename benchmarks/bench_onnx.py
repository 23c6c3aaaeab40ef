"""Models decoded in three ways: by our kernels, by ONNX Runtime under our search, by one ONNX graph.

A translator on lines of text and a recogniser on spoken numbers, which espeak-ng synthesises.

python -m benchmarks.bench_onnx [--lines 128] [--recordings 512] [--n 64] [--width 5] [--repeats 3]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
import onnxruntime
import torch
from torch.nn.utils.rnn import pad_sequence

import pybeam
from benchmarks import corpus, report
from benchmarks.bench_translate import CHOSEN_ON_DEV, MAX_LENGTH, NORMALISED, Ours
from examples.speech.spoken_numbers import recordings
from pybeam.export import export_onnx
from pybeam.speech import load_feature_extractor

RECOGNISER = corpus.ROOT / "examples" / "models" / "spoken-numbers-en"


@dataclass
class Task:
    """A model and what it is given; `quality` of outputs, in percent, is what its name says."""

    model: Path
    sources: Sequence
    pruning: tuple[float, int]  # threshold and candidates of the beam that prunes
    quality_name: str
    quality: Callable[[list[list[int]]], float]


def translation(options: argparse.Namespace) -> Task:
    data = corpus.load(options.data, options.split, options.lines)
    return Task(corpus.MODEL, data.sources, CHOSEN_ON_DEV[5], "BLEU", data.bleu)


def recognition(options: argparse.Namespace) -> Task:
    """Voices that were not heard in training, in noise."""
    extract, tokenizer = load_feature_extractor(RECOGNISER), pybeam.load_tokenizer(RECOGNISER)
    pairs = list(recordings("test", options.recordings, seed=2, noise_db=(0.0, 20.0)))
    texts = [text for _, text in pairs]

    def word_errors(outputs: list[list[int]]) -> float:
        return 100 * jiwer.wer(texts, [tokenizer.decode(tokens) for tokens in outputs])

    return Task(
        RECOGNISER, [extract(samples) for samples, _ in pairs], (2.5, 3), "WER", word_errors
    )


class Graph:
    """`search.onnx` on batches of n sources of like length, ids or features."""

    def __init__(self, path: Path, width: int, n: int, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(path, options)
        self._names = [one.name for one in self._session.get_inputs()]
        self._width, self._n = width, n

    def __call__(self, sources: Sequence) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in sources]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        for start in range(0, len(order), self._n):
            part = order[start : start + self._n]
            padded = pad_sequence([torch.as_tensor(sources[i]) for i in part], batch_first=True)
            inputs = (
                padded.numpy(),
                np.array([len(sources[i]) for i in part]),
                np.array(self._width),
                np.array(MAX_LENGTH),
                np.array(NORMALISED.alpha, dtype=np.float32),
            )
            given = dict(zip(self._names, inputs, strict=True))
            tokens, found, *_ = self._session.run(None, given)
            for line, length, i in zip(tokens[:, 0], found[:, 0], part, strict=True):
                outputs[i] = line[:length].tolist()
        return outputs


def ways(task: Task, options: argparse.Namespace, folder: Path) -> dict[str, Callable]:
    """The fixed beam in every way, and a beam that prunes in those that can."""
    model = pybeam.load_model(task.model, device="cpu", dtype="float32")
    export_onnx(model, folder)
    exported = pybeam.load_model(folder)
    limits = dict(max_length=min(MAX_LENGTH, model.max_positions), scoring=NORMALISED)
    fixed = pybeam.fixed_beam(options.width, **limits)
    variable = pybeam.variable_beam(options.width, *task.pruning, **limits)
    batch, fifo = pybeam.Batch(options.n), pybeam.Fifo(options.n)
    graph = Graph(folder / "search.onnx", options.width, options.n, options.threads)
    return {
        "fixed, pybeam": Ours(model, fixed, batch),
        "fixed, ONNX Runtime under the engine": Ours(exported, fixed, batch),
        "fixed, one graph": graph,
        "variable, pybeam, Fifo": Ours(model, variable, fifo),
        "variable, ONNX Runtime under the engine, Fifo": Ours(exported, variable, fifo),
    }


def measured(task: Task, options: argparse.Namespace) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        decoders = ways(task, options, Path(folder))
    for decoder in decoders.values():
        decoder(task.sources[:2])
    runs = {name: (lambda d=d: d(task.sources)) for name, d in decoders.items()}
    seconds, outputs = report.interleaved_medians(runs, options.repeats)
    return [
        {
            "way": name,
            "sources/s": len(task.sources) / seconds[name],
            "speed": seconds["fixed, pybeam"] / seconds[name],
            task.quality_name: task.quality(outputs[name]),
        }
        for name in runs
    ]


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    rows = {}
    for name, task in (("text", translation), ("speech", recognition)):
        rows[name] = measured(task(options), options)
        print(f"{report.table(rows[name])}\n")
    settings = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    versions = {"onnxruntime": onnxruntime.__version__}
    report.write("onnx-cpu", options.output, {"settings": settings | versions, **rows})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    corpus.add_options(parser)
    parser.add_argument("--lines", type=int, default=128, help="take that many lines only")
    parser.add_argument("--recordings", type=int, default=512)
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--n", type=int, default=64, help="sources decoded at once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
