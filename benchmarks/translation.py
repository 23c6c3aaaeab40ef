"""Translating the same lines with several systems in turn: seconds, BLEU and what the search did."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce

import torch

import pybeam
from benchmarks import peers
from benchmarks.corpus import EOS, Corpus
from benchmarks.gpu import ctranslate2_process, expected
from benchmarks.meter import GIGA
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn

MAX_LENGTH = 128
NORMALISED = pybeam.scoring.power(1.0)
# a CPU loads its code with so many lines at most, an eighth of all; a GPU compiles and captures what a
# whole batch needs
WARM_UP_LINES = 64
# of a step's matrix products, so that they last
PRODUCTS = 30


@dataclass(frozen=True)
class Ours:
    """A search in pybeam; a `dtype` of its own beats the run's. `kept` is that of keys and values."""

    algorithm: object
    schedule: object
    dtype: str | None = None
    kept: str = "auto"
    reports_every: int | None = None

    @property
    def n(self) -> int:
        return self.schedule.n

    def key(self, network: str) -> tuple:
        """The dtype of its weights."""
        return "pybeam", network, self.dtype, self.kept

    def load(self, setup: Setup, network: str, data: Corpus) -> peers.Translate:
        model = setup.networks.ours(network, self.dtype, self.kept)
        return Decoding(model, self.algorithm, self.schedule, reports_every=self.reports_every)


@dataclass(frozen=True)
class Foreseeing(Ours):
    """The algorithm is a function of the lengths of greedy's outputs, which it is told."""

    def load(self, setup: Setup, network: str, data: Corpus) -> peers.Translate:
        model = setup.networks.ours(network, self.dtype)
        lengths = {
            tuple(source): len(h.tokens) + h.ended
            for source, h in zip(data.sources, greedy_outputs(model, data.sources), strict=True)
        }
        algorithm = self.algorithm(lambda request: lengths[tuple(request.source)])
        return Decoding(model, algorithm, self.schedule)


@dataclass(frozen=True)
class Remembering(Ours):
    """The algorithm is a function of guesses: greedy's output for so large a part of each source."""

    part: float = 1.0

    def load(self, setup: Setup, network: str, data: Corpus) -> peers.Translate:
        model = setup.networks.ours(network, self.dtype)
        parts = [[*s[: round(self.part * (len(s) - 1))], EOS] for s in data.sources]
        memory = {
            tuple(source): h.tokens
            for source, h in zip(data.sources, greedy_outputs(model, parts), strict=True)
        }
        guesses = pybeam.drafts.function(lambda request: memory[tuple(request.source)])
        return Decoding(model, self.algorithm(guesses), self.schedule)


def greedy_outputs(model, sources: list[list[int]]) -> list[pybeam.Hypothesis]:
    """The output of greedy search for each source."""
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=MAX_LENGTH))
    return [result.hypotheses[0] for result in decoder.decode(sources)]


@dataclass(frozen=True)
class Engines(Ours):
    """Engines of a `pybeam.Service` with one thread each; by default as many as there are threads."""

    number: int | None = None

    def load(self, setup: Setup, network: str, data: Corpus) -> peers.Translate:
        model = setup.networks.ours(network, self.dtype)
        decoder = pybeam.Decoder(model, self.algorithm, self.schedule)
        return Serving(decoder, data.sources, self.number)


class Serving:
    """A service as a `peers.Translate`. Its engines stay, as other systems' translators do.

    Each engine has one thread; so many lines may wait at once.
    """

    def __init__(
        self, decoder: pybeam.Decoder, sources: list[list[int]], number: int | None = None
    ) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            service = pybeam.Service(decoder, engines=number or threads, max_waiting=len(sources))
            self._service = service.start(warm_up=False)
            weakref.finalize(self, service.close)
            # an engine has the threads that torch has in its first step
            self(sources)
        finally:
            torch.set_num_threads(threads)

    def __call__(self, sources: list[list[int]]) -> list[list[int]]:
        # the longest first, as `Decoder.decode` does
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        futures = {i: self._service.submit(sources[i]) for i in order}
        results = [futures[i].result().result for i in range(len(sources))]
        return [result.hypotheses[0].tokens for result in results]


@dataclass(frozen=True)
class CTranslate2:
    """`side_by_side` batches are translated at the same time, and share the threads."""

    width: int
    compute_type: str = "float32"
    n: int = 64
    side_by_side: int = 1

    def key(self, network: str) -> tuple:
        return "ctranslate2", network, self.compute_type

    def load(self, setup: Setup, network: str, data: Corpus) -> peers.Translate:
        translator = setup.networks.ctranslate2(
            network, self.compute_type, data.vocabulary, self.side_by_side
        )
        return peers.ctranslate2_beam(translator, data.vocabulary, self.width, self.n, MAX_LENGTH)


