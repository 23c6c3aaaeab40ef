"""One line per op and shape: ours beside the fastest peer."""

from __future__ import annotations

OURS = ("native", "triton")
CASE = ("op", "shape", "dtype")
# columns of the better one of ours
FROM_BEST = {
    "nodes": "nodes",
    "of copy": "of_copy",
    "limit us": "limit µs",
    "of limit": "of limit",
    "forecast us": "forecast µs",
    "times forecast": "times forecast",
}


def summary(rows: list[dict]) -> list[dict]:
    """µs of both backends, the better one beside the machine and its forecast, and what peers take."""
    cases: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        cases.setdefault(tuple(row[name] for name in CASE), {})[row["backend"]] = row
    return [_line(case, by_backend) for case, by_backend in cases.items()]


def _line(case: tuple, by_backend: dict[str, dict]) -> dict:
    us = {name: row["us"] for name, row in by_backend.items() if "us" in row}
    failed = [name for name, row in by_backend.items() if "error" in row]
    line = dict(zip(CASE, case, strict=True))
    line |= {f"{name} us": us.get(name) for name in OURS}
    ours = [name for name in OURS if name in us]
    peers = [name for name in us if name not in OURS]
    best = min(ours, key=us.get, default=None)
    for name, column in FROM_BEST.items():
        line[name] = by_backend[best].get(column) if best else None
    line["torch us"] = us.get("torch")
    line["torch.compile us"] = us.get("torch.compile")
    peer = min((name for name in peers if name != "torch"), key=us.get, default=None)
    line["best peer us"] = us.get(peer)
    line["best peer"] = peer
    line["times"] = round(us[peer] / us[best], 2) if best and peer else None
    line["failed"] = ", ".join(failed)
    return line
