"""A profile as a table for people and as a dictionary for programs."""

from __future__ import annotations

from typing import Any

from pybeam.inspect.measure import PhaseTime, Profile

NUM_COMPUTATIONS = 12
# names of C++ templates have hundreds of letters
MAX_NAME = 60

LEGEND = {
    False: """\
ms per step and its share are from runs without the profiler, operators from runs with it. The gap
is the time that no operator covers: Python and the way into operators. It lies between two figures:
  gap    time without the profiler less operators; too low, as operators that call others then hold
         what recording those costs, and off by the noise between two runs
  limit  time less operators, both under the profiler; too high, as recording slows Python""",
    True: """\
ms per step and its share are host time without the profiler; kernels are the time in which one runs
(or a copy) under it, by the phase that launched them. The host gap is the time in which none runs:
  gap    time without the profiler less kernels; off by the noise between two runs
  limit  time less kernels, both under the profiler; too high, as recording slows the host""",
}


def as_dict(profile: Profile) -> dict[str, Any]:
    """Return all numbers by name. Times are in ms per step, shares of a step without the profiler."""
    whole = profile.step
    return {
        "on_gpu": profile.on_gpu,
        "steps": profile.steps,
        "rows_per_step": profile.rows_per_step,
        "step": _numbers(whole, whole, has_gap=True),
        # on a GPU the kernels of a phase run while the host is in other phases
        "phases": {p.name: _numbers(p, whole, not profile.on_gpu) for p in profile.phases},
        "computations": [
            {
                "name": name,
                "ms": 1e-3 * self_us / profile.steps,
                "share": 1e-3 * self_us / profile.steps / whole.host_ms,
                "calls": calls / profile.steps,
            }
            for name, self_us, calls in profile.computations[:NUM_COMPUTATIONS]
        ],
        "seconds": profile.seconds,
        "seconds_profiled": profile.seconds_profiled,
    }


def _numbers(time: PhaseTime, whole: PhaseTime, has_gap: bool) -> dict[str, float]:
    numbers = {"ms": time.host_ms, "busy_ms": time.busy_ms}
    if has_gap:
        numbers |= {"gap_ms": time.gap_ms, "gap_limit_ms": time.gap_limit_ms}
    shares = {
        name.removesuffix("ms") + "share": value / whole.host_ms for name, value in numbers.items()
    }
    return {**numbers, **shares}


def as_text(numbers: dict[str, Any]) -> str:
    """A heading, the table of phases, the meaning of its columns, and the slowest operators or kernels."""
    run = numbers["run"]
    heading = (
        f"{run['model']}, {run['threads']} threads\n{run['sources']} sources, {numbers['steps']} steps, "
        f"{numbers['rows_per_step']:.1f} rows per step; fastest of {run['repeats']} runs"
    )
    computations = "kernels" if numbers["on_gpu"] else "operators"
    phases = [["phase", "ms per step", "share", computations, "share", "gap", "limit"]]
    for name, row in {**numbers["phases"], "step": numbers["step"]}.items():
        gaps = [
            _percent(row[key]) if key in row else "" for key in ("gap_share", "gap_limit_share")
        ]
        phases.append(
            [
                name,
                f"{row['ms']:.3f}",
                _percent(row["share"]),
                f"{row['busy_ms']:.3f}",
                _percent(row["busy_share"]),
                *gaps,
            ]
        )
    most = [[f"{computations}, most first", "ms per step", "share", "calls per step"]]
    most += [
        [row["name"][:MAX_NAME], f"{row['ms']:.3f}", _percent(row["share"]), f"{row['calls']:.1f}"]
        for row in numbers["computations"]
    ]
    return "\n\n".join([heading, _columns(phases), LEGEND[numbers["on_gpu"]], _columns(most)])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _columns(rows: list[list[str]]) -> str:
    """A table of words; the first column is aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])]
            + [word.rjust(width) for word, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in rows
    )
