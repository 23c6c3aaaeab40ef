"""Share work between the workers of a run, and say behind the run what they say of it, and what took long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

SAID = pytest.StashKey[dict[str, None]]()
# a test of more seconds is marked slow, or is one of few cases that are left of a law
LONG, MARKS = 1.0, {"slow", "thinned"}
MOST_NAMES = 10


def number_of(config: pytest.Config) -> int:
    """The number of this worker; 0, too, for a process that has no others beside it."""
    name = getattr(config, "workerinput", {}).get("workerid", "gw0")
    return int(name.removeprefix("gw"))


def say(config: pytest.Config, lines: list[str]) -> None:
    """Have these lines printed behind the run, once for all workers."""
    if hasattr(config, "workerinput"):
        config.workeroutput["said"] = lines
    else:
        config.stash.setdefault(SAID, {}).update(dict.fromkeys(lines))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    say(node.config, getattr(node, "workeroutput", {}).get("said", []))


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    reports = [report for some in terminalreporter.stats.values() for report in some]
    for line in [*config.stash.get(SAID, {}), *unmarked(reports)]:
        terminalreporter.write_line(line)


def unmarked(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Name the longest tests without a mark. It is no failure: other work makes tests long, too."""
    took: Counter[str] = Counter()
    for report in reports:
        # the first test of a module also makes what all tests of it share
        if getattr(report, "when", None) == "call" and MARKS.isdisjoint(report.keywords):
            took[report.nodeid] += report.duration
    found = [(name, seconds) for name, seconds in took.most_common(MOST_NAMES) if seconds > LONG]
    return [f"{seconds:.1f} s, and neither slow nor thinned: {name}" for name, seconds in found]
