"""`beam_read`, `beam_commit` and `beam_report`: what a step does to beams, beside `select`.

`beam_read` is one launch, with or without rules that say who moves. Each of its programs applies them to all
sources, and so knows the rows before its own.

`beam_commit` is one launch with a program per source. Sources take free pages as they come, so their cells
may be others than those of one source after another. No result depends on where a cell lies.

The engine must make room (`TokenTree.reserve`). If it did not, a survivor gets no node, cell or page.
Nothing is ever written out of bounds.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from pybeam.contracts import Survivors
from pybeam.triton_kernels.beam.columns import NUM_FINISHED
from pybeam.triton_kernels.beam.commit import commit_kernel
from pybeam.triton_kernels.beam.read import NUM_REPORTED, read_kernel, report_kernel

BLOCK_REPORTED = 32
# entries of a beam that one warp reads
WARP_ENTRIES = 256
# sources that a program always has room for, and for which it has another warp
MIN_SOURCES, WARP_SOURCES = 64, 128
# survivors that finish are read a few at a time, one by each thread
WARP_SIZE = 32
# live nodes that a program holds at a time, and of these one warp
TILE_WORDS = 2048
WARP_CELLS = 32
# rows of a beam that one warp commits
WARP_ROWS = 32
MAX_WARPS = 16
# what a launch is told where there are no beams
NO_BEAMS = (*[None] * 8, 0, 0)


def read_beams(
    tree: Any,
    beams: Any,
    slot: Tensor,
    rows: Any,
    entries: Any,
    refills: bool,
    rules: Any = None,
    is_path: bool = False,
) -> Tensor:
    """Fill empty arrays of rows (a `RowArrays`) and of entries (`SelectInputs`) for beams in these slots.

    With `rules`, which are `PlanRules`, those of beams that move, and the others wait. Returns the slots that
    move, as `pybeam.backends.torch_plan.planned` does. The rows of a path stand one after another.
    """
    num_sources, max_entries = slot.numel(), beams.score.shape[1]
    slot = slot.contiguous()
    block = max(16, triton.next_power_of_2(max_entries))
    block_sources = max(MIN_SOURCES, triton.next_power_of_2(num_sources))
    num_warps = triton.cdiv(block, WARP_ENTRIES), triton.cdiv(block_sources, WARP_SOURCES)
    moved = slot if rules is None else torch.empty_like(slot)
    read_kernel[(max(1, num_sources),)](
        tree,
        beams,
        rows,
        entries,
        slot,
        moved,
        num_sources,
        beams.ints.shape[0],
        0 if rules is None else rules.most_rows,
        0 if rules is None else rules.max_wait,
        rows.token.numel(),
        entries.score.numel(),
        tree.token.shape[1],
        max_entries,
        beams.prefix.shape[1],
        beams.early_width.shape[1],
        ORDER=None if rules is None else int(rules.order),
        ONLY_LEAST=rules is not None and bool(rules.only_least),
        REFILLS=bool(refills),
        IS_PATH=is_path,
        BLOCK_SOURCES=block_sources,
        BLOCK_ENTRIES=block,
        BLOCK_PADDING=64,
        num_warps=min(MAX_WARPS, max(num_warps)),
    )
    return moved


def beam_report(tree: Any, beams: Any, slot: Tensor) -> Tensor:
    """Return what the host must know of these slots; see `pybeam.backends.beam_program`."""
    num_sources = slot.numel()
    report = slot.new_empty(1 + (NUM_REPORTED.value + 1) * num_sources)
    report_kernel[(max(1, triton.cdiv(num_sources, BLOCK_REPORTED)),)](
        report,
        beams.ints,
        tree.num_pages,
        tree.num_free_pages,
        slot.contiguous(),
        num_sources,
        BLOCK=BLOCK_REPORTED,
        num_warps=1,
    )
    return report


def tree_append(tree: Any, slot: Tensor, survivors: Survivors, eos_id: int) -> None:
    """`pybeam.kvcache.token_tree.TokenTree.append`; `tree` is a `TreeArrays`."""
    if slot.numel():
        _commit(tree, slot, survivors, eos_id, NO_BEAMS, {})


def beam_commit(
    tree: Any,
    beams: Any,
    slot: Tensor,
    live: Tensor,
    survivors: Survivors,
    eos_token: Tensor | None,
    rules: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Make the next beams of survivors; `rules` are `BeamRules`. See `BeamFunctions.commit`.

    The third result is the report on the slots `live` [A]. Where `slot` is another one, the live one stays as
    it is, so a program can report on what it has itself committed.
    """
    num_sources, max_rows = slot.numel(), beams.score.shape[1]
    source, target = slot.new_empty(2, num_sources * max_rows)
    if num_sources == 0:
        return source, target, beam_report(tree, beams, live)
    report = slot.new_empty(1 + (NUM_REPORTED.value + 1) * num_sources)
    max_finished = beams.finished_ints.shape[1]
    num_scratch = max_finished + survivors.token.shape[1] if rules.keeps_best else 0
    scratch = (num_sources, num_scratch, NUM_FINISHED.value)
    arguments = (
        beams,
        (survivors.token if eos_token is None else eos_token).contiguous(),
        slot.new_empty(scratch),
        slot.new_empty(scratch, dtype=torch.float32),
        source,
        target,
        live.contiguous(),
        report,
        max_finished,
        num_scratch,
    )
    constants = dict(
        FINISHING=int(rules.finishing),
        KEEPS_BEST=bool(rules.keeps_best),
        TOP=int(rules.top),
        CERTIFICATE=int(rules.certificate),
    )
    _commit(tree, slot, survivors, rules.eos_ids[0], arguments, constants)
    return source, target, report


def _commit(
    tree: Any,
    slot: Tensor,
    survivors: Survivors,
    eos_id: int,
    of_beams: tuple,
    constants: dict[str, int],
) -> None:
    """Launch the kernel, for at least one slot."""
    num_sources = slot.numel()
    slot, survivors = slot.contiguous(), Survivors(*[x.contiguous() for x in survivors])
    lines = (tree.token, tree.row_node, tree.live_cell, tree.free_cell, tree.page)
    most = (array.shape[1] for array in lines)
    sizes = (survivors.token.shape[1], tree.page.shape[0], *most, tree.path.shape[2])
    mask_words = tree.live_mask.shape[2]
    has_paths = mask_words == 0
    block_rows = max(8, triton.next_power_of_2(tree.row_node.shape[1]))
    # a beam of few rows has few nodes
    block_cells = TILE_WORDS // 2 if has_paths else min(TILE_WORDS, 16 * block_rows)
    num_warps = max(4, block_rows // WARP_ROWS) if has_paths else block_cells // WARP_CELLS
    num_warps = min(num_warps, MAX_WARPS)
    commit_kernel[(num_sources,)](
        tree,
        *survivors,
        slot,
        eos_id,
        *sizes,
        slot.new_empty(num_sources, tree.live_cell.shape[1]) if has_paths else None,
        *of_beams,
        MASK_WORDS=mask_words,
        BLOCK_ROWS=block_rows,
        BLOCK_CELLS=block_cells,
        CHUNK=min(block_rows, WARP_SIZE * num_warps),
        num_warps=num_warps,
        **constants,
    )
