"""What a step reads of the beams and what it makes of them, in plain torch on any device.

The program of the backends that have no operators of their own for it, and the oracle of the one that
has. Nothing is read back from the device and every size is known before, so a step can be captured in a
CUDA graph.

``beam_read(token, row_node, row_cell, beams, slot, finishing, num_rows, num_entries)``: the fields of
`Rows` from `offset` to `cell`, and those of `Moving`, for slots [A] that move. The first three are arrays of
the tree. There is room for `num_rows` rows and `num_entries` entries. What is left is padding: rows of slot 0
whose cell is -1.

``beam_open(tree, beams, slot, ints, floats, start_id)``: one beam of one row, the start token, in each of
these empty slots [A]; `ints` and `floats` are their lines of the arrays of these names.

``beam_commit(tree, beams, slot, *survivors, eos_id, finishing)``: finish, append and stop; survivors
become the beams of slots [A]. Returns source and target entries [A * K] int32 for `Session.advance`.

An empty slot may be named many times where a beam is read or committed, and stays as it is.

``beam_close(tree, beams, slot)``: empty these slots [A] and give their pages back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pybeam.beams import EMPTY_BEAM, MAX_LENGTH, N_BEST, NAN, NOBODY, RUNNING, WIDTH, Beams
from pybeam.ops import Finishing
from pybeam.token_tree import TreeArrays, roots

INF = float("inf")
INT = torch.int32


def beam_open(
    tree_append: Callable[..., None],
    tree: TreeArrays,
    beams: Beams,
    slot: Tensor,
    ints: Tensor,
    floats: Tensor,
    start_id: int,
) -> None:
    i = slot.long()
    beams.ints[i], beams.floats[i] = ints, floats
    beams.is_alive[i, 0] = True
    beams.score[i, 0] = 0.0
    tree_append(*tree, slot, *roots(slot, start_id))


def beam_read(
    token: Tensor,
    row_node: Tensor,
    row_cell: Tensor,
    beams: Beams,
    slot: Tensor,
    finishing: int,
    num_rows: int,
    num_entries: int,
) -> tuple[Tensor, ...]:
    i = slot.long()
    depth, is_alive = beams.depth[i], beams.is_alive[i]  # [A], [A, K]
    width = is_alive.shape[1]
    place, is_row = _packed(is_alive, num_rows)
    source = place.div(width, rounding_mode="floor")
    row_slot = torch.where(is_row, i[source], NOBODY)
    bit = torch.where(is_row, place - source * width, 0)
    node = torch.where(is_row, row_node[row_slot, bit], 0)
    rows = (
        _offsets(beams.num_rows[i]),
        torch.where(is_row, token[row_slot, node.long()], 0),
        torch.where(is_row, depth[source], 0),
        row_slot.to(INT),
        bit.to(INT),
        node,
        torch.where(is_row, row_cell[row_slot, bit], -1),
    )
    place, is_entry = _packed(_counted(width, beams.num_entries[i]), num_entries)
    taken = 0 if finishing == Finishing.REFILL else beams.num_finished[i]
    prefix_length = beams.prefix_length[i]
    next_token = beams.prefix[i, depth.long().clamp(max=beams.prefix.shape[1] - 1)]
    moving = (
        torch.where(is_entry, beams.score[i].flatten()[place], 0.0),
        _offsets(beams.num_entries[i]),
        is_entry & ~is_alive.flatten()[place],
        beams.width[i] - taken,
        beams.max_candidates[i],
        beams.margin[i],
        beams.local_margin[i],
        beams.best_finished[i],
        torch.where(depth < prefix_length, next_token, -1),
        depth - prefix_length < beams.min_length[i],
    )
    return *rows, *moving


def beam_commit(
    tree_append: Callable[..., None],
    tree: TreeArrays,
    beams: Beams,
    slot: Tensor,
    token: Tensor,
    parent: Tensor,
    score: Tensor,
    log_prob: Tensor,
    count: Tensor,
    num_finished: Tensor,
    has_nan: Tensor,
    eos_id: int,
    finishing: int,
) -> tuple[Tensor, Tensor]:
    i = slot.long()
    column = i[:, None]
    width, capacity = beams.score.shape[1], token.shape[1]
    first, last = num_finished[:, None], count[:, None]
    moves = beams.num_entries[i] > 0  # [A]
    beams.steps[i] += moves
    beams.expansions[i] += beams.num_rows[i]
    beams.depth[i] += moves
    length = beams.depth[i] - beams.prefix_length[i]  # [A] generated tokens

    old = parent.clamp(min=0).long()  # [A, C]
    was_alive = beams.is_alive[column, old]
    is_ended = token == eos_id
    ended_node = tree.row_node[column, old]
    ended_length = torch.where(was_alive, length[:, None], beams.ended_length[column, old])
    eos_log_prob = torch.where(was_alive, log_prob, beams.eos_log_prob[column, old])
    tree_append(*tree, slot, num_finished, count, parent, token, log_prob, eos_id)

    entry = torch.arange(width, dtype=INT, device=slot.device)
    rank = torch.arange(capacity, dtype=INT, device=slot.device)
    place = (entry + first).clamp(max=capacity - 1).long()  # survivor that becomes each entry
    is_alive = (entry < last - first) & ~is_ended.gather(1, place)  # [A, K]
    num_rows = is_alive.sum(1, dtype=INT)
    beams.score[i] = score.gather(1, place)
    beams.is_alive[i] = is_alive
    beams.num_entries[i] = count - num_finished
    beams.num_rows[i] = num_rows
    if finishing == Finishing.HELD:
        beams.ended_length[i] = ended_length.gather(1, place)
        beams.eos_log_prob[i] = eos_log_prob.gather(1, place)

    finishes = rank < first  # [A, C]
    if finishing == Finishing.REFILL:
        finishes &= beams.num_finished[column] + rank < beams.width[column]
    ends = _stop(beams, i, finishes, length, num_rows, has_nan, moves)
    # what is left in a beam that ends finishes as it is
    remains = ends[:, None] & (rank >= first) & (rank < last)
    live_node = tree.row_node[column, (rank - first).clamp(0, width - 1).long()]
    _finish(
        beams,
        i,
        finishes | remains,
        torch.where(is_ended, ended_node, live_node),
        torch.where(is_ended, ended_length, length[:, None]),
        score,
        eos_log_prob,
        is_ended,
    )
    source = torch.where(is_alive, column * width + old.gather(1, place), -1)
    target = torch.where(is_alive, column * width + entry, -1)
    return source.flatten().to(INT), target.flatten().to(INT)


def beam_close(
    tree_release: Callable[..., None], tree: TreeArrays, beams: Beams, slot: Tensor
) -> None:
    i = slot.long()
    beams.ints[i] = 0
    beams.is_alive[i] = False
    tree_release(*tree.pages, slot)


def _stop(beams, i, finishes, length, num_rows, has_nan, moves) -> Tensor:
    """Decide which sources [A] are done; True for those whose beam ends with them."""
    stop_at = beams.stop_at[i]
    has_enough = beams.num_finished[i] + finishes.sum(1) >= stop_at
    is_empty = num_rows == 0
    is_cut = length >= beams.max_length[i]
    reason = torch.where(is_empty, EMPTY_BEAM, torch.where(is_cut, MAX_LENGTH, RUNNING))
    by_n_best = stop_at < beams.width[i]
    reason = torch.where(has_enough, torch.where(by_n_best, N_BEST, WIDTH), reason)
    reason = torch.where(has_nan, NAN, reason)
    beams.reason[i] = torch.where(moves, reason, beams.reason[i]).to(INT)
    return (is_empty | is_cut) & ~has_enough & ~has_nan & moves


def _finish(beams, i, finishes, node, length, score, log_prob, ended) -> None:
    """Append those survivors [A, C] that finish to the finished hypotheses, in rank order."""
    column = i[:, None]
    place = beams.num_finished[column] + finishes.cumsum(1, dtype=INT) - 1
    dump = beams.finished_node.shape[1] - 1
    place = torch.where(finishes, place, dump).long()
    beams.finished_node[column, place] = node
    beams.finished_length[column, place] = length
    beams.finished_score[column, place] = score
    beams.finished_log_prob[column, place] = log_prob
    beams.finished_ended[column, place] = ended.to(INT)
    beams.num_finished[i] += finishes.sum(1, dtype=INT)
    best = torch.where(finishes, score, -INF).amax(1)
    beams.best_finished[i] = torch.maximum(beams.best_finished[i], best)


def _counted(size: int, count: Tensor) -> Tensor:
    """[A, size] bool, the first ``count[a]`` of every line."""
    return torch.arange(size, dtype=INT, device=count.device) < count[:, None]


def _packed(mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Places [size] of the True elements of a mask, in order, and which of them there are [size]."""
    mask = mask.flatten()
    number = mask.cumsum(0, dtype=torch.long)  # how many stand up to here
    target = torch.where(mask & (number <= size), number - 1, size)
    place = number.new_zeros(size + 1)
    place[target] = torch.arange(mask.numel(), device=mask.device)
    total = number[-1:] if mask.numel() else number.new_zeros(1)
    return place[:size], torch.arange(size, device=mask.device) < total


def _offsets(count: Tensor) -> Tensor:
    """[A] counts to [A + 1] offsets."""
    return torch.nn.functional.pad(count.cumsum(0, dtype=INT), (1, 0))
