"""`Loaded`: a model with its folder and its search, which all tasks share."""

from __future__ import annotations

import copy
import threading
import weakref
from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pybeam.arguments import LARGEST, some
from pybeam.decoder import Decoder, OnError
from pybeam.engine.schedule import Schedule
from pybeam.models.base import InProcess, Model
from pybeam.search.algorithms import Algorithm

if TYPE_CHECKING:
    from pybeam.serving import Service

# seconds before a bar appears
BAR_DELAY = 1.0
# the methods of which each class that `pybeam.load` returns has one
TASKS = ("translate", "generate", "transcribe")


@dataclass(frozen=True)
class Folder:
    """The place that a model comes from.

    Args:
        name: as the user named it.
        path: the folder.
        progress: whether long lists show a bar, on a terminal.
    """

    name: str
    path: Path
    progress: bool = True


class Loaded(InProcess, ABC):
    """Base of what `pybeam.load` returns.

    Attributes:
        path: the model's folder.
        model, decoder: what decodes; see `pybeam.load_model` and `pybeam.Decoder`.
    """

    # what a source is called in messages and beside the bar
    item: ClassVar[str] = "text"

    def __init__(
        self, folder: Folder, model: Model, search: Algorithm, schedule: Schedule | None
    ) -> None:
        self._folder, self.path, self.model = folder, folder.path, model
        self.decoder = Decoder(model, search, schedule)

    def __repr__(self) -> str:
        model, search = self.model, self.decoder.algorithm
        network = getattr(model, "network", model)
        config = getattr(network, "config", None)
        dtype = getattr(network, "weight_dtype", None) or getattr(network, "dtype", "")
        facts = [getattr(config, "model_type", type(model).__name__)]
        if model.num_parameters is not None:
            facts.append(f"{model.num_parameters:,} parameters")
        facts.append(f"{str(dtype).removeprefix('torch.')} on {model.device}".strip())
        facts.append(f"a beam of {search.width}" if search.max_width > 1 else "greedy search")
        if self._languages:
            facts.append(f"languages {some(self._languages)}")
        return f"{type(self).__name__}({self._folder.name!r}: {', '.join(facts)})"

    # type checkers must find what is not there
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what the model does instead; Python asks for attributes that are not there."""
            if name not in TASKS:
                return super().__getattribute__(name)
            own = next(task for task in TASKS if hasattr(type(self), task))
            raise AttributeError(
                f"a {type(self).__name__} has no `{name}`, as the model in {self.path} does something else; "
                f"call `{own}`"
            )

    @property
    def _languages(self) -> Sequence[str]:
        """The languages that `repr` names."""
        return ()

    def with_search(self, search: Algorithm) -> Self:
        """Return the same model with another search. They share the weights.

        Args:
            search: such as `pybeam.fixed_beam(10)`.

        Raises:
            ValueError, TypeError: the search does not fit the model.
        """
        check_search(search)
        twin = copy.copy(self)
        vars(twin).pop("_service", None)
        twin.decoder = Decoder(self.model, search, self.decoder.schedule)
        return twin

    def _bar(self, total: int | None) -> Any:
        from tqdm import tqdm

        # None: off unless stderr is a terminal
        is_off = None if self._folder.progress else True
        return tqdm(total=total, unit=f" {self.item}s", delay=BAR_DELAY, disable=is_off)


def check_search(search: object) -> None:
    """Raise TypeError, which names the option of a task, unless this is a search."""
    if not isinstance(search, Algorithm):
        raise TypeError(f"`search` must be one such as pybeam.fixed_beam(5), but is {search!r}")


def several(sources: Any, check: Callable[[Any], None]) -> Iterable[Any]:
    """Return several sources. Those of a list or a tuple are checked first, and so is what is not several."""
    if isinstance(sources, str | bytes | dict) or not isinstance(sources, Iterable):
        check(sources)
    for source in sources if isinstance(sources, list | tuple) else ():
        check(source)
    return sources


def check_on_error(on_error: str) -> None:
    """Raise ValueError unless it says what to do about sources that fail."""
    if on_error not in ("return", "raise"):
        raise ValueError(f"`on_error` must be 'return' or 'raise', but is {on_error!r}")


def raised(answer: Any, on_error: OnError) -> Any:
    """Return an answer, or raise it if it is an error that nobody wants to have returned."""
    if isinstance(answer, Exception) and on_error == "raise":
        raise answer
    return answer


def start_service(decoder: Decoder, owner: object) -> Service:
    """Return a service that decodes for all who ask its owner, as long as that lives."""
    # few programs are asynchronous
    from pybeam.serving import Service

    service = Service(decoder, max_waiting=LARGEST, max_step_seconds=None)
    # when the program ends, its threads end by themselves
    weakref.finalize(owner, _close, service).atexit = False
    return service.start(warm_up=False)


def _close(service: Service) -> None:
    # the owner may be forgotten in a thread of the service, which cannot wait for itself
    threading.Thread(target=service.close, kwargs={"timeout": 0.0}, daemon=True).start()
