"""Make rows with given histories, and run processors on their logits."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam import backends
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.rows import Rows
from pybeam.processors.chain import ProcessorChain

START, EOS = 0, 1
MAX_LENGTH = 8
BACKEND = "reference"


def ints(values) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def rows_of(
    histories: Sequence[Sequence[int]],
    prefix_lengths: Sequence[int] | None = None,
    *,
    room: int = 3,
    min_length: int = 0,
    backend: str | None = None,
) -> Rows:
    """Make one row per hypothesis, in a slot of its own: slot r + 1 holds hypothesis r with its start token.

    The last row is padding, in the null slot.
    """
    num_rows, longest = len(histories), max(map(len, histories))
    tree = TokenTree(backends.load(backend or BACKEND), torch.device("cpu"))
    tree.reserve(num_rows + 1, 1, longest + room)
    for slot, history in enumerate(histories, 1):
        tree.token[slot, : len(history)] = ints(history)
        tree.parent[slot, : len(history)] = torch.arange(-1, len(history) - 1)
    lengths = [*map(len, histories), 1]
    slots = [*range(1, num_rows + 1), 0]
    return Rows(
        tree=tree,
        slot=ints(slots),
        offset=ints([*range(num_rows + 1), num_rows]),
        token=ints([*(history[-1] for history in histories), 0]),
        position=ints(length - 1 for length in lengths),
        row_slot=ints(slots),
        entry=ints([0] * len(slots)),
        node=ints(length - 1 for length in lengths),
        cell=ints([*[0] * num_rows, -1]),
        longest=longest,
        prefix_length=ints([0, *(prefix_lengths or [0] * num_rows)]),
        max_length=ints([0] + [MAX_LENGTH] * num_rows),
        min_length=ints([0] + [min_length] * num_rows),
        eos_ids=(EOS,),
    )


def processed(
    processors,
    logits: Tensor,
    histories,
    prefix_lengths=None,
    *,
    requests=None,
    prompts=None,
    **options,
) -> Tensor:
    """Run processors on [R, V]. Hypotheses grow token by token, as in a search.

    `requests` are the processors of each row's request, `prompts` are those of `Model.prompt`. A padding row
    holds NaN.
    """
    rows = rows_of(histories, prefix_lengths, **options)
    backend = backends.load(options.get("backend") or BACKEND)
    processing = ProcessorChain(processors, torch.device("cpu"), backend)
    processing.reserve(*rows.tree.token.shape)
    num_rows = len(histories)
    requests = requests or [tuple(processors)] * num_rows
    for r in range(num_rows):
        processing.open([r + 1], requests[r : r + 1], prompts[r : r + 1] if prompts else ())
    padding = torch.full((1, logits.shape[1]), torch.nan, dtype=logits.dtype)
    padded = torch.cat((logits, padding))
    for length in range(1, max(map(len, histories)) + 1):
        shorter = [history[:length] for history in histories]
        now = rows_of(shorter, prefix_lengths, **options)
        now = Rows(**{**vars(now), "tree": rows.tree, "prompt": processing.prompts})
        result = processing(padded.clone(), now)
    assert processing.normalises == all(p.stage == "logits" for p in processors)
    return result[:num_rows]


def random_histories(rng: random.Random, vocab_size: int, num_rows: int = 6) -> list[list[int]]:
    """Draw histories of all lengths from 1, full of repetitions and without EOS."""
    return [
        [START, *(rng.randrange(2, vocab_size) for _ in range(rng.choice([0, 1, 2, 3, 8, 13])))]
        for _ in range(num_rows)
    ]
