"""Numbers of a JSON text, which has neither infinity nor NaN."""

from __future__ import annotations

import math
from typing import Any


def without_infinity(value: Any) -> Any:
    """Return the value with None in place of floats that are infinite or NaN, in lists and dicts too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_infinity(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinity(one) for one in value]
    return value
