"""What a request changes about the algorithm, for it alone."""

from __future__ import annotations

import dataclasses

from pybeam.limits import FREE, SourceLimit
from pybeam.processors import base
from pybeam.request import Request
from pybeam.search.algorithms import DEFAULT_MAX_LENGTH, UNPRUNED, Algorithm
from pybeam.search.pruning import Pruning
from pybeam.stopping import COUNT

_PRUNING = tuple(field.name for field in dataclasses.fields(Pruning))


def for_target(algorithm: Algorithm, request: Request, max_positions: int | None) -> Algorithm:
    """What scores the request's target: one row that nothing prunes, as long as the target and EOS.

    Raises ValueError if the model has too few positions.
    """
    prefix_length, length = request.prefix_length, len(request.target) + 1
    if max_positions is not None and prefix_length + length > max_positions:
        raise ValueError(
            f"`target` with EOS and the prefix must be at most the model's {max_positions} "
            f"positions, but is {length} + {prefix_length}"
        )
    return dataclasses.replace(
        algorithm,
        width=1,
        pruning=UNPRUNED,
        n_best=1,
        min_length=0,
        max_length=length,
        stop=COUNT,
        num_groups=1,
        scoring=algorithm.scoring if request.scoring is None else request.scoring,
        prefix=FREE,
        processors=base.overridden(algorithm.processors, request.processors or ()),
        draft=None if algorithm.draft is None else algorithm.draft.for_request(request),
    )


def overridden(
    algorithm: Algorithm, request: Request, max_positions: int | None, source_length: int
) -> Algorithm:
    """The algorithm for one request; its limits count what is generated behind the prefix.

    Raises ValueError if an override is invalid or the model has too few positions.
    """
    changes = {
        name: getattr(request, name)
        for name in ("width", "n_best", "min_length", "max_length", "scoring")
        if getattr(request, name) is not None
    }
    pruning = {
        name: getattr(request, name) for name in _PRUNING if getattr(request, name) is not None
    }
    if pruning:
        changes["pruning"] = dataclasses.replace(algorithm.pruning, **pruning)
    if request.processors:
        changes["processors"] = base.overridden(algorithm.processors, request.processors)
    prefix_length = request.prefix_length
    longest = None if max_positions is None else max_positions - prefix_length
    max_length = changes.get("max_length", algorithm.max_length)
    in_limits = prefix_length if algorithm.prefix.in_limits else 0
    if isinstance(max_length, SourceLimit):
        max_length = max_length.tokens(source_length)
        if longest is not None:
            max_length = min(max_length, longest + in_limits)
    if max_length is not None and max_length <= in_limits:
        raise ValueError(
            f"`max_length` counts the prefix here and must be more than its {in_limits} tokens, "
            f"but is {max_length}"
        )
    if max_length is None:
        if longest is not None and longest < 1:
            raise ValueError(
                f"`prefix` must be shorter than the model's {max_positions} positions, "
                f"but has {prefix_length} tokens"
            )
        max_length = DEFAULT_MAX_LENGTH if longest is None else min(DEFAULT_MAX_LENGTH, longest)
    elif longest is not None and max_length - in_limits > longest:
        raise ValueError(
            f"`max_length` plus the prefix must be at most the model's {max_positions} positions, "
            f"but is {max_length - in_limits} + {prefix_length}"
        )
    else:
        max_length -= in_limits
        min_length = changes.get("min_length", algorithm.min_length)
        changes["min_length"] = max(min_length - in_limits, 0)
    if prefix_length and algorithm.prefix.in_length and not algorithm.prefix.is_scored:
        changes["scoring"] = changes.get("scoring", algorithm.scoring).behind(prefix_length)
    if algorithm.draft is not None:
        changes["draft"] = algorithm.draft.for_request(request)
    changes["max_length"] = max_length
    # most requests ask for nothing else; processors may hold what cannot be compared
    if "processors" not in changes and changes == {n: getattr(algorithm, n) for n in changes}:
        return algorithm
    return dataclasses.replace(algorithm, **changes)