@dataclass(frozen=True)
class CTranslate2Process:
    """In a process of its own, on the run's device."""

    width: int
    n: int = 64

    def key(self, network: str) -> tuple:
        return "ctranslate2 process", network

    def load(self, setup: Setup, network: str, data: Corpus) -> peers.Translate:
        sizes = self.width, self.n, MAX_LENGTH
        place = setup.device, setup.folder, network, dict(setup.size.widened)
        return ctranslate2_process.translate_on(*place, *sizes)


@dataclass(frozen=True)
class Transformers:
    """With a `cache` of its own kind, such as "static", whose forward pass is compiled."""

    width: int
    n: int = 64
    cache: str | None = None

    def key(self, network: str) -> tuple:
        return "transformers", network

    def load(self, setup: Setup, network: str, data: Corpus) -> peers.Translate:
        model = setup.networks.transformers(network)
        return peers.transformers_beam(model, self.width, self.n, MAX_LENGTH, cache=self.cache)


@dataclass(frozen=True)
class Case:
    """Systems that translate the same lines; the others are compared with the first.

    Args:
        lines: the first ones of the file, None for all; with `is_spread` from all over it.
        splits: the files, one behind the other.
        tokens: only lines whose sources have at least and at most so many; None: all.
        has_loss: also tell the BLEU that is lost to the first system, with its interval of 95 %.
        has_floor: also time the matrix products of a step alone, which no search can be faster than.
    """

    systems: Mapping[str, Ours | CTranslate2 | CTranslate2Process | Transformers]
    lines: int | None = None
    network: str = "example"
    repeats: int = 3
    threads: int | None = None
    is_spread: bool = False
    splits: tuple[str, ...] = ("dev",)
    tokens: tuple[int, int] | None = None
    has_loss: bool = False
    has_floor: bool = False


class Decoding:
    """A decoder as a `peers.Translate`, which keeps its latest results."""

    def __init__(self, model, algorithm, schedule, **options) -> None:
        self.decoder = pybeam.Decoder(model, algorithm, schedule, **options)
        self.results: list[pybeam.Result] = []

    def __call__(self, sources: list[list[int]]) -> list[list[int]]:
        self.results = self.decoder.decode(sources)
        return [result.hypotheses[0].tokens for result in self.results]

    @property
    def num_steps(self) -> int:
        """The steps of all sources; those of the decoder are fewer, as it steps many sources at once."""
        return sum(result.steps for result in self.results)

    def search(self) -> dict:
        """The work of the search; steps, expansions and pages are exact."""
        stats = self.decoder.stats
        return {
            "steps": stats.steps,
            "expansions": stats.expansions,
            "exp/step": stats.expansions_per_step,
            "refills": stats.refills,
            "pages": stats.pages,
            "phase_seconds": {k: round(v, 4) for k, v in stats.phase_seconds.items()},
        }

    def forecast(self, seconds: float, n: int, dtype: str) -> dict:
        """The mean time of a step beside what it should be, encoder and host left out."""
        stats, config = self.decoder.stats, getattr(self.decoder.model, "config", None)
        if config is None or not stats.steps:
            return {}
        network = expected.network_of(config)
        step = expected.of_step(network, n, stats.expansions_per_step / n, dtype)
        us = 1e6 * seconds / stats.steps
        return {"step µs": us, **step.columns(us)}

    def flops(self, sources: list[list[int]]) -> int | None:
        """The operations of the matrix products; None for an ensemble, whose members are not asked."""
        config = getattr(self.decoder.model, "config", None)
        if config is None:
            return None
        per_row, per_source_token = flops_of(config)
        return self.decoder.stats.expansions * per_row + per_source_token * sum(map(len, sources))


