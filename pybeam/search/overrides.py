"""The algorithm of one request: that of the decoder with the overrides of the request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pybeam.arguments import LARGEST_INT32, whole
from pybeam.limits import FREE, PrefixRule, SourceLimit
from pybeam.models.base import Model
from pybeam.processors import base
from pybeam.request import Request, with_prefix
from pybeam.search.algorithms import DEFAULT_MAX_LENGTH, UNPRUNED, Algorithm
from pybeam.search.pruning import Pruning
from pybeam.stopping import COUNT
from pybeam.text.encoded import Encoded

_PRUNING = tuple(field.name for field in dataclasses.fields(Pruning))


class DefaultPrefix(tuple[int, ...]):
    """A prefix that comes from the source or from the model's folder, not from the request."""


def with_default_prefix(request: Request, algorithm: Algorithm, model: Model) -> Request:
    """Return the request with the prefix that its source or the model's folder asks for, if it has none."""
    if request.prefix is not None:
        return request
    prefix: tuple[int, ...] = ()
    if isinstance(request.source, Encoded):
        prefix = request.source.prefix
    elif model.settings.forced_bos_token_id is not None:
        prefix = (model.settings.forced_bos_token_id,)
    if not prefix or base.forces_first((*algorithm.processors, *(request.processors or ()))):
        return request
    return with_prefix(request, DefaultPrefix(prefix))


def for_target(
    algorithm: Algorithm, request: Request, max_positions: int | None, source_length: int = 0
) -> Algorithm:
    """Return the algorithm that scores a request's target: one row, unpruned, with room for target and EOS.

    There is room for one token more, unless the search would cut there. So what a processor does at the limit
    happens to a target that reaches it, and to no other.

    Raises ValueError if the model has too few positions.
    """
    assert request.target is not None
    prefix_length, length = request.prefix_length, len(request.target) + 1
    if max_positions is not None and prefix_length + length > max_positions:
        raise ValueError(
            f"`target` with EOS and the prefix must be at most the model's {max_positions} "
            f"positions, but is {length} + {prefix_length}"
        )
    if length != _cut_at(algorithm, request, max_positions, source_length):
        room = length + 1 if max_positions is None else max_positions - prefix_length
        length = min(length + 1, room)
    return dataclasses.replace(
        algorithm,
        width=1,
        pruning=UNPRUNED,
        n_best=1,
        min_length=0,
        max_length=length,
        stop=COUNT,
        num_groups=1,
        ended_only=False,
        scoring=algorithm.scoring if request.scoring is None else request.scoring,
        prefix=FREE,
        processors=tuple(
            one.for_target() if isinstance(one, base.Processor) else one
            for one in base.overridden(algorithm.processors, request.processors)
        ),
        draft=None if algorithm.draft is None else algorithm.draft.for_request(request),
    )


def of_source(algorithm: Algorithm, content: Any, prefix: Sequence[int]) -> Algorithm:
    """Return the algorithm for one source, as its model has checked it."""
    processors = tuple(
        one.of_source(content, prefix) if isinstance(one, base.Processor) else one
        for one in algorithm.processors
    )
    return dataclasses.replace(algorithm, processors=processors)


def overridden(
    algorithm: Algorithm, request: Request, max_positions: int | None, source_length: int
) -> Algorithm:
    """Return the algorithm for one request. Its limits count the tokens behind the prefix.

    Raises ValueError if an override is invalid or the model has too few positions.
    """
    changes = _given(request, ("width", "n_best", "scoring", "ended_only"))
    pruning = _given(request, _PRUNING)
    if pruning:
        changes["pruning"] = dataclasses.replace(algorithm.pruning, **pruning)
    if request.processors is not None:
        changes["processors"] = base.overridden(algorithm.processors, request.processors)
    changes["min_length"], changes["max_length"] = _length_limits(
        algorithm, request, max_positions, source_length
    )
    prefix_length, rule = request.prefix_length, rule_of(algorithm, request)
    if prefix_length and rule.in_length and not rule.is_scored:
        changes["scoring"] = changes.get("scoring", algorithm.scoring).behind(prefix_length)
    if algorithm.draft is not None:
        changes["draft"] = algorithm.draft.for_request(request)
    # most requests override nothing
    if "processors" not in changes and _is_as(algorithm, changes):
        return algorithm
    return dataclasses.replace(algorithm, **changes)


def rule_of(algorithm: Algorithm, request: Request) -> PrefixRule:
    """Return where the request's prefix counts."""
    return (
        algorithm.prefix.of_default
        if isinstance(request.prefix, DefaultPrefix)
        else algorithm.prefix
    )


def _is_as(algorithm: Algorithm, changes: dict[str, Any]) -> bool:
    """Whether these are the algorithm's own values. One of another type may not compare itself."""
    own = {name: getattr(algorithm, name) for name in changes}
    return all(
        type(value) is type(own[name]) and value == own[name] for name, value in changes.items()
    )


def _given(request: Request, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the overrides that the request has."""
    return {name: value for name in names if (value := getattr(request, name)) is not None}


def _length_limits(
    algorithm: Algorithm, request: Request, max_positions: int | None, source_length: int
) -> tuple[int, int]:
    """Return `min_length` and `max_length` in tokens behind the prefix.

    Raises TypeError or ValueError if the request's limits are invalid, or if the prefix leaves no room.
    """
    prefix_length = request.prefix_length
    room = None if max_positions is None else max_positions - prefix_length
    if room is not None and room < 1:
        raise ValueError(
            f"`prefix` must be shorter than the model's {max_positions} positions, but has "
            f"{prefix_length} tokens"
        )
    # tokens of the prefix that the given limits include
    included = prefix_length if rule_of(algorithm, request).in_limits else 0
    own = _given(request, ("min_length", "max_length"))
    min_length = own.get("min_length", algorithm.min_length)
    max_length = own.get("max_length", algorithm.max_length)
    whole("min_length", min_length, 0, LARGEST_INT32)
    min_length = max(min_length - included, 0)
    if max_length is None:
        longest = _longest_output(algorithm)
        return min_length, longest if room is None else min(longest, room)
    if isinstance(max_length, SourceLimit):
        max_length = max_length.tokens(source_length)
        if room is not None:
            max_length = min(max_length, room + included)
    whole("max_length", max_length, 1, LARGEST_INT32)
    if max_length <= included:
        raise ValueError(
            f"`max_length` counts the prefix here and must be more than its {included} tokens, "
            f"but is {max_length}"
        )
    if room is not None and max_length - included > room:
        raise ValueError(
            f"`max_length` plus the prefix must be at most the model's {max_positions} positions, "
            f"but is {max_length - included} + {prefix_length}"
        )
    return min_length, max_length - included


def _cut_at(
    algorithm: Algorithm, request: Request, max_positions: int | None, source_length: int
) -> int:
    """Return the tokens behind the prefix at which a search of this request would be cut."""
    given = algorithm.max_length if request.max_length is None else request.max_length
    included = request.prefix_length if rule_of(algorithm, request).in_limits else 0
    if given is None:
        given, included = _longest_output(algorithm), 0
    most = given.tokens(source_length) if isinstance(given, SourceLimit) else given
    most -= included
    return most if max_positions is None else min(most, max_positions - request.prefix_length)


def _longest_output(algorithm: Algorithm) -> int:
    """The tokens after which a hypothesis is cut, EOS included, if nobody says otherwise."""
    own = [p.longest_output for p in algorithm.processors if isinstance(p, base.Processor)]
    return min((length for length in own if length is not None), default=DEFAULT_MAX_LENGTH)
