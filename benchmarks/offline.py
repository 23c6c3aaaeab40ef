"""A process that decodes all lines at once, as a server's threads would do without the server.

python -m benchmarks.offline '{"dtype": "int8", ...}'    prints seconds as JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import pybeam
from benchmarks import corpus
from benchmarks.servers import System

LINES_AT_ONCE = 64


def decode(
    dtype: str, width: int, search: str, threads: int, lines: int, data: str | None
) -> dict[str, float]:
    """Decode so many lines of the example corpus.

    Returns:
        `lines`, `seconds`, and the `cpu_seconds` of all threads.
    """
    torch.set_num_threads(threads)
    sources = corpus.load(data and Path(data)).sources[:lines]
    algorithm = System("pybeam", dtype, width, search).algorithm
    model = pybeam.load_model(corpus.MODEL, dtype=dtype)
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(LINES_AT_ONCE), log_probs=True)
    decoder.decode(sources[:LINES_AT_ONCE])
    cpu, start = time.process_time(), time.perf_counter()
    decoder.decode(sources)
    seconds = time.perf_counter() - start
    return {
        "lines": len(sources),
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
    }


if __name__ == "__main__":
    print(json.dumps(decode(**json.loads(sys.argv[1]))))