class Translating:
    """One system on one case: what is timed. `floor` has its column where it has been measured."""

    def __init__(self, setup: Setup, system, case: Case, data: Corpus, floor: Timed) -> None:
        self.data, self._meter, self._n, self._floor = data, setup.meter, system.n, floor
        self._has_loss, network = case.has_loss, case.network
        # a forecast is a GPU's
        self._forecasts = setup.size.dtype if setup.device == "cuda" or setup.is_tiny else None
        self.translate = system.load(setup, network, data)
        self._weights = setup.networks.weight_bytes.get(system.key(network), 0)
        self._held = self._meter.allocated_bytes()
        self._meter.restart_peak()
        few = min(WARM_UP_LINES, 1 + len(data.sources) // 8)
        times = 1
        if self._meter.is_cuda:
            is_ours = isinstance(self.translate, Decoding)
            # ours captures a size when it comes again, and how many lines are closed at once changes a little
            few, times = (len(data.sources), 3) if is_ours else (self._n, 1)
        for _ in range(times):
            self.translate(data.sources[:few])
        self._joules: float | None = None
        self._peak: int | None = None

    def __call__(self) -> list[list[int]]:
        before = self._meter.joules()
        outputs = self.translate(self.data.sources)
        if before is not None:
            self._joules = self._meter.joules() - before
        if self._peak is None:
            # later turns come after those of other systems, whose peak is not ours
            self._peak = self._meter.peak_bytes()
        return outputs

    def columns(self, timed: Timed) -> dict:
        sources, first = self.data.sources, timed.baseline and timed.baseline.run
        row = {
            "lines": len(sources),
            "n": self._n,
            "lines/s": len(sources) / timed.seconds,
            "BLEU": self.data.bleu(timed.output),
        }
        if isinstance(self.translate, Decoding):
            row |= self.translate.search()
            if self._forecasts:
                row |= self.translate.forecast(timed.seconds, self._n, self._forecasts)
            flops = self.translate.flops(sources)
            if flops:
                row["GFLOP"] = flops / GIGA
            if flops and self._floor.run is not None:
                row["of floor"] = flops / timed.seconds / self._floor.run.rate(self._floor)
            if first and isinstance(first.translate, Decoding):
                row["times fewer steps"] = first.translate.num_steps / self.translate.num_steps
        if self._has_loss and first:
            lost = self.data.bleu_lost(timed.output, timed.baseline.output)
            row |= {"BLEU lost": lost.value, "at least": lost.low, "at most": lost.high}
        # a CPU tells neither energy nor memory of one system
        if self._joules is not None:
            row["joules/line"] = self._joules / len(sources)
        if self._meter.is_cuda:
            working = self._peak - self._held
            row["weights_gb"] = self._weights / GIGA
            row["peak_gb"] = (self._weights + working) / GIGA
        return row


class Products:
    """A step's matrix products alone, in their order, at the usual batch of width 5."""

    def __init__(self, model, rows: int = 304, times: int = PRODUCTS) -> None:
        self.flops = times * rows * flops_of(model.config)[0]
        self._model, self._times = model, times
        self._x = torch.randn(rows, model.config.hidden_size, device=model.device)
        self._wide = torch.randn(rows, model.config.decoder_inner_size, device=model.device)

    @torch.inference_mode()
    def __call__(self) -> None:
        x, model = self._x, self._model
        memory = x.new_empty(x.shape[0], model.vocab_size)
        for _ in range(self._times):
            for layer in model.decoder.layers:
                layer.qkv(x)
                layer.self_out(x)
                layer.cross.query(x)
                layer.cross.out(x)
                layer.inner(x)
                layer.inner_out(self._wide)
            model.output(x, memory)

    def rate(self, timed: Timed) -> float:
        """Flops per second."""
        return self.flops / timed.seconds

    def columns(self, timed: Timed) -> dict:
        return {"GFLOP/s": self.rate(timed) / GIGA}


def flops_of(config) -> tuple[int, int]:
    """Flops of the matrix products for one decoder row and for one source token."""
    d, layers = config.hidden_size, config.num_decoder_layers
    row = layers * (6 * d * d + 2 * d * config.decoder_inner_size) + d * config.vocab_size
    source = config.num_encoder_layers * (4 * d * d + 2 * d * config.encoder_inner_size)
    source += layers * 2 * d * d  # keys and values of the cross-attention
    return 2 * row, 2 * source


def cases(setup: Setup, plan: Mapping[str, Case]) -> Iterator[list[Task]]:
    """The tasks of every case, whose names are those of the plan."""
    for name, case in plan.items():
        yield _tasks(setup, name, case)


def _tasks(setup: Setup, name: str, case: Case) -> list[Task]:
    @cache
    def data() -> Corpus:
        lines = setup.lines or case.lines
        languages = ("en", "es") if case.network == "reverse" else ("es", "en")
        parts = [setup.corpus(split, languages=languages) for split in case.splits]
        own = reduce(operator.add, parts)
        # the few lines of a trial may all be short
        if case.tokens is not None and not setup.is_tiny:
            own = own.of_length(*case.tokens)
        return own.spread(lines) if case.is_spread and lines else own.first(lines)

    dtype = next((s.dtype for s in case.systems.values() if isinstance(s, Ours)), None)
    floor = Timed(
        lambda: Products(
            setup.networks.ours(case.network, dtype), times=1 if setup.is_tiny else PRODUCTS
        )
    )
    makers = {
        label: lambda system=system: Translating(setup, system, case, data(), floor)
        for label, system in case.systems.items()
    }
    tasks = in_turn(name, makers, case.repeats, case.threads)
    if case.has_floor:
        tasks.insert(0, Task(name, "matrix products alone", floor, case.repeats, case.threads))
    return tasks


def fixed(width: int, **options):
    return pybeam.fixed_beam(width, max_length=MAX_LENGTH, scoring=NORMALISED, **options)


def variable(width: int, threshold: float = 1.5, max_candidates: int | None = 5):
    """By default in the main setting of Yang et al. 2020."""
    return pybeam.variable_beam(
        width, threshold, max_candidates, max_length=MAX_LENGTH, scoring=NORMALISED
    )
