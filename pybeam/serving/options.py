"""The wishes of a caller, the decoders that a service is given, and their checks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, TypedDict

from pybeam.arguments import number
from pybeam.decoder import Decoder
from pybeam.request import Request
from pybeam.search.widths import is_width, widest
from pybeam.serving.answers import Cost

OnDeadline = Literal["raise", "best"]


class Options(TypedDict, total=False):
    """The wishes of a caller beside the request; see `Service.submit`."""

    model: str | None
    timeout: float | None
    priority: int
    client: Hashable
    on_deadline: OnDeadline


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
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"`priority` must be an int, but is {priority!r}")
    if options.get("on_deadline", "raise") not in ("raise", "best"):
        raise ValueError(
            f"`on_deadline` must be 'raise' or 'best', but is {options.get('on_deadline')!r}"
        )
    hash(options.get("client"))


def cost_of(decoder: Decoder, request: Request) -> Cost:
    """Return what a request costs. Raises what the model's check of a source raises."""
    model = decoder.model
    # a width that is none is refused later
    width = widest(request.width) if is_width(request.width) else decoder.algorithm.max_rows
    width = 1 if request.target is not None else width
    return Cost(model.source_length(model.check(request.source)), width)


def check_replicas(name: str, given: Any) -> Sequence[Decoder]:
    """Return the decoders of a model, one for each device.

    Raises:
        TypeError: something else is given.
        ValueError: there are none, or they would not give the same results.
    """
    decoders = [given] if isinstance(given, Decoder) else given
    if not isinstance(decoders, Sequence) or not all(isinstance(one, Decoder) for one in decoders):
        raise TypeError(
            f"`decoders` must hold Decoders or lists of them, but {name!r} is {given!r}"
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
    return decoders


def _facts(decoder: Decoder) -> dict[str, Any]:
    model = decoder.model
    ids = {own: getattr(model, own) for own in ("vocab_size", "start_id", "eos_id")}
    return {"algorithm": decoder.algorithm, **ids}
