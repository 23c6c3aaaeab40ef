"""Whisper beside CTranslate2's, as faster-whisper runs it: windows of 30 seconds at beam 5.

The shapes are those of Whisper tiny and base with all their tokens. Weights are random, on which the time
does not depend, and float16 holds them. Tokens of the task come first, nothing may end, and every
hypothesis is cut at the same length. All systems decode the same batch in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import pybeam
from benchmarks.long_recording import long_recordings
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from benchmarks.whisper_networks import END, SHAPES, START, TASK, Shape, Whisper
from pybeam import backends
from pybeam.backends.packing import quantise
from pybeam.models.linear import PackedLinear

WINDOW_SECONDS = 30
WIDTH = 5
NUM_FRAMES, NUM_FEATURES = 3000, 80
DTYPES = ("float32", "int8")
# name and number of windows
CASES = {
    f"{name}, {number}": (name, num)
    for num, number in ((16, "16 windows"), (1, "one window"))
    for name in SHAPES
}
ENCODED = 4


def transcription(setup: Setup) -> Iterator[list[Task]]:
    """Whisper beside CTranslate2's: seconds of windows, of their encoder, and of its products alone.

    And of recordings of ten minutes, beside faster-whisper.
    """
    networks = {name: Whisper(setup, name) for name in SHAPES}
    num_new = 4 if setup.is_tiny else 64
    for case, (name, num) in CASES.items():
        sources = windows(2 if setup.is_tiny and num > 1 else num)
        # one window is soon decoded
        calls = 5 if num == 1 and not setup.is_tiny else 1
        yield in_turn(case, decoders(networks[name], sources, num_new), calls=calls)
    for name, network in networks.items():
        yield in_turn(
            f"{name}, encoder", encoders(network, windows(1 if setup.is_tiny else ENCODED))
        )
    yield from long_recordings(setup, networks)


def decoders(network: Whisper, sources: Tensor, num_new: int) -> dict[str, Callable]:
    def theirs(dtype: str) -> Theirs:
        return Theirs(network.converted(dtype), sources, num_new)

    def ours(dtype: str, **more) -> Ours:
        return Ours(network.loaded(dtype, **more), sources, num_new)

    made = systems(theirs, ours)
    # a step reads twice as many bytes of keys and values
    made["pybeam int8, float32 cache"] = lambda: ours("int8", cache_dtype="float32")
    return made


def encoders(network: Whisper, sources: Tensor) -> dict[str, Callable]:
    limits = {dtype: Products(network.shape, dtype) for dtype in DTYPES}

    def theirs(dtype: str) -> Encoding:
        return Encoding(their_encoder(network, dtype, sources), sources, limits[dtype])

    def ours(dtype: str) -> Encoding:
        return Encoding(our_encoder(network, dtype, sources), sources, limits[dtype])

    return systems(theirs, ours)


def systems(theirs: Callable, ours: Callable) -> dict[str, Callable]:
    return {
        f"{name} {dtype}": lambda make=make, dtype=dtype: make(dtype)
        for dtype in DTYPES
        for name, make in (("CTranslate2", theirs), ("pybeam", ours))
    }


def windows(num: int) -> Tensor:
    """Noise [num, frames, features]."""
    generator = torch.Generator().manual_seed(num)
    return torch.randn(num, NUM_FRAMES, NUM_FEATURES, generator=generator)


class Theirs:
    """`generate` of CTranslate2's Whisper on windows."""

    def __init__(self, model, sources: Tensor, num_new: int) -> None:
        self._model, self._sources, self._num_new = model, sources, num_new
        self._features = as_ctranslate2(sources)

    def __call__(self) -> list[list[int]]:
        results = self._model.generate(
            self._features,
            [[START, *TASK]] * len(self._sources),
            beam_size=WIDTH,
            # half of it is for the output
            max_length=2 * self._num_new,
            suppress_tokens=[END],
            suppress_blank=False,
        )
        return [result.sequences_ids[0] for result in results]

    def columns(self, timed: Timed) -> dict:
        start = time.perf_counter()
        self._model.encode(self._features)
        return parts(timed.seconds, time.perf_counter() - start, len(self._sources))


class Ours:
    """A beam that keeps what CTranslate2's does where nothing ends."""

    def __init__(self, model: pybeam.Model, sources: Tensor, num_new: int) -> None:
        search = pybeam.fixed_beam(
            WIDTH, max_length=num_new, processors=[pybeam.processors.suppress_tokens([END])]
        )
        self._decoder = pybeam.Decoder(model, search, pybeam.Batch(len(sources)))
        self._requests = [pybeam.Request(source, prefix=TASK) for source in sources]

    def __call__(self) -> list[list[int]]:
        results = self._decoder.decode(self._requests)
        return [list(result.hypotheses[0].tokens)[len(TASK) :] for result in results]

    def columns(self, timed: Timed) -> dict:
        encoding = self._decoder.stats.phase_seconds["encode"]
        return parts(timed.seconds, encoding, len(self._requests))


