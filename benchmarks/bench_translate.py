"""Translation speed beside CTranslate2 and transformers, same weights, one run.

python -m benchmarks.bench_translate [--model DIR] [--data DIR] [--repeats 3] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

import pybeam
from benchmarks import corpus, peers, report
from benchmarks.corpus import Corpus

MAX_LENGTH = 128
# width -> (delta, M) with which dev BLEU stays within 0.1 of CTranslate2's at the same width
CHOSEN_ON_DEV = {5: (1.1, 3), 50: (1.6, 3)}
NORMALISED = pybeam.scoring.power(1.0)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    bench = Bench(options)
    groups = {
        "fixed-5": bench.fixed_5,
        "variable-5": bench.variable_5,
        "reduced-5": bench.reduced_5,
        "variable-50": bench.variable_50,
        "fifo-50": bench.fifo_50,
        "fifo-5": bench.fifo_5,
    }
    run = vars_of(options) | {"model": repr(bench.model)}
    rows: list[dict] = []
    for name, measure in groups.items():
        if options.only in (None, name):
            rows += measure()
            print(report.table(bench.last), flush=True)
            write(options, bench.last, run)
    print("\n" + report.table(rows))


def write(options: argparse.Namespace, rows: list[dict], run: dict) -> None:
    """Replace the measured settings in the results file; those of groups not run stay.

    The results of another model go to another file than those of the example model.
    """
    name = "translate-cpu" + (f"-{options.model.name}" if options.model != corpus.MODEL else "")
    path = options.output or report.RESULTS / f"{name}.json"
    old = json.loads(path.read_text())["rows"] if path.exists() else []
    measured = {row["setting"] for row in rows}
    new = [row | {"run": run | report.environment()} for row in rows]
    report.write(name, path, {"rows": [r for r in old if r["setting"] not in measured] + new})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=corpus.MODEL,
        help="a model with the example model's tokenizer, such as one of benchmarks.widen",
    )
    corpus.add_options(parser)
    parser.add_argument("--lines", type=int, help="take that many lines only")
    parser.add_argument(
        "--wide-lines", type=int, default=200, help="lines of the groups of width 50"
    )
    parser.add_argument("--repeats", type=int, default=3)
    for width, (threshold, most) in CHOSEN_ON_DEV.items():
        parser.add_argument(f"--threshold-{width}", type=float, default=threshold, help="delta")
        parser.add_argument(f"--max-candidates-{width}", type=int, default=most, help="M")
    parser.add_argument(
        "--only", help="one group: fixed-5, variable-5, reduced-5, variable-50, fifo-50, fifo-5"
    )
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def vars_of(options: argparse.Namespace) -> dict:
    return {name: value for name, value in vars(options).items() if not isinstance(value, Path)}


class Bench:
    """The groups of systems that are timed side by side."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.all = corpus.load(options.data, options.split, options.lines)
        self.wide = self.all.first(options.wide_lines)
        self.model = pybeam.load_model(options.model, device="cpu", dtype="float32")
        self.theirs = peers.transformers_model(options.model)
        self.translator = peers.ctranslate2_translator(
            self.theirs, self.all.vocabulary, options.threads
        )
        self.last: list[dict] = []

    def variable(self, width: int) -> pybeam.Algorithm:
        options = vars(self.options)
        return pybeam.variable_beam(
            width,
            options[f"threshold_{width}"],
            options[f"max_candidates_{width}"],
            max_length=MAX_LENGTH,
            scoring=NORMALISED,
        )

    def fixed_5(self) -> list[dict]:
        fixed = pybeam.fixed_beam(5, max_length=MAX_LENGTH, scoring=NORMALISED)
        return self.compare(
            "fixed width 5",
            self.all,
            {
                "CTranslate2 beam_size=5": self.ctranslate2(5),
                "transformers num_beams=5": peers.transformers_beam(self.theirs, 5, 64, MAX_LENGTH),
                "pybeam fixed 5, Batch(64)": Ours(self.model, fixed, pybeam.Batch(64)),
                "pybeam fixed 5, Fifo(64)": Ours(self.model, fixed, pybeam.Fifo(64)),
            },
        )

    def variable_5(self) -> list[dict]:
        return self.compare(
            "variable width 5",
            self.all,
            {
                "CTranslate2 beam_size=5": self.ctranslate2(5),
                "pybeam variable 5, Batch(64)": Ours(
                    self.model, self.variable(5), pybeam.Batch(64)
                ),
                "pybeam variable 5, Fifo(64)": Ours(self.model, self.variable(5), pybeam.Fifo(64)),
            },
        )

    def reduced_5(self) -> list[dict]:
        """The reduced precision that each does best on a CPU: their int8, our bfloat16."""
        int8 = peers.ctranslate2_translator(
            self.theirs, self.all.vocabulary, self.options.threads, "int8"
        )
        model = pybeam.load_model(self.options.model, device="cpu", dtype="bfloat16")
        fixed = pybeam.fixed_beam(5, max_length=MAX_LENGTH, scoring=NORMALISED)
        variable, batch, fifo = self.variable(5), pybeam.Batch(64), pybeam.Fifo(64)
        return self.compare(
            "reduced precision, width 5",
            self.all,
            {
                "CTranslate2 int8 beam_size=5": self.ctranslate2(5, int8),
                "CTranslate2 float32 beam_size=5": self.ctranslate2(5),
                "pybeam bfloat16 variable 5, Batch(64)": Ours(model, variable, batch),
                "pybeam bfloat16 variable 5, Fifo(64)": Ours(model, variable, fifo),
                "pybeam bfloat16 fixed 5, Fifo(64)": Ours(model, fixed, fifo),
            },
            model,
        )

    def variable_50(self) -> list[dict]:
        return self.compare(
            "variable width 50",
            self.wide,
            {
                "CTranslate2 beam_size=50": self.ctranslate2(50),
                "pybeam variable 50, Fifo(64)": Ours(
                    self.model, self.variable(50), pybeam.Fifo(64)
                ),
            },
        )

    def fifo_50(self) -> list[dict]:
        return self._fifo(50, 64)

    def fifo_5(self) -> list[dict]:
        return self._fifo(5, 16)

    def _fifo(self, width: int, n: int) -> list[dict]:
        algorithm = self.variable(width)
        return self.compare(
            f"schedules, variable width {width}, n = {n}",
            self.wide if width == 50 else self.all,
            {
                f"pybeam variable {width}, Batch({n})": Ours(
                    self.model, algorithm, pybeam.Batch(n)
                ),
                f"pybeam variable {width}, Streaming({n})": Ours(
                    self.model, algorithm, pybeam.Streaming(n)
                ),
                f"pybeam variable {width}, Fifo({n})": Ours(self.model, algorithm, pybeam.Fifo(n)),
            },
        )

    def ctranslate2(self, width: int, translator=None) -> peers.Translate:
        translator = translator or self.translator
        return peers.ctranslate2_beam(translator, self.all.vocabulary, width, 64, MAX_LENGTH)

    def compare(
        self, setting: str, data: Corpus, systems: dict[str, Callable], model=None
    ) -> list[dict]:
        """Seconds and BLEU of each system; the ratio is against the first one.

        `model` is ours, whose matrix products are the floor.
        """
        for translate in systems.values():
            translate(data.sources[:64])
        runs = {name: (lambda t=t: t(data.sources)) for name, t in systems.items()}
        # in turn with the systems, because the machine's speed changes while they run
        runs["products"] = Products(model or self.model)
        seconds, outputs = report.interleaved_medians(runs, self.options.repeats)
        baseline = next(iter(seconds.values()))
        rate = runs["products"].flops / seconds["products"]
        self.last = []
        for name, translate in systems.items():
            row = {
                "setting": setting,
                "system": name,
                "lines": len(data.sources),
                "seconds": seconds[name],
                "lines/s": len(data.sources) / seconds[name],
                "times the first": baseline / seconds[name],
                "BLEU": data.bleu(outputs[name]),
            }
            if isinstance(translate, Ours):
                row |= translate.cost(data, seconds[name], rate)
            self.last.append(row)
        return self.last


