"""Time processors on a CPU beside those of transformers, on the same logits and hypotheses.

    python -m benchmarks.bench_processors [--threads 1] [--output FILE]

Ours read the hypotheses out of the token tree, which is part of the time; theirs find them ready in a
tensor, which is not. Ours overwrite their logits, so a copy of them is part of the time too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import report
from pybeam import processors
from pybeam.backends import load
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.rows import Rows
from pybeam.processors.chain import Processing

# vocabulary size, beams, width, tokens of a hypothesis
CASES = [(8000, 64, 5, 32), (32000, 64, 5, 32), (32000, 1, 5, 32), (32000, 16, 50, 128)]
BANNED = [[17], [400, 5], [30, 31, 32]]


def chains() -> dict[str, tuple[list, list]]:
    """name -> (ours, theirs)"""
    import transformers as hf

    repetition = (
        processors.repetition_penalty(1.2, counts_start=True),
        hf.RepetitionPenaltyLogitsProcessor(1.2),
    )
    ngram = (
        processors.no_repeat_ngram(3, counts_start=True),
        hf.NoRepeatNGramLogitsProcessor(3),
    )
    suppress = processors.suppress_sequences(BANNED), hf.NoBadWordsLogitsProcessor(BANNED)
    pairs = {"repetition": [repetition], "n-gram": [ngram], "suppress": [suppress]}
    pairs["all three"] = [repetition, ngram, suppress]
    return {name: tuple(map(list, zip(*chain, strict=True))) for name, chain in pairs.items()}


def rows_of(num_beams: int, width: int, history: Tensor) -> Rows:
    """Rows with that history [R, T], in a token tree with twice the room."""
    num_rows, length = history.shape
    tree = TokenTree(load("native"), history.device)
    tree.reserve(num_beams, width, 2 * length)
    # a hypothesis of its own for every row, one after another
    tree.token[:, : width * length] = history.view(num_beams, -1)
    parent = torch.arange(-1, width * length - 1, dtype=torch.int32)
    parent[::length] = -1
    tree.parent[:, : width * length] = parent
    bit = torch.arange(num_rows, dtype=torch.int32) % width
    slot = torch.arange(num_beams, dtype=torch.int32)
    return Rows(
        tree=tree,
        slot=slot,
        offset=torch.arange(0, num_rows + 1, width, dtype=torch.int32),
        token=history[:, -1].contiguous(),
        position=torch.full_like(bit, length - 1),
        row_slot=slot.repeat_interleave(width),
        bit=bit,
        node=(bit + 1) * length - 1,
        cell=bit,
        longest=length,
        prefix_length=torch.zeros_like(slot),
        max_length=torch.full_like(slot, 256),
        eos_ids=(2,),
    )


def variants(case: tuple[int, ...], chain: tuple[list, list]) -> dict[str, Callable[[], Tensor]]:
    """What is timed, by name; both give the same."""
    from transformers import LogitsProcessorList

    vocab_size, num_beams, width, length = case
    history = torch.randint(3, 60, (num_beams * width, length), dtype=torch.int32)
    logits = 2 * torch.randn(num_beams * width, vocab_size)
    ours, theirs = chain
    processing = Processing(ours, logits.device)
    rows = rows_of(num_beams, width, history)
    processing.reserve(*rows.tree.token.shape)
    processing.open(range(num_beams), [tuple(ours)] * num_beams)
    theirs, ids = LogitsProcessorList(theirs), history.long()

    def process() -> Tensor:
        vars(rows).pop("history", None)  # as in a new step
        return processing(logits.clone(), rows)

    runs = {"transformers": lambda: theirs(ids, logits), "pybeam": process}
    torch.testing.assert_close(*(run() for run in runs.values()))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = []
    for case in CASES:
        for name, chain in chains().items():
            runs = variants(case, chain)
            with torch.inference_mode():
                report.interleaved_medians(runs, 2)  # warm up
                seconds, _ = report.interleaved_medians(runs, options.repeats)
            sizes = dict(zip(("V", "beams", "width", "T"), case, strict=True))
            times = {f"{run} us": round(1e6 * value, 1) for run, value in seconds.items()}
            ratio = round(seconds["transformers"] / seconds["pybeam"], 2)
            rows.append({**sizes, "processors": name, **times, "x": ratio})
    print(report.table(rows))
    data = {"unit": "microseconds, and how many times faster than transformers", "rows": rows}
    report.write("processors-cpu", options.output, data)


if __name__ == "__main__":
    main()