def parts(seconds: float, encoding: float, num: int) -> dict:
    """Columns: the last encoder run, what is left for the steps, and seconds per second of sound."""
    return {
        "encoder s": encoding,
        "steps s": seconds - encoding,
        "real-time factor": seconds / (num * WINDOW_SECONDS),
    }


def as_ctranslate2(sources: Tensor):
    import ctranslate2

    features = sources.transpose(1, 2).contiguous()  # [A, F, E]
    return ctranslate2.StorageView.from_array(features.numpy())


def their_encoder(network: Whisper, dtype: str, sources: Tensor) -> Callable[[], object]:
    model, features = network.converted(dtype), as_ctranslate2(sources)
    return lambda: model.encode(features)


def our_encoder(network: Whisper, dtype: str, sources: Tensor) -> Callable[[], None]:
    """Encoder states, and the decoder's keys and values of them, which a beam begins with."""
    model, backend = network.loaded(dtype), backends.resolve("auto", torch.device("cpu"))
    given = [model.check(source) for source in sources]
    places = range(len(given))

    @torch.inference_mode()
    def encode() -> None:
        session = model.session(backend)
        session.reserve(len(given), WIDTH, 0)
        session.encode(given, places, places)

    return encode


class Encoding:
    """An encoder on windows, beside its products alone."""

    def __init__(self, encode: Callable[[], object], sources: Tensor, limit: Products) -> None:
        self._encode, self._num, self._limit = encode, len(sources), limit
        self()

    def __call__(self) -> None:
        self._encode()

    def columns(self, timed: Timed) -> dict:
        self._limit.measure()
        limit = self._num * self._limit.seconds
        work = 2e-9 * self._num * self._limit.work
        return {
            "products s": limit,
            "of the products' speed": limit / timed.seconds,
            "GFLOP/s": work / timed.seconds,
        }


class Product(NamedTuple):
    """So many rows by a matrix, so often."""

    rows: int
    depth: int
    columns: int
    times: int

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return self.rows * self.depth * self.columns * self.times


class Products:
    """The matrix products of the encoder of a window, each at the best speed of torch and of pybeam.

    Products of attention, which are float32 in every system, count at the best speed of any float32 product.
    """

    def __init__(self, shape: Shape, dtype: str) -> None:
        size, layers, _, inner = shape
        frames, positions = NUM_FRAMES, NUM_FRAMES // 2
        self._dtype = dtype
        self._products = [
            Product(frames, 3 * NUM_FEATURES, size, 1),
            Product(positions, 3 * size, size, 1),
            Product(positions, size, 3 * size, layers),
            Product(positions, size, size, layers),
            Product(positions, size, inner, layers),
            Product(positions, inner, size, layers),
            # the decoder's keys and values
            Product(positions, size, 2 * layers * size, 1),
        ]
        self._attention = 2 * layers * positions**2 * size
        # the least seconds of each by dtype
        self._best: dict[tuple[str, Product], float] = {}

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return sum(product.work for product in self._products) + self._attention

    @property
    def seconds(self) -> float:
        """The least seconds of all products of one window."""
        speed = max(p.work / self._best["float32", p] for p in self._products)
        own = sum(self._best[self._dtype, product] for product in self._products)
        return own + self._attention / speed

    @torch.inference_mode()
    def measure(self) -> None:
        """Compute each four times in every way."""
        for product in self._products:
            rows = torch.randn(product.rows, product.depth)
            weight, bias = torch.randn(product.columns, product.depth), torch.zeros(product.columns)
            # weights of the network are kept in float16, too
            weight = weight.half().float()
            out = torch.empty(product.rows, product.columns)
            packed = PackedLinear(weight, bias)
            small = PackedLinear(quantise(weight), bias)
            ways: Sequence[tuple[str, Callable]] = (
                ("float32", lambda x=rows, w=weight, b=bias: F.linear(x, w, b)),
                ("float32", lambda x=rows, y=out, layer=packed: layer(x, y)),
                ("int8", lambda x=rows, y=out, layer=small: layer(x, y)),
            )
            for dtype, way in 4 * ways:
                seconds = product.times * elapsed(way)
                known = self._best.get((dtype, product), seconds)
                self._best[dtype, product] = min(known, seconds)


def elapsed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
