"""Options that change speed and memory, but no result: schedule, threads, device, kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import click

from pybeam.cli.options.declare import Count, option, section
from pybeam.cli.options.errors import as_usage_errors

if TYPE_CHECKING:
    from pybeam.engine.schedule import Schedule


@dataclass(frozen=True)
class ScheduleOptions:
    """The options for the schedule; None: not given.

    Attributes:
        schedule: fifo: a finished line's place is taken at once. batch: the next lines wait for all of these.
            streaming: refill when few are left and move the shortest ones first.
        batch_size: Lines decoded at once.
        batch_tokens: Source tokens decoded at once, in place of --batch-size.
        epsilon: Refill when at most this share of the places is taken.
        row_budget: Hypotheses sent through the model in one step, at least --width. Bounds the work of a step
            whatever pruning does.
        max_wait: Move a line again after it has paused for so many steps.
        flush: With streaming: finish a line that is so many steps old before others are added.
    """

    schedule: Literal["batch", "streaming", "fifo"] = option("NAME", "fifo")
    batch_size: Count | None = option("LINES", shows="64")
    batch_tokens: Count | None = option("TOKENS")
    epsilon: Annotated[float, click.FloatRange(0, 1)] | None = option(
        "SHARE", shows="1/6 for streaming, 1 for fifo"
    )
    row_budget: Count | None = option("ROWS")
    max_wait: Count | None = option("STEPS")
    flush: Count | None = option("STEPS")

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
        kinds = {"batch": pybeam.Batch, "streaming": pybeam.Streaming, "fifo": pybeam.Fifo}
        names = {"batch_size": "n", "batch_tokens": "tokens"}
        arguments = {names.get(name, name): value for name, value in vars(self).items()}
        kind = kinds[arguments.pop("schedule")]
        with as_usage_errors():
            return kind(**{name: value for name, value in arguments.items() if value is not None})


@dataclass(frozen=True)
class DeviceOptions:
    """The options for threads, device and kernels.

    Attributes:
        threads: CPU threads.
        device: Where to compute: cpu, cuda, cuda:1; auto: a GPU if there is one.
        dtype: Type of the weights: float32, bfloat16, float16, int8, int4 or float8_e4m3fn; auto: float32 on
            a CPU, the file's on a GPU, the only one for what `pybeam quantize` has written. On a CPU scores
            are float32 even so, bfloat16 is fast with AVX512_BF16 (see `pybeam info`), and int8 is the
            fastest with AVX512-VNNI. int4 is the smallest, and faster for few lines of a large model. Both
            mean a CPU unless `--device` names a GPU, where they are for few rows. float8_e4m3fn is for GPUs,
            from H100 on, and slow on a CPU.
        cache_dtype: Type in which a transformer on a CPU keeps keys and values: float32, or bfloat16, which
            takes half the memory; auto: bfloat16 beside int8, int4 and bfloat16. Scores stay float32.
        check_finite: Refuse weights that are NaN or infinite, and name file and tensor; else the lines that
            meet them fail.
        backend: Which kernels: reference (plain torch), native (C++) or triton; auto: the fastest installed
            (see `pybeam info`).
    """

    threads: Annotated[int, click.IntRange(1, 1024)] | None = option(
        "N", shows="torch's choice", is_common=True
    )
    device: str = option("NAME", "auto", is_common=True)
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4", "float8_e4m3fn"] = (
        option("TYPE", "auto", is_common=True)
    )
    cache_dtype: Literal["auto", "float32", "bfloat16"] = option("TYPE", "auto")
    check_finite: bool = option(default=True, flag="--check-finite/--no-check-finite")
    backend: Literal["auto", "reference", "native", "triton"] = option("NAME", "auto")


SPEED = section(
    "Speed and memory; the results do not depend on these", ScheduleOptions, DeviceOptions
)
