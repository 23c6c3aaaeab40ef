"""Launches of the Triton kernels, recorded and not started, for tests and benchmarks of their code."""

from __future__ import annotations

from functools import partial

import torch

from pybeam.backends import triton as kernels
from pybeam.backends.arrays import (
    Beams,
    Drafts,
    DraftTokens,
    PlanRules,
    RowArrays,
    tree_survivors,
)
from pybeam.backends.beam_program import BeamRules
from pybeam.contracts import Cells, Distances, Finishing, NewNodes, Paths, Survivors
from pybeam.kvcache.token_tree import TokenTree
from pybeam.triton_kernels.attention import tree_attention
from pybeam.triton_kernels.draft import draft_commit
from pybeam.triton_kernels.draw import cut, draw
from pybeam.triton_kernels.prompts import prepend_prompts
from pybeam.triton_kernels.rows import gather_rows, scatter_rows
from pybeam.triton_kernels.tree import backtrace

from .aot import Launch, recorded
from .beam_arrays import EOS, VOCAB


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def attention_launch(
    rows,
    size,
    dtype,
    words=1,
    num_splits=1,
    group=1,
    sources=8,
    is_own=False,
    rules=(),
    has_paths=False,
    has_new=False,
    has_shared=True,
) -> Launch:
    """`is_own`: keys and values stand beside the queries, as in an encoder, instead of in a pool.

    `rules`: those of "bias", "window" and "cap" that there are. `has_new`: the rows' nodes are written, too.
    """
    key_heads = 2
    heads = group * key_heads
    joint = torch.empty(rows * sources, heads + 2 * key_heads, size, dtype=dtype)
    pool = torch.empty(2, 64, key_heads, size, dtype=dtype)
    query, key, value = joint.split([heads, key_heads, key_heads], 1)
    new = NewNodes(key, value, ints(rows * sources)) if has_new else None
    if not is_own:
        key, value = pool
    mask = bit = None
    if words:
        mask = torch.empty(sources, 1024, words, dtype=torch.int64)
        bit = ints(rows * sources)
    offset, slot = ints(sources + 1), ints(sources)
    cell, num_cells = ints(sources, 1024), ints(sources)
    distances = Distances(
        position=ints(rows * sources),
        cell_position=ints(len(key)),
        bias=torch.empty(heads, 129) if "bias" in rules else None,
        window=512 if "window" in rules else None,
        soft_cap=50.0 if "cap" in rules else None,
    )
    paths = None
    if has_paths:
        bit = ints(rows * sources)
        paths = Paths(ints(sources, rows, 32), ints(sources), ints(sources) if has_shared else None)
    cells = Cells(offset, slot, cell, num_cells, mask, bit, paths)
    given = (query, key, value, cells, 0.1, distances if rules else None, new)
    (launch,) = recorded(lambda: tree_attention(*given, num_splits=num_splits))
    return launch


def draw_launches(num_rows: int, num_columns: int, has_cuts: bool) -> list[Launch]:
    """Rows draw tokens, from all or with top-k, top-p and min-p."""
    floats, numbers = torch.zeros(9), ints(9)
    given = torch.zeros(num_rows, num_columns), floats, numbers.long()
    cuts = (numbers, floats, floats) if has_cuts else ()
    places = numbers, numbers, ints(num_rows), ints(num_rows)
    return recorded(lambda: draw(*given, cuts, *places, (2,)))


def cut_launches(num_rows: int, num_columns: int) -> list[Launch]:
    """Processors leave rows what top-k, top-p and min-p leave, a launch for each."""
    x, slot = torch.zeros(num_rows, num_columns), ints(num_rows)
    given = dict(k=ints(9), p=torch.zeros(9), log_ratio=torch.zeros(9))
    return recorded(lambda: [cut(x, slot, **{name: own}) for name, own in given.items()])


def tree_launches(width: int, has_paths: bool = False) -> list[Launch]:
    """A tree of beams of this width grows by a step and is emptied."""
    tree = TokenTree(kernels, torch.device("cpu"))
    tree.widest_with_masks = 0 if has_paths else width
    tree.reserve(4, width, 20)
    tree.reserve_pages(4)
    slot, none = torch.arange(3).int(), ints(3, 2 * width)
    survivors = tree_survivors(none, none, none.float(), slot + 1, slot.clone())
    return recorded(
        lambda: (
            tree.append(slot, survivors, eos_id=2),
            tree.release(slot),
        )
    )


