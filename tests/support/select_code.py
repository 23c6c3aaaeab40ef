"""The machine code of Triton's `select`: what it spends on a logit in the loop that reads a row.

At full bandwidth (4.3 TB/s copied by 132 multiprocessors at 1.98 GHz, each issuing to 128 lanes per
clock) a lane may spend 15.6 instructions on a logit of two bytes and 31 on one of four.
"""

from __future__ import annotations

import torch

from pybeam.contracts import Finishing, SelectOptions

from . import aot

BUDGET = {torch.float32: 31.0, torch.bfloat16: 15.6, torch.float16: 15.6}
VOCAB_SIZE = 58101


def select_launch(dtype: torch.dtype) -> aot.Launch:
    """What `select` launches for one beam of one row."""
    from pybeam.triton_kernels.select import select

    logits, score = torch.zeros(1, VOCAB_SIZE, dtype=dtype), torch.zeros(1)
    offset = torch.tensor([0, 1], dtype=torch.int32)
    options = SelectOptions(capacity=10, eos_ids=(2,), finishing=Finishing.REFILL)
    (launch,) = aot.recorded(lambda: select(logits, score, offset, offset[:1], options))
    return launch


def reading_loop(assembly: aot.Assembly) -> aot.Loop:
    """The innermost loop that loads 16 bytes at once and computes exponentials."""
    loops = [
        loop
        for loop in assembly.loops
        if loop.count(r"\bLDG\.E\.\S*128") and loop.count(r"\bMUFU\.EX2")
    ]
    assert loops, "no loop reads logits 16 bytes at a time"
    return min(loops, key=lambda loop: len(loop.instructions))