class Ours:
    """A decoder as a `peers.Translate`."""

    def __init__(self, model, algorithm, schedule) -> None:
        self.decoder = pybeam.Decoder(model, algorithm, schedule)

    def __call__(self, sources: list[list[int]]) -> list[list[int]]:
        return [result.hypotheses[0].tokens for result in self.decoder.decode(sources)]

    def cost(self, data: Corpus, seconds: float, flops_per_second: float) -> dict:
        """Search cost, and the share of the time that the bare matrix products would take."""
        stats = self.decoder.stats
        model = self.decoder.model
        per_row, per_source_token = flops_of(model.config)
        flops = stats.expansions * per_row + per_source_token * sum(map(len, data.sources))
        return {
            "steps": stats.steps,
            "expansions": stats.expansions,
            "exp/step": stats.expansions_per_step,
            "of floor": flops / flops_per_second / seconds,
        }


def flops_of(config) -> tuple[int, int]:
    """Flops of the matrix products for one decoder row and for one source token."""
    d, layers = config.hidden_size, config.num_decoder_layers
    row = layers * (6 * d * d + 2 * d * config.decoder_inner_size) + d * config.vocab_size
    source = config.num_encoder_layers * (4 * d * d + 2 * d * config.encoder_inner_size)
    source += layers * 2 * d * d  # keys and values of the cross-attention
    return 2 * row, 2 * source


class Products:
    """A step's matrix products alone, in their order, at the usual batch of width 5."""

    def __init__(self, model, rows: int = 304, times: int = 30) -> None:
        self.flops = times * rows * flops_of(model.config)[0]
        self._model, self._times = model, times
        self._x = torch.randn(rows, model.config.hidden_size)
        self._wide = torch.randn(rows, model.config.decoder_inner_size)

    @torch.inference_mode()
    def __call__(self) -> None:
        x, model = self._x, self._model
        memory = x.new_empty(x.shape[0], model.vocab_size)
        for _ in range(self._times):
            for layer in model.decoder.layers:
                layer.qkv(x)
                layer.self_out(x)
                layer.cross_query(x)
                layer.cross_out(x)
                layer.inner(x)
                layer.inner_out(self._wide)
            model.output(x, memory)


if __name__ == "__main__":
    main()