def gather_launches(tensors: list[torch.Tensor], num_moves: int) -> list[Launch]:
    return recorded(lambda: gather_rows(tensors, ints(num_moves), ints(num_moves)))


def prompt_launches() -> list[Launch]:
    """Prompts before trees: with masks of one word and of two, with paths, where cells have positions."""
    rows = RowArrays(*[ints(9) for _ in RowArrays._fields])
    prompts, live = (ints(9, 1024), ints(9), ints(9)), ints(9, 300)
    paths = Paths(ints(9, 40, 32), ints(9))
    own = [Cells(ints(9), ints(8), live, ints(9), paths=paths)]
    for words in (1, 2):
        mask = torch.empty(*live.shape, words, dtype=torch.int64)
        own.append(Cells(ints(9), ints(8), live, ints(9), mask))
    return [
        launch
        for cells in own
        for first_row, position in ((None, None), (ints(9), ints(500, 1)))
        for launch in recorded(
            partial(prepend_prompts, rows, cells, prompts, 500, first_row, position)
        )
    ]


def scatter_launch(dtype: torch.dtype) -> Launch:
    pool = torch.zeros(2, 2, 64, 8, 64, dtype=dtype)
    rows = torch.zeros(50, 3, 8, 64, dtype=dtype)[:, 1]
    (launch,) = recorded(lambda: scatter_rows(pool[1, 0], ints(50), rows))
    return launch


def backtrace_launch() -> Launch:
    (launch,) = recorded(lambda: backtrace(ints(4, 90), ints(4, 90), ints(7), ints(7), 50))
    return launch


def beams_of(width: int, has_paths: bool = False) -> tuple[TokenTree, Beams]:
    """Four slots of this width."""
    device = torch.device("cpu")
    tree = TokenTree(kernels, device)
    tree.widest_with_masks = 0 if has_paths else width
    tree.reserve(4, width, 20)
    return tree, Beams.empty(device).reserved(4, width, prefix=1)


def read_launches(
    width: int, refills: bool, rules: PlanRules | None = None, num_sources: int = 3
) -> list[Launch]:
    """Beams of this width are read, those that move by these rules, and reported on."""
    tree, beams = beams_of(width)
    slot, most = ints(num_sources), num_sources * width
    return recorded(
        lambda: (
            kernels.beam_read(tree.arrays, beams, slot, refills, most, most, rules),
            kernels.beam_report(tree.arrays, beams, slot),
        )
    )


def draft_launches(width: int, opens: bool) -> list[Launch]:
    """Sources that guess ahead begin, or accept what was guessed."""
    tree, beams = beams_of(width)
    drafts = Drafts.empty(torch.device("cpu")).reserved(4, 9)
    survivors = tree_survivors(ints(9, 1), ints(9, 1), ints(9, 1).float())
    given, tokens = None if opens else survivors, DraftTokens(EOS, VOCAB)
    slot = torch.arange(3).int()
    return recorded(lambda: draft_commit(tree.arrays, beams, drafts, slot, given, None, tokens))


def commit_launches(
    width: int, rules: BeamRules, has_paths: bool = False, num_sources: int = 3
) -> list[Launch]:
    """Beams of this width are committed; their survivors stand as `select` returns them."""
    tree, beams = beams_of(width, has_paths)
    capacity = width * (2 if rules.finishing == Finishing.REFILL else 1)
    token, parent = ints(2, num_sources, capacity)
    score, log_prob = torch.zeros(2, num_sources, capacity)
    count, num_finished = ints(2, num_sources)
    has_nan = torch.zeros(num_sources, dtype=torch.bool)
    survivors = Survivors(token, parent, score, log_prob, count, num_finished, has_nan)
    slot = ints(num_sources)
    return recorded(
        lambda: kernels.beam_commit(tree.arrays, beams, slot, slot, survivors, None, rules)
    )
