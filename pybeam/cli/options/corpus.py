"""Options for a corpus that is decoded in parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import click

from pybeam.cli.options.cluster import cluster_options
from pybeam.cli.options.sections import Section, given, option

# lines of a part by default; a recording takes as long as many lines
PART_LINES, PART_RECORDINGS = 10_000, 100


class Shard(click.ParamType):
    """`I/N`: the I-th of N shares, from 1."""

    name = "shard"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value[0], value[1]
        found = re.fullmatch(r"(\d+)/(\d+)", value)
        i, n = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= i <= n:
            self.fail(f"{value!r} must be I/N, with I from 1 to N, such as 3/8", param, ctx)
        return i, n


class Processes(click.ParamType):
    """A number of processes, or `auto`, which is 0 here."""

    name = "processes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == "auto":
            return 0
        if not value.isdecimal() or not 1 <= int(value) <= 1024:
            self.fail(f"{value!r} must be a number from 1 to 1024, or auto", param, ctx)
        return int(value)


def corpus_section(
    column: str = "text", *more: click.Option, part_lines: int = PART_LINES
) -> Section:
    """Return the section of a command.

    Args:
        column: what a column holds.
        more: options behind the one for it.
        part_lines: lines of a part by default.
    """
    return Section(
        "A corpus in parts, which goes on where it was interrupted",
        [
            option(
                "--output-dir",
                metavar="DIR",
                type=click.Path(),
                help="Write parts into this folder (part-00000.txt, or .jsonl), with errors.jsonl and "
                "manifest.json. Started again, the command goes on with the part at which it stopped.",
            ),
            option(
                "--part-lines",
                type=click.IntRange(1),
                metavar="N",
                show_default=str(part_lines),
                help="Lines of a part. A kill loses what is done of the parts in work.",
            ),
            option(
                "--column",
                metavar="NAME",
                help=f"The column of .parquet files, or the field of .jsonl files, that has the {column}.",
            ),
            *more,
            option(
                "--processes",
                type=Processes(),
                metavar="N|auto",
                help="Decode so many parts at once, each in a process with --threads threads (default: one), "
                "all over the same weights in memory. auto: the processes and threads that take the least "
                "time on all cores, or on as many as --threads says.",
            ),
            option(
                "--shard",
                type=Shard(),
                metavar="I/N",
                help="Decode the I-th of N shares of the parts, from 1, into the same folder; for a "
                "scheduler that starts N commands.",
            ),
            option(
                "--cache",
                type=click.IntRange(1),
                metavar="LINES",
                help="Remember so many different lines, and do not decode an equal one again. The output is "
                "the same.",
            ),
            option(
                "--force",
                is_flag=True,
                help="Begin anew, and replace what the folder has of another run.",
            ),
            *cluster_options(
                "Decode parts on a Ray cluster, in --processes processes (default: as many as it has room "
                "for) of --threads CPUs each, and a GPU each with --device cuda."
            ),
        ],
    )


@dataclass(frozen=True)
class CorpusOptions:
    """The options of `corpus_section`; None: not given."""

    output_dir: str | None = None
    part_lines: int | None = None
    column: str | None = None
    target_column: str | None = None
    processes: int | None = None
    shard: tuple[int, int] | None = None
    cache: int | None = None
    force: bool = False
    on_ray: bool = False
    address: str | None = None

    def check(self) -> None:
        """Raise UsageError for options that need --output-dir."""
        if self.output_dir is None:
            names = (
                "part_lines",
                "column",
                "target_column",
                "processes",
                "shard",
                "cache",
                "force",
                "on_ray",
                "address",
            )
            for name in given(self, names):
                flag = "ray" if name == "on_ray" else name.replace("_", "-")
                raise click.UsageError(f"--{flag} needs --output-dir")
        if self.address is not None and not self.on_ray:
            raise click.UsageError("--address needs --ray")
