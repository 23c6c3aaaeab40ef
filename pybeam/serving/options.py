"""The wishes of a caller, the decoders that a service is given, and their checks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from pybeam.arguments import number, whole
from pybeam.contracts import MAX_THREADS
from pybeam.decoder import Decoder
from pybeam.platforms.system import ONLY_LINUX_FORKS, can_fork

OnDeadline = Literal["raise", "best"]
Decoders = Decoder | Sequence[Decoder]


class Options(TypedDict, total=False):
    """The wishes of a caller beside the request; see `Service.submit`."""

    model: str | Decoder | None
    timeout: float | None
    priority: int
    client: Hashable
    on_deadline: OnDeadline
    since: float


def check_options(options: Options) -> None:
    """Raise TypeError or ValueError if an option of `Service.submit` is wrong."""
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise TypeError(
            f"an option must be one of {', '.join(Options.__annotations__)}, but is {min(unknown)!r}"
        )
    timeout, priority = options.get("timeout"), options.get("priority", 0)
    if timeout is not None:
        number("timeout", timeout, -float("inf"))
    if "since" in options:
        number("since", options["since"], -float("inf"))
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"`priority` must be an int, but is {priority!r}")
    if options.get("on_deadline", "raise") not in ("raise", "best"):
        raise ValueError(
            f"`on_deadline` must be 'raise' or 'best', but is {options.get('on_deadline')!r}"
        )
    hash(options.get("client"))


def check_engines(
    decoders: Decoders | Mapping[str, Decoders], engines: int, processes: bool
) -> Mapping[str, Decoders]:
    """Return the decoders of a service by name. Raises TypeError or ValueError if an argument is wrong."""
    whole("engines", engines, 1, MAX_THREADS)
    if not isinstance(processes, bool):
        raise TypeError(
            f"`processes` must be True or False, but is {processes!r}; `engines` says how many"
        )
    named = decoders if isinstance(decoders, Mapping) else {"default": decoders}
    if not named:
        raise ValueError("`decoders` must hold at least one, but is empty")
    return named


def check_replicas(name: str, given: Any, *, will_fork: bool = False) -> Sequence[Decoder]:
    """Return the decoders of a model, one for each device.

    Raises:
        TypeError: something else is given.
        ValueError: there are none, they would not give the same results, or copies of this process could not
            compute with them, as `will_fork` says that they are to.
    """
    decoders = [given] if isinstance(given, Decoder) else given
    if not isinstance(decoders, Sequence) or not all(isinstance(one, Decoder) for one in decoders):
        has_one = isinstance(getattr(given, "decoder", None), Decoder)
        remedy = "; give its attribute `decoder`" if has_one else ""
        raise TypeError(
            f"`decoders` must hold Decoders or lists of them, but {name!r} is {given!r}{remedy}"
        )
    if not decoders:
        raise ValueError(f"`decoders` must hold a Decoder for {name!r}, but is empty there")
    if len({id(one) for one in decoders}) < len(decoders):
        raise ValueError(
            f"the decoders of {name!r} must be different objects, but one is there twice; `engines` says how "
            "many threads share one"
        )
    first = _facts(decoders[0])
    for i, decoder in enumerate(decoders):
        for fact, value in _facts(decoder).items():
            if value != first[fact]:
                raise ValueError(
                    f"the decoders of {name!r} must agree in `{fact}`, but it is {first[fact]!r} for the "
                    f"first and {value!r} for number {i}"
                )
    if will_fork:
        _check_can_fork(name, decoders)
    return decoders


def _check_can_fork(name: str, decoders: Sequence[Decoder]) -> None:
    if not can_fork():
        raise ValueError(
            f"`processes` must be left out here: {ONLY_LINUX_FORKS}; let threads decode"
        )
    for model in (decoder.model for decoder in decoders):
        if model.device.type != "cpu":
            raise ValueError(
                f"`processes` needs models on a CPU, but {name!r} is on {model.device}; let threads decode"
            )
        if not model.can_fork:
            raise ValueError(
                f"`processes` copies this process, but {name!r} has threads that a copy would miss; load it "
                "with one thread, `torch.set_num_threads(1)`, or let threads decode"
            )


def _facts(decoder: Decoder) -> dict[str, Any]:
    model = decoder.model
    ids = {own: getattr(model, own) for own in ("vocab_size", "start_id", "eos_id")}
    return {"algorithm": decoder.algorithm, **ids}
