"""Options that change speed and memory, but no result: schedule, threads, device, kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.options.errors import as_usage_errors
from pybeam.cli.options.sections import Section, option

if TYPE_CHECKING:
    from pybeam.engine.schedule import Schedule

SPEED = Section(
    "Speed and memory; the results do not depend on these",
    [
        option(
            "--schedule",
            type=click.Choice(["batch", "streaming", "fifo"]),
            metavar="NAME",
            default="fifo",
            help="fifo: a finished line's place is taken at once. batch: the next lines wait for all of "
            "these. streaming: refill when few are left and move the shortest ones first.",
        ),
        option(
            "--batch-size",
            type=click.IntRange(1),
            metavar="LINES",
            show_default="64",
            help="Lines decoded at once.",
        ),
        option(
            "--batch-tokens",
            type=click.IntRange(1),
            metavar="TOKENS",
            help="Source tokens decoded at once, in place of --batch-size.",
        ),
        option(
            "--epsilon",
            type=click.FloatRange(0, 1),
            metavar="SHARE",
            show_default="1/6 for streaming, 1 for fifo",
            help="Refill when at most this share of the places is taken.",
        ),
        option(
            "--row-budget",
            type=click.IntRange(1),
            metavar="ROWS",
            help="Hypotheses sent through the model in one step, at least --width. Bounds the work of "
            "a step whatever pruning does.",
        ),
        option(
            "--max-wait",
            type=click.IntRange(1),
            metavar="STEPS",
            help="Move a line again after it has paused for so many steps.",
        ),
        option(
            "--flush",
            type=click.IntRange(1),
            metavar="STEPS",
            help="With streaming: finish a line that is so many steps old before others are added.",
        ),
        option(
            "--threads",
            type=click.IntRange(1, 1024),
            metavar="N",
            show_default="torch's choice",
            help="CPU threads.",
        ),
        option(
            "--device",
            metavar="NAME",
            default="auto",
            help="cpu, cuda, cuda:1, ...; auto: a GPU if there is one.",
        ),
        option(
            "--dtype",
            type=click.Choice(["auto", "float32", "bfloat16", "float16", "int8", "float8_e4m3fn"]),
            metavar="TYPE",
            default="auto",
            help="Type of the weights: float32, bfloat16, float16, int8 or float8_e4m3fn; auto: float32 on a "
            "CPU, the file's on a GPU, int8 for what `pybeam quantize` has written. On a CPU scores are "
            "float32 even so, bfloat16 is fast with AVX512_BF16 (see `pybeam info`), and int8, which only "
            "CPUs have, is the smallest, and the fastest with AVX512-VNNI. float8_e4m3fn is for GPUs, from "
            "H100 on, and slow on a CPU.",
        ),
        option(
            "--cross-cache-dtype",
            type=click.Choice(["auto", "float32", "bfloat16"]),
            metavar="TYPE",
            default="auto",
            help="Type in which a transformer on a CPU keeps keys and values of encoder states: float32 or "
            "bfloat16, which takes half the memory; auto: float32. Scores are float32 even so.",
        ),
        option(
            "--check-finite/--no-check-finite",
            default=True,
            help="Refuse weights that are NaN or infinite, and name file and tensor; else the lines that "
            "meet them fail.",
        ),
        option(
            "--backend",
            type=click.Choice(["auto", "reference", "native", "triton"]),
            metavar="NAME",
            default="auto",
            help="Which kernels: reference (plain torch), native (C++) or triton; auto: the fastest "
            "installed (see `pybeam info`).",
        ),
    ],
)


@dataclass(frozen=True)
class ScheduleOptions:
    """The options for the schedule; None: not given."""

    schedule: str
    batch_size: int | None
    batch_tokens: int | None
    epsilon: float | None
    row_budget: int | None
    max_wait: int | None
    flush: int | None

    def build(self) -> Schedule:
        """Build the schedule that the options describe. Raises UsageError if they contradict each other."""
        import pybeam

        if self.schedule == "batch" and self.epsilon is not None:
            raise click.UsageError(
                "--epsilon has no meaning with --schedule batch, which refills only when it is empty; "
                "use --schedule streaming or fifo"
            )
        if self.flush is not None and self.schedule != "streaming":
            raise click.UsageError(
                f"--flush has no meaning with --schedule {self.schedule}; use --schedule streaming"
            )
        if self.batch_size is not None and self.batch_tokens is not None:
            raise click.UsageError("give either --batch-size (lines) or --batch-tokens, not both")
        arguments: dict[str, Any] = {
            "n": self.batch_size,
            "tokens": self.batch_tokens,
            "epsilon": self.epsilon,
            "row_budget": self.row_budget,
            "max_wait": self.max_wait,
            "flush": self.flush,
        }
        kinds = {"batch": pybeam.Batch, "streaming": pybeam.Streaming, "fifo": pybeam.Fifo}
        with as_usage_errors():
            return kinds[self.schedule](**{k: v for k, v in arguments.items() if v is not None})


@dataclass(frozen=True)
class DeviceOptions:
    """The options for threads, device and kernels."""

    threads: int | None
    device: str
    dtype: str
    cross_cache_dtype: str
    check_finite: bool
    backend: str
