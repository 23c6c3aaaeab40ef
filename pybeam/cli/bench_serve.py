"""`pybeam bench-serve`: how soon a server answers under load."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pybeam.cli import signals
from pybeam.cli.files import open_input
from pybeam.cli.options.declare import option, section, take
from pybeam.cli.options.errors import reason_of
from pybeam.cli.options.sections import SectionCommand
from pybeam.cli.options.traffic import SECONDS, AskOptions, LoadOptions

if TYPE_CHECKING:
    from tqdm import tqdm

    from pybeam.traffic import Answer, Shape, Summary, Target, Window

# statuses of a server that may do better later
BUSY = (429, 503)


@dataclass(frozen=True)
class OutputOptions:
    """The form of the numbers.

    Attributes:
        is_json: Print the numbers as JSON, times in ms.
        quiet: No progress bar.
    """

    is_json: bool = option(default=False, flag="--json", is_common=True)
    quiet: bool = option(default=False)


@click.command(
    cls=SectionCommand,
    short_help="Measure how soon a server answers under load.",
    sections=[
        section("Requests", AskOptions),
        section("Load", LoadOptions),
        section("Output", OutputOptions),
    ],
)
@click.argument("url")
def bench_serve(url: str, **values: Any) -> int:
    """Measure how soon the server at URL answers under load: pybeam, or any other of the same shape.

    The command sends the lines of a file, each as a request. It prints the answers per second, the 50th, 90th
    and 99th percentile of their latency, the goodput (answers in time per second), and how many answers had
    each status. With --rate, latency counts from when a request was due, so that a server that falls behind
    pays for all that it holds up. Percentiles are those of answers with a status from 200 to 299. Ctrl-C
    ends the measurement, and the numbers so far are printed.

    \b
    Examples:
      pybeam bench-serve http://localhost:8000 --input in.es --rate 50
      pybeam bench-serve http://localhost:8000 --input in.es --clients 16 --stream
      pybeam bench-serve http://localhost:5000 --shape libretranslate --field source=es \\
          --input in.es --rate 5 --deadline 1000
      pybeam bench-serve http://localhost:8001/v1 --shape chat --field max_tokens=64 \\
          --input questions.txt --rate 2 --seconds 120

    \b
    Exit codes:
      0    the numbers were printed
      1    the server does not answer, or refuses the first request
      2    options that are wrong or contradict each other
      130  interrupted by Ctrl-C; the numbers so far were printed
    """
    ask, load = take(AskOptions, values), take(LoadOptions, values)
    run = _Run(url, ask, load, take(OutputOptions, values))
    return run.measure()


@dataclass
class _Run:
    """One run of the command."""

    url: str
    ask: AskOptions
    load: LoadOptions
    output: OutputOptions

    @cached_property
    def shape(self) -> Shape:
        from pybeam.traffic import SHAPES

        found = SHAPES[self.ask.shape]
        if self.ask.stream and found.is_text is None:
            raise click.UsageError(f"--shape {self.ask.shape} has no streams; leave out --stream")
        return found

    @cached_property
    def target(self) -> Target:
        from pybeam.traffic import Target

        try:
            return Target.parse(self.url)
        except ValueError as error:
            raise click.UsageError(f"URL {error}") from error

    @cached_property
    def window(self) -> Window:
        from pybeam.traffic import Window

        load = self.load
        seconds = load.seconds or (math.inf if load.requests else SECONDS)
        return Window(load.warm_up, seconds, load.requests or math.inf)

    def measure(self) -> int:
        """Ask, and print the numbers; returns the exit code."""
        from pybeam.traffic import Summary, as_text

        contents, summary = self._contents(), Summary(self.window)
        interrupt: BaseException | None = None
        ended: list[signals.Ended] = []
        start, computed = time.perf_counter(), time.thread_time()
        try:
            asyncio.run(self._send(contents, summary, ended))
        # the latter is how asyncio itself handles Ctrl-C, where nobody else does
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            interrupt = ended[0] if ended else error
        busy_share = (time.thread_time() - computed) / (time.perf_counter() - start)
        numbers = {
            "url": self.url,
            "shape": self.ask.shape,
            "rate": self.load.rate,
            "clients": self.load.clients,
            **summary.numbers(self.load.deadline / 1e3),
            "client_busy_share": busy_share,
        }
        click.echo(json.dumps(numbers, indent=1) if self.output.is_json else as_text(numbers))
        if slowness := summary.slowness(busy_share):
            click.echo(
                f"pybeam: warning: this client may be slower than the server: {slowness}; ask for less, or "
                "let several clients ask, on machines of their own",
                err=True,
            )
        if interrupt is not None:
            raise interrupt
        return 0

    def _contents(self) -> list[bytes]:
        """Return the bytes of the request of each line."""
        ask, shape, target = self.ask, self.shape, self.target
        fields = dict(ask.field)
        texts = self._texts()
        if shape.needs_model and "model" not in fields:
            try:
                fields["model"] = target.first_model(ask.key, ask.timeout)
            except OSError as error:
                raise click.ClickException(f"{self.url}: {reason_of(error)}") from error
            except ValueError as error:
                raise click.ClickException(
                    f"{self.url}: {error}; give --field model=NAME"
                ) from error
        if ask.stream:
            fields["stream"] = True
        if ask.key is not None and shape.has_key:
            fields.setdefault("api_key", ask.key)
        return [target.post(shape.path, shape.body(text, fields), ask.key) for text in texts]

    def _texts(self) -> list[str]:
        path = self.ask.input_path
        with open_input(path) as file:
            try:
                lines = file.read().decode("utf-8").split("\n")
            except UnicodeDecodeError as error:
                raise click.ClickException(f"--input {path} must be UTF-8, but: {error}") from error
        texts = [line for line in lines if line.strip()]
        if not texts:
            raise click.ClickException(f"--input {path} must have a line that is not empty")
        return texts

    async def _send(
        self, contents: list[bytes], summary: Summary, ended: list[signals.Ended]
    ) -> None:
        """Send the requests. A signal cancels that, and is added to those that have `ended` it.

        Raises ClickException if the first answer shows that others would fail, too.
        """
        from pybeam.traffic import Clients, arrivals, closed_loop, open_loop

        target, load, window = self.target, self.load, self.window
        clients = Clients(target.address, target.tls, self.ask.timeout, self.shape.is_text)
        async with clients:
            with _cancelling(ended), self._progress() as bar:
                first = await clients.ask(contents[0])
                if not first.is_good and first.status not in BUSY:
                    said = f"{first.status}: {first.problem}" if first.status else first.problem
                    raise click.ClickException(f"{self.url}, {self.shape.path}: {said}")

                def note(moment: float, answer: Answer) -> None:
                    summary.add(moment, answer)
                    bar.update()

                following = itertools.cycle(contents)
                if load.rate is not None:
                    due = itertools.takewhile(window.takes, arrivals(load.rate, load.seed))
                    await open_loop(clients, following, due, note)
                else:
                    assert load.clients is not None
                    await closed_loop(clients, following, load.clients, window, note)

    def _progress(self) -> tqdm[NoReturn]:
        from tqdm import tqdm

        load, window = self.load, self.window
        expected = load.rate and load.rate * (window.warm_up + window.seconds)
        total = load.requests or (round(expected) if expected else None)
        return tqdm(
            file=sys.stderr,
            disable=self.output.quiet or not sys.stderr.isatty(),
            dynamic_ncols=True,
            total=total,
            unit=" requests",
        )


def _cancelling(ended: list[signals.Ended]) -> AbstractContextManager[None]:
    """Return a context in which signals cancel this task, and are kept in a list."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def leave(one: signals.Ended) -> None:
        ended.append(one)
        loop.call_soon_threadsafe(task.cancel)

    return signals.ending_in_order(leave)
