"""`EngineGroups`: the models of a service, by name and by decoder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from pybeam.decoder import Decoder
from pybeam.serving.engine_group import EngineGroup
from pybeam.serving.errors import ServiceClosed


class EngineGroups(Mapping[str, EngineGroup]):
    """The groups of a service: the one that each name stands for, and those that end.

    Any thread may read them without a lock: a table is never changed, and another one takes its place.

    Args:
        most_seconds: that a step may take, see `Service`.
    """

    def __init__(self, most_seconds: float | None) -> None:
        self._most_seconds = most_seconds
        self.lock = threading.Lock()
        self._named: Mapping[str, EngineGroup] = {}
        self._nameless: tuple[EngineGroup, ...] = ()

    def __getitem__(self, name: str) -> EngineGroup:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    @property
    def all(self) -> list[EngineGroup]:
        """Those that have a name, and those that have none any more."""
        return [*self._named.values(), *self._nameless]

    def of(self, model: str | Decoder | None) -> EngineGroup:
        """Return the group of a name or of a decoder; None: the only one.

        Raises:
            ValueError: there is no such name.
            ServiceClosed: there is no such decoder any more.
        """
        named = self._named
        if isinstance(model, Decoder):
            for group in self.all:
                if group.decoder is model:
                    return group
            raise ServiceClosed("the model has been unloaded")
        if model is None and len(named) == 1:
            return next(iter(named.values()))
        if model is not None and model in named:
            return named[model]
        raise ValueError(f"`model` must be one of {', '.join(named)}, but is {model!r}")

    def put(self, groups: Mapping[str, EngineGroup]) -> list[EngineGroup]:
        """Let names stand for groups. Returns those for which they stood. The caller holds the lock."""
        replaced = [self._named[name] for name in groups if name in self._named]
        self._named, self._nameless = {**self._named, **groups}, (*self._nameless, *replaced)
        return replaced

    def take_name(self, group: EngineGroup) -> None:
        """Let no name stand for a group, which is there until its engines have ended."""
        with self.lock:
            named = {name: one for name, one in self._named.items() if one is not group}
            if len(named) < len(self._named):
                self._named, self._nameless = named, (*self._nameless, group)

    def forget(self, group: EngineGroup) -> None:
        """Free what the engines of a group hold that has no name, when they have nothing more to do."""
        with self.lock:
            if group not in self._nameless:
                return
            self._nameless = tuple(one for one in self._nameless if one is not group)
        group.release()

    def end(self, groups: Iterable[EngineGroup], timeout: float | None, problem: str) -> None:
        """Let groups take no more requests, finish those that they have, and stop.

        Args:
            groups: of this service.
            timeout: seconds to wait for requests; then those that are left get `ServiceClosed`. None: as long
                as it takes.
            problem: the text of that error.
        """
        groups = list(groups)
        end = None if timeout is None else time.monotonic() + timeout
        for group in groups:
            group.queue.close()
        for group in groups:
            group.join(None if end is None else max(0.0, end - time.monotonic()))
        for group in groups:  # those of a start that failed have no thread, and may have requests
            group.queue.cancel_all(ServiceClosed(problem))
        for group in groups:
            # a thread whose step never ends cannot be stopped, and does not keep the program alive
            group.join(self._most_seconds)
            group.end_processes()
