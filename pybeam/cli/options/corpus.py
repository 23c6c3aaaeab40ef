"""Options for a corpus that is decoded in parts, and for the cluster that may do it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import click

from pybeam.cli.options.declare import Count, FilePath, Parsed, option, refuse, section
from pybeam.cli.options.sections import Section

# lines of a part by default; a recording takes as long as many lines
PART_LINES, PART_RECORDINGS = 10_000, 100


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    i, n = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= i <= n:
        raise ValueError
    return i, n


def _processes(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise ValueError
    return int(text)


Shard = Annotated[
    tuple[int, int], Parsed(_shard, "{!r} must be I/N, with I from 1 to N, such as 3/8")
]
# 0: as many as are best
Processes = Annotated[int, Parsed(_processes, "{!r} must be a number from 1 to 1024, or auto")]


@dataclass(frozen=True)
class ClusterOptions:
    """A cluster of Ray. Raises UsageError for options that contradict each other.

    Attributes:
        on_ray: Serve from a Ray cluster. Needs `pip install "pybeam-search[ray]"`.
        address: With --ray: the cluster; auto: the one that runs on this machine. By default one of this
            machine alone starts, and ends with the command.
    """

    on_ray: bool = option(default=False, flag="--ray")
    address: str | None = option("HOST:PORT")

    def __post_init__(self) -> None:
        if self.address is not None and not self.on_ray:
            raise click.UsageError("--address needs --ray")


@dataclass(frozen=True)
class CorpusOptions:
    """A corpus in parts; None: not given.

    Attributes:
        output_dir: Write parts into this folder (part-00000.txt, or .jsonl), with errors.jsonl and
            manifest.json. Started again, the command goes on with the part at which it stopped.
        part_lines: Lines of a part. A kill loses what is done of the parts in work.
        column: The column of .parquet files, or the field of .jsonl files, that has the text.
        target_column: The column or field that has the translation, in place of --target.
        processes: Decode so many parts at once, each in a process with --threads threads (default: one), all
            over the same weights in memory. auto: the processes and threads that take the least time on all
            cores, or on as many as --threads says.
        shard: Decode the I-th of N shares of the parts, from 1, into the same folder; for a scheduler that
            starts N commands.
        cache: Remember so many different lines, and do not decode an equal one again. The output is the same.
        force: Begin anew, and replace what the folder has of another run.
    """

    output_dir: FilePath | None = option("DIR", is_common=True)
    part_lines: Count | None = option("N", shows=str(PART_LINES))
    column: str | None = option("NAME")
    target_column: str | None = option("NAME")
    processes: Processes | None = option("N|auto")
    shard: Shard | None = option("I/N")
    cache: Count | None = option("LINES")
    force: bool = False

    def check(self, cluster: ClusterOptions) -> None:
        """Raise UsageError for options that need --output-dir."""
        if self.output_dir is None:
            for options in (self, cluster):
                refuse(options, None, "needs --output-dir")


def corpus_section(**changes: dict[str, Any] | None) -> Section:
    """Return the section of a command, with facts that are different there; see `section`."""
    decodes = (
        "Decode parts on a Ray cluster, in --processes processes (default: as many as it has room for) of "
        '--threads CPUs each, and a GPU each with --device cuda. Needs `pip install "pybeam-search[ray]"`.'
    )
    facts = {"on_ray": {"help": decodes}, "target_column": None, **changes}
    title = "A corpus in parts, which goes on where it was interrupted"
    return section(title, CorpusOptions, ClusterOptions, names=(), **facts)
