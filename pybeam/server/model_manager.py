"""`ModelManager`: loads, swaps and unloads the models of a server while it answers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from click import ClickException

from pybeam.decoder import Decoder
from pybeam.server.errors import APIError, from_service
from pybeam.server.gates import POLL_SECONDS
from pybeam.server.loading import Loader, Loading, ModelFolders, in_thread, in_words
from pybeam.server.models import ServedModel, ServedModels
from pybeam.server.settings import Settings
from pybeam.serving import Service, ServiceClosed

logger = logging.getLogger(__name__)

State = Literal["loading", "ready", "swapping", "unloading", "failed"]


@dataclass(eq=False)
class Managed:
    """A name, and the model that it stands for.

    Attributes:
        name: what requests call it.
        directory: the files.
        num_bytes: the memory of its weights; 0 while there are none.
        model: None: it is not loaded.
        loading: what will take its place; None: nothing.
        error: why it, or what was to take its place, was not loaded; None: nothing is wrong.
        leaving: ends when it has left; None: it stays.
        makes_room: whether what it leaves is promised to another.
        until: when its requests fail if they have not been answered; on the monotonic clock.
    """

    name: str
    directory: str
    num_bytes: int = 0
    model: ServedModel | None = None
    loading: Loading | None = None
    error: str | None = None
    leaving: asyncio.Task[None] | None = None
    makes_room: bool = False
    until: float = math.inf

    @property
    def state(self) -> State:
        """Whether it is here, comes or goes."""
        if self.leaving is not None:
            return "unloading"
        if self.loading is not None:
            return "loading" if self.model is None else "swapping"
        return "failed" if self.model is None else "ready"


class ModelManager:
    """The models of a server, and those that come and go. The event loop alone calls it.

    A model comes into the list of models that requests are given when it is warm, and leaves it at once.
    Requests that have been given a model keep it until they are answered, whatever has its name by then.

    Args:
        service: decodes.
        models: from which requests are given theirs.
        loader: reads models; None: none can be loaded.
        settings: of the server.

    Attributes:
        budget: bytes that all weights may take; None: no limit.
        is_loading: whether a thread reads a model, which goes on when the event loop has ended.
    """

    def __init__(
        self,
        service: Service,
        models: ServedModels,
        loader: Loader | None,
        settings: Settings,
    ) -> None:
        self._service, self._models, self._loader = service, models, loader
        self._folders = ModelFolders(settings.model_folders)
        self.budget, self._unloads_idle = settings.memory_budget, settings.unload_idle
        self._named: dict[str, Managed] = {}
        for model in models:
            size = 0 if loader is None else loader.num_bytes(model.directory)
            directory = os.path.abspath(model.directory)
            self._named[model.name] = Managed(model.name, directory, size, model)
        self._leaving: list[Managed] = []
        # of files
        self._reads = asyncio.Lock()
        self.is_loading = False

    @property
    def all(self) -> list[Managed]:
        """Those that have names, and those that leave."""
        return [*self._named.values(), *self._leaving]

    @property
    def states(self) -> dict[str, State]:
        """The state of each name; of one that is taken again, that of the new model."""
        return {one.name: one.state for one in [*self._leaving, *self._named.values()]}

    @property
    def available(self) -> list[str]:
        """Folders that may be loaded."""
        return self._folders.names()

    @property
    def num_bytes(self) -> int:
        """The memory of all weights that are here or on their way."""
        coming = (one.loading.num_bytes for one in self.all if one.loading is not None)
        return sum(one.num_bytes for one in self.all) + sum(coming)

    def load(self, name: str, path: str | None = None) -> Managed:
        """Begin to load a model, unless it is here or on its way.

        Args:
            name: what requests will call it.
            path: its folder, in one of those that settings name; None: that of its name.

        Raises:
            APIError: the folder is unfit, or another one has this name.
        """
        directory = self._find(name if path is None else path)
        known = self._named.get(name)
        if known is None or known.state == "failed":
            known = self._named[name] = Managed(name, directory)
            self._begin(known, directory)
        current = known.directory if known.loading is None else known.loading.directory
        if current != directory:
            problem = f"`name` must be another, or be swapped: {name!r} is {current}"
            raise APIError(409, problem, "name")
        return known

    def swap(self, name: str, path: str | None = None) -> Managed:
        """Begin to load what will have the name of a model; until it is warm, nothing changes.

        Args:
            name: of the model.
            path: see `load`; None: the folder from which it was loaded, whose files are read again.

        Raises:
            APIError: there is no such model, or the folder is unfit, or it is being swapped for another.
        """
        known = self._named.get(name)
        if known is None or known.model is None:
            raise APIError(404, f"`name` must be that of a model, but {name!r} is none", "name")
        self._check_that_it_loads()
        directory = known.directory if path is None else self._find(path)
        if known.loading is None:
            self._begin(known, directory)
        elif known.loading.directory != directory:
            problem = f"{name!r} is being swapped for {known.loading.directory}; try again later"
            raise APIError(409, problem, "name")
        return known

    def unload(self, name: str, timeout: float | None = None) -> list[Managed]:
        """Let a model leave. Returns all of this name that do; none if there is no such model.

        Args:
            name: of the model.
            timeout: seconds in which its requests may finish; those that are left then get 503. None: as long
                as it takes.

        Raises:
            APIError: it is being loaded or swapped.
        """
        known = self._named.get(name)
        if known is not None and known.loading is not None:
            problem = f"{name!r} is being loaded; unload it when it has been"
            raise APIError(409, problem, "name")
        if known is not None:
            del self._named[name]
            if known.model is not None:
                self._models.remove(name)
                self._leave(known)
        found = [one for one in self._leaving if one.name == name]
        has_time = math.inf if timeout is None else timeout
        for one in found:
            one.until = min(one.until, time.monotonic() + has_time)
        return found

    def _check_that_it_loads(self) -> None:
        if self._loader is None or not self._folders:
            problem = "this server loads no models; start it with `--model-folder`"
            raise APIError(403, problem, "path")

    def _find(self, path: str) -> str:
        self._check_that_it_loads()
        return self._folders.find(path)

    def _begin(self, known: Managed, directory: str) -> None:
        known.error, known.loading = None, Loading(directory)
        known.loading.outcome = asyncio.ensure_future(self._load(known, known.loading))

    async def _load(self, known: Managed, loading: Loading) -> APIError | None:
        """Load a model and put it in its place. Returns why that failed, after which all is as before."""
        try:
            model = await self._read(known, loading)
        # whatever is wrong
        except Exception as error:
            problem = _problem_of(error)
            logger.error("model %r is not loaded: %s", known.name, problem.message)
            known.loading, known.error = None, problem.message
            return problem
        if known.model is not None:
            old = Managed(known.name, known.directory, known.num_bytes, known.model)
            self._leave(old)
        known.model, known.directory = model, loading.directory
        known.num_bytes, known.loading = loading.num_bytes, None
        self._models.put(model)
        size = in_words(known.num_bytes)
        logger.info("model %r is loaded from %s: %s", known.name, known.directory, size)
        return None

    async def _read(self, known: Managed, loading: Loading) -> ServedModel:
        loader, directory = self._loader, loading.directory
        assert loader is not None
        num_bytes = await asyncio.to_thread(loader.num_bytes, directory)
        await self._make_room(known, loading, num_bytes)

        def read() -> ServedModel:
            try:
                loading.begin_to_read(num_bytes)
                model = loader.load(known.name, directory)
                loading.phase = "warming up"
                self._service.load(_decoders_of(model))
                return model
            finally:
                self.is_loading = False

        # two at a time would share the disk
        async with self._reads:
            self.is_loading = True
            return await in_thread(read)

    async def _make_room(self, known: Managed, loading: Loading, num_bytes: int) -> None:
        """Take memory for weights; if there is not enough, unload what is idle, if that is allowed.

        Raises:
            APIError: there is no room. Nothing has changed then.
        """
        budget = math.inf if self.budget is None else self.budget
        promised = sum(one.num_bytes for one in self._leaving if one.makes_room)
        left = free = budget - self.num_bytes + promised
        idle = [
            one
            for one in self._named.values()
            if one is not known and one.state == "ready" and one.model and one.model.is_idle
        ]
        idle.sort(key=lambda one: one.model.gate.last_used if one.model else 0.0)
        leaving: list[Managed] = []
        while self._unloads_idle and free < num_bytes and idle:
            leaving.append(idle.pop(0))
            free += leaving[-1].num_bytes
        if free < num_bytes:
            raise APIError(
                507,
                f"the weights of {loading.directory} need {in_words(num_bytes)}, but of --memory-budget "
                f"{in_words(budget)} there are {in_words(max(0, left))} free; unload a "
                "model, or raise it",
                "path",
            )
        loading.num_bytes = num_bytes
        # all at once, because a request could be given one meanwhile
        for one in leaving:
            logger.info("model %r is idle and makes room for %r", one.name, known.name)
            one.makes_room = True
            self.unload(one.name)
        gone = [one.leaving for one in self._leaving if one.makes_room and one.leaving]
        # another load may wait for them, too
        await asyncio.gather(*map(asyncio.shield, gone))

    def _leave(self, managed: Managed) -> None:
        self._leaving.append(managed)
        if managed.model is not None:
            # live sessions would keep it for as long as their clients speak
            managed.model.gate.closing.set()
        managed.leaving = asyncio.ensure_future(self._drain(managed))

    async def _drain(self, managed: Managed) -> None:
        """Let a model go when its requests have been answered."""
        assert managed.model is not None
        while not managed.model.is_idle:
            if time.monotonic() >= managed.until:
                logger.warning("model %r leaves, and its requests fail", managed.name)
                break
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.to_thread(self._remove, managed.model)
        managed.model = None
        await asyncio.to_thread(_free)
        self._leaving.remove(managed)
        logger.info("model %r has left", managed.name)

    def _remove(self, model: ServedModel) -> None:
        for decoders in _decoders_of(model).values():
            # the server may have stopped meanwhile
            with contextlib.suppress(ServiceClosed):
                self._service.unload(decoders[0], timeout=0)


def _problem_of(error: Exception) -> APIError:
    """Return the answer to whoever wants a model that cannot be loaded."""
    # of files that are unfit or missing; the command line has its own
    if isinstance(error, (ClickException, ImportError, OSError, TypeError, ValueError)):
        return APIError(422, str(error), "path")
    if isinstance(error, (APIError, ServiceClosed)):
        return from_service(error)
    logger.error("a model failed to load", exc_info=error)
    return APIError(500, f"{type(error).__name__} while loading; the server's log has more")


def _decoders_of(model: ServedModel) -> dict[str, Sequence[Decoder]]:
    """Return the decoders of a model, by their names in the service."""
    own: dict[str, Sequence[Decoder]] = {model.name: model.decoders}
    if model.transcripts is not None:
        own[model.transcripts.name] = [model.transcripts.decoder]
    return own


def _free() -> None:
    """Give back the memory of engines, which refer to each other, and of those that were frozen."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
