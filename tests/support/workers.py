"""Share work between the workers of a run, and repeat behind the run what they say of it."""

from __future__ import annotations

import pytest

SAID = pytest.StashKey[dict[str, None]]()


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
    for line in config.stash.get(SAID, {}):
        terminalreporter.write_line(line)
