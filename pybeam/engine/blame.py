"""Which sources leave because a step has failed: those that fail alone, or all that share the broken part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybeam.backends.arrays import NULL_SLOT
from pybeam.engine.failures import StepFailed, each_alone, kept


def blame(
    error: Exception, live: Sequence[int], try_alone: Callable[[list[int]], object]
) -> dict[int, Exception]:
    """Return the errors, by slot, of the sources that leave because a step of live ones raised this.

    A source that fails alone too has caused the error. If there is none, the shared part has, and all fail.
    """
    if not isinstance(error, StepFailed):
        return dict.fromkeys(live, kept(error))
    cause = error.__cause__
    assert isinstance(cause, Exception)
    moving = [slot for slot in error.slot.tolist() if slot != NULL_SLOT] or list(live)
    errors: dict[int, Exception] = {}
    if error.is_undone and len(moving) > 1:
        errors = {moving[i]: own for i, own in each_alone(try_alone, moving).items()}
    return errors or dict.fromkeys(moving, kept(cause))
