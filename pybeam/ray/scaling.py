"""How many replicas a service needs. Ray's controller runs this, so it imports nothing that is large."""

from __future__ import annotations

from typing import Any

# of each replica: hypotheses that it decodes, and those that its waiting requests will have
ROWS = "rows"


class ByRows:
    """A policy of Ray Serve: as many replicas as the rows of all of them need.

    A step costs what its rows cost. Requests are a poor measure: one has a beam of 1, another of 32.

    Args:
        rows: that one replica should have.
    """

    def __init__(self, rows: float) -> None:
        self._rows = rows

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas, which Ray rounds up, bounds and delays."""
        found = (context.aggregated_metrics or {}).get(ROWS)
        if not found:
            # nobody has said anything yet
            return context.target_num_replicas, {}
        return sum(found.values()) / self._rows, {}
