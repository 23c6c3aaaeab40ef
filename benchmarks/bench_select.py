"""Time `select` on a CPU, for every instruction set, beside torch's log_softmax and topk.

    python -m benchmarks.bench_select [--threads 1] [--output FILE]

torch computes less here: it adds no scores, merges no beams and prunes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import report
from pybeam.backends import load

# vocabulary size, beams, width, max_candidates (None: no limit)
CASES = [
    (8000, 1, 5, 5),
    (8000, 10, 5, 5),
    (58101, 1, 5, 5),
    (58101, 10, 5, 5),
    (256000, 1, 5, 5),
    (256000, 10, 5, 5),
    (8000, 1, 50, None),
    (8000, 16, 50, None),
]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = []
    for vocab_size, num_beams, width, max_candidates in CASES:
        for name, dtype in DTYPES.items():
            logits = (2 * torch.randn(num_beams * width, vocab_size)).to(dtype)
            case = {
                "V": vocab_size,
                "beams": num_beams,
                "width": width,
                "M": max_candidates,
                "dtype": name,
            }
            runs = variants(logits, num_beams, width, max_candidates)
            rows.append({**case, **measured(runs, options.repeats)})
    print(report.table(rows))
    data = {"unit": "microseconds, and how many times faster than torch", "rows": rows}
    report.write("select-cpu", options.output, data)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def variants(
    logits: torch.Tensor, num_beams: int, width: int, max_candidates: int | None
) -> dict[str, Callable[[], object]]:
    """What is timed, by name; all read the same logits."""
    native = load("native")
    num_rows = num_beams * width
    score = -torch.rand(num_rows)
    offset = torch.arange(0, num_rows + 1, width, dtype=torch.int32)
    widths = torch.full((num_beams,), width, dtype=torch.int32)
    limit = None if max_candidates is None else torch.full_like(widths, max_candidates)
    options = (None, limit, None, None, None, None, None)

    def ours(isa: str) -> object:
        native.set_isa(isa)
        return native.select(logits, score, offset, widths, *options, (2,), 2, 2 * width)

    runs: dict[str, Callable[[], object]] = {
        "torch": lambda: torch.log_softmax(logits, 1).topk(max_candidates or 2 * width)
    }
    for isa in ("generic", "avx2", "avx512"):
        try:
            native.set_isa(isa)
        except RuntimeError as error:
            print(f"{isa} is left out: {error}")
            continue
        runs[isa] = lambda isa=isa: ours(isa)
    return runs


def measured(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    with torch.inference_mode():
        report.interleaved_medians(runs, 2)  # warm up
        seconds, _ = report.interleaved_medians(runs, repeats)
    times = {f"{name} us": round(1e6 * value, 1) for name, value in seconds.items()}
    ratios = {
        f"{name} x": round(seconds["torch"] / value, 2)
        for name, value in seconds.items()
        if name != "torch"
    }
    return times | ratios


if __name__ == "__main__":
    main()
