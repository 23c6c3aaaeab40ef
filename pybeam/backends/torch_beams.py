"""Opening, reading, committing and closing beams in plain torch, on any device.

The program of the reference backend, and the oracle of the operators in C++ and Triton. On a GPU it opens
and closes beams. `pybeam.backends.beam_program` states the contracts. Nothing is read back from the device
and every size is known before, so a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends.arrays import (
    EMPTY_BEAM,
    HEURISTIC,
    MAX_LENGTH,
    N_BEST,
    NAN,
    NULL_SLOT,
    OPTIMAL,
    RUNNING,
    TOP_FINISHED,
    WIDTH,
    Beams,
    NewLines,
    PlanRules,
    RowArrays,
    SelectInputs,
    TreeArrays,
    root_survivors,
)
from pybeam.backends.beam_program import BeamRules
from pybeam.backends.torch_plan import beam_report, planned
from pybeam.contracts import Certificate, Finishing, Survivors, Top

INF = float("inf")
INT = torch.int32

TreeAppend = Callable[[TreeArrays, Tensor, Survivors, int], None]


def beam_open(
    tree_append: TreeAppend,
    tree: TreeArrays,
    beams: Beams,
    slot: Tensor,
    lines: NewLines,
    start_id: int,
) -> None:
    i = slot.long()
    beams.ints[i], beams.floats[i] = lines.ints, lines.floats
    # `x[i] = number` would wait for the number's copy to the device
    beams.score[:, 0].index_fill_(0, i, 0.0)
    is_one = slot != NULL_SLOT
    beams.is_alive[i, 0] = is_one
    roots = root_survivors(slot, start_id)._replace(count=is_one.to(INT))
    tree_append(tree, slot, roots, -1)


def beam_read(
    tree: TreeArrays,
    beams: Beams,
    slot: Tensor,
    refills: bool,
    num_rows: int,
    num_entries: int,
    rules: PlanRules | None,
) -> tuple[Tensor, RowArrays, SelectInputs]:
    if rules is not None:
        slot, _ = planned(beams, slot, rules)
    i = slot.long()
    depth, is_alive = beams.depth[i], beams.is_alive[i]  # [A], [A, K]
    width = is_alive.shape[1]
    place, is_row = _packed(is_alive, num_rows)
    source = place.div(width, rounding_mode="floor")
    row_slot = torch.where(is_row, i[source], NULL_SLOT)
    own_entry = torch.where(is_row, place - source * width, 0)
    node = torch.where(is_row, tree.row_node[row_slot, own_entry], 0)
    rows = RowArrays(
        offset=_offsets(beams.num_rows[i]),
        token=torch.where(is_row, tree.token[row_slot, node.long()], 0),
        position=torch.where(is_row, depth[source], 0),
        row_slot=row_slot.to(INT),
        entry=own_entry.to(INT),
        node=node,
        cell=torch.where(is_row, tree.row_cell[row_slot, own_entry], -1),
    )
    place, is_entry = _packed(_counted(width, beams.num_entries[i]), num_entries)
    taken = 0 if refills else beams.num_found[i]
    next_token = beams.prefix[i, depth.long().clamp(max=beams.prefix.shape[1] - 1)]
    return (
        slot,
        rows,
        SelectInputs(
            score=torch.where(is_entry, beams.score[i].flatten()[place], 0.0),
            offset=_offsets(beams.num_entries[i]),
            is_ended=is_entry & ~is_alive.flatten()[place],
            width=_places(beams, i, depth, taken),
            max_candidates=beams.max_candidates[i],
            margin=beams.margin[i],
            local_margin=beams.local_margin[i],
            best_finished=beams.best_finished[i],
            forced=torch.where(depth < beams.scored_from[i], next_token, -1),
            ban_eos=depth - beams.prefix_length[i] < beams.min_length[i],
        ),
    )


def _places(beams: Beams, i: Tensor, depth: Tensor, taken: Tensor | int) -> Tensor:
    """Return the places [A] of the next beams in slots [A], whose rows are at these depths.

    Popped hypotheses have `taken` some of them.
    """
    num_early = beams.early_width.shape[1]
    if num_early == 0:
        return beams.width[i] - taken
    step = (depth - beams.prefix_length[i]).clamp(min=0)
    early = beams.early_width[i, step.long().clamp(max=num_early - 1)]
    width = torch.where(step < beams.num_early_widths[i], early, beams.width[i])
    return (width - taken).clamp(min=0)


def beam_commit(
    tree_append: TreeAppend,
    tree: TreeArrays,
    beams: Beams,
    slot: Tensor,
    live: Tensor,
    survivors: Survivors,
    eos_token: Tensor | None,
    rules: BeamRules,
) -> tuple[Tensor, Tensor, Tensor]:
    """Make the survivors the next beams of slots [A], and report on slots `live`.

    Every EOS among the survivors' tokens has become the first. `eos_token` [A, C] are the original tokens,
    None if there is only one EOS. Returns source and target entries [A * K], and the report.
    """
    # `select` may return float64
    survivors = survivors._replace(
        score=survivors.score.float(), log_prob=survivors.log_prob.float()
    )
    eos_token = survivors.token if eos_token is None else eos_token
    i = slot.long()
    column, width, eos_id = i[:, None], beams.score.shape[1], rules.eos_ids[0]
    moves = beams.num_entries[i] > 0  # [A]
    beams.steps[i] += moves
    beams.expansions[i] += beams.num_rows[i]
    beams.depth[i] += moves
    before = _endings(tree, beams, i, survivors, eos_token)
    tree_append(tree, slot, survivors, eos_id)

    is_ended = survivors.token == eos_id  # [A, C]
    is_alive, place = _replace_beams(beams, i, survivors, is_ended)  # [A, K] each
    if rules.finishing == Finishing.HELD:
        beams.ended_length[i] = before.length.gather(1, place)
        beams.eos_log_prob[i] = before.log_prob.gather(1, place)
        beams.eos_token[i] = before.eos.gather(1, place)
    first, last = survivors.num_finished[:, None], survivors.count[:, None]
    rank = torch.arange(is_ended.shape[1], dtype=INT, device=slot.device)
    live_node = tree.row_node[column, (rank - first).clamp(0, width - 1).long()]
    length = (beams.depth[i] - beams.scored_from[i])[:, None]
    ended = before._replace(
        node=torch.where(is_ended, before.node, live_node),
        length=torch.where(is_ended, before.length, length),
        eos=torch.where(is_ended, before.eos, -1),
    )
    finishes = rank < first  # [A, C]
    if rules.finishing == Finishing.REFILL and not rules.keeps_best:
        finishes &= beams.num_finished[column] + rank < beams.width[column]
    _finish(beams, i, finishes, ended, rules.keeps_best)
    is_optimal = _certified(beams, i, rules.certificate) if rules.certificate else None
    is_top = _topped(beams, i, survivors, eos_token, rules.top) if rules.top else None
    ends = _stop(beams, i, survivors.has_nan, moves, is_top, is_optimal, rules)
    # rows that are left in a beam that ends finish as they are
    is_left = ends[:, None] & (rank >= first) & (rank < last)
    is_left &= is_ended | (beams.ended_only[i] == 0)[:, None]
    _finish(beams, i, is_left, ended, rules.keeps_best)
    old = survivors.parent.clamp(min=0).long().gather(1, place)
    entry = torch.arange(width, dtype=INT, device=slot.device)
    source = torch.where(is_alive, column * width + old, -1)
    target = torch.where(is_alive, column * width + entry, -1)
    return source.flatten().to(INT), target.flatten().to(INT), beam_report(tree, beams, live)


def beam_close(
    tree_release: Callable[[TreeArrays, Tensor], None], tree: TreeArrays, beams: Beams, slot: Tensor
) -> None:
    i = slot.long()
    beams.ints.index_fill_(0, i, 0)
    beams.is_alive.index_fill_(0, i, False)
    tree_release(tree, slot)


class _Endings(NamedTuple):
    """Survivors [A, C] as the hypotheses that they would be if they finished now."""

    node: Tensor
    length: Tensor
    eos: Tensor  # the token that ended it, or -1
    score: Tensor
    log_prob: Tensor  # log-prob of EOS


def _endings(
    tree: TreeArrays, beams: Beams, i: Tensor, survivors: Survivors, eos_token: Tensor
) -> _Endings:
    """Return the endings of survivors that have ended, now or before. Call it before the beam changes."""
    column, old = i[:, None], survivors.parent.clamp(min=0).long()  # [A, C]
    was_alive = beams.is_alive[column, old]
    length = (beams.depth[i] - beams.scored_from[i])[:, None]  # tokens that count in n
    return _Endings(
        node=tree.row_node[column, old],
        length=torch.where(was_alive, length, beams.ended_length[column, old]),
        eos=torch.where(was_alive, eos_token, beams.eos_token[column, old]),
        score=survivors.score,
        log_prob=torch.where(was_alive, survivors.log_prob, beams.eos_log_prob[column, old]),
    )


def _replace_beams(
    beams: Beams, i: Tensor, survivors: Survivors, is_ended: Tensor
) -> tuple[Tensor, Tensor]:
    """Make the next beams of survivors that have not finished.

    Returns which entries [A, K] are rows, and which survivor becomes each entry.
    """
    width, capacity = beams.score.shape[1], is_ended.shape[1]
    entry = torch.arange(width, dtype=INT, device=i.device)
    place = (entry + survivors.num_finished[:, None]).clamp(max=capacity - 1).long()
    num_entries = survivors.count - survivors.num_finished
    is_alive = (entry < num_entries[:, None]) & ~is_ended.gather(1, place)
    beams.score[i] = survivors.score.gather(1, place)
    beams.is_alive[i] = is_alive
    beams.num_entries[i] = num_entries
    beams.num_rows[i] = is_alive.sum(1, dtype=INT)
    return is_alive, place


def _stop(
    beams: Beams,
    i: Tensor,
    has_nan: Tensor,
    moves: Tensor,
    is_top: Tensor | None,
    is_certified: Tensor | None,
    rules: BeamRules,
) -> Tensor:
    """Decide which sources [A] are done. Returns True for those whose whole beam finishes."""
    stop_at = beams.stop_at[i]
    is_empty = beams.num_rows[i] == 0
    is_cut = beams.depth[i] - beams.prefix_length[i] >= beams.max_length[i]
    reason = torch.where(is_empty, EMPTY_BEAM, torch.where(is_cut, MAX_LENGTH, RUNNING))
    if is_certified is not None:
        proof = OPTIMAL if rules.certificate == Certificate.BOUND else HEURISTIC
        reason = torch.where(is_certified, proof, reason)
    if is_top is not None:
        reason = torch.where(is_top, TOP_FINISHED, reason)
    by_n_best = torch.where(stop_at < beams.width[i], N_BEST, WIDTH)
    reason = torch.where(beams.num_found[i] >= stop_at, by_n_best, reason)
    reason = torch.where(has_nan, NAN, reason)
    beams.reason[i] = torch.where(moves, reason, beams.reason[i]).to(INT)
    ends = (reason == EMPTY_BEAM) | (reason == MAX_LENGTH)
    if rules.keeps_best:
        ends |= is_cut & ~has_nan  # where the best are kept, all that is left may be among them
    return ends & moves


def _topped(beams: Beams, i: Tensor, survivors: Survivors, eos_token: Tensor, top: int) -> Tensor:
    """Return [A] bool: whether the best candidate of a step (see `Top`) and enough others have finished."""
    first, last = survivors.num_finished[:, None], survivors.count[:, None]
    # place of the best survivor that goes on, if there is one
    place = first.clamp(max=eos_token.shape[1] - 1).long()

    def at(values: Tensor) -> tuple[Tensor, Tensor]:
        return values[:, 0], values.gather(1, place)[:, 0]

    own, other = at(survivors.score)
    parent, next_parent = at(survivors.parent)
    token, next_token = at(eos_token)
    is_before = (parent < next_parent) | ((parent == next_parent) & (token < next_token))
    is_best = (own > other) | ((own == other) & is_before) | (last <= first)[:, 0]
    is_topped = (first[:, 0] > 0) & is_best
    if top == Top.EVER:
        is_topped |= beams.top_has_ended[i] > 0
        beams.top_has_ended[i] = is_topped.to(INT)
    return is_topped & (beams.num_found[i] >= beams.certified[i])


def _certified(beams: Beams, i: Tensor, certificate: int) -> Tensor:
    """Return [A] bool: whether nothing in the beam can beat the finished hypotheses; see `Certificate`."""
    is_alive, score = beams.is_alive[i], beams.score[i]  # [A, K]
    is_held = _counted(score.shape[1], beams.num_entries[i]) & ~is_alive
    scored_from = beams.scored_from[i]
    now = (beams.depth[i] - scored_from)[:, None]  # [A, 1]
    longest = beams.prefix_length[i] + beams.max_length[i] - scored_from
    most = (longest + beams.cut_length_offset[i])[:, None]
    is_current = certificate == Certificate.CURRENT
    lengths = (now,) if is_current else (torch.minimum(now + 1, most), most)
    best = torch.where(is_alive, score, -INF).amax(1, keepdim=True)  # [A, 1]
    terms = [_final_terms(beams, i, best, length) for length in lengths]
    normed, rewards = zip(*terms, strict=True)
    bound = (torch.stack(normed).amax(0) + torch.stack(rewards).amax(0)).float()
    held = final_score(beams, i, score, beams.ended_length[i])
    bound = torch.maximum(bound[:, 0], torch.where(is_held, held, -INF).amax(1))
    certified = beams.certified[i]
    worst = beams.finished_final[i, certified.long() - 1]
    return (beams.num_finished[i] >= certified) & (worst >= bound)


def _final_terms(beams: Beams, i: Tensor, score: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two terms of `Scoring.final_score` in float64, for scores and lengths [A, n]."""
    alpha, offset, scale, reward, cap = (
        getattr(beams, name)[i][:, None].double()
        for name in ("alpha", "offset", "scale", "reward", "cap")
    )
    normed = score.double() / ((offset + length) / scale) ** alpha
    return normed, reward * torch.minimum(cap, length.double())


def final_score(beams: Beams, i: Tensor, score: Tensor, length: Tensor) -> Tensor:
    """Compute `Scoring.final_score` for scores and lengths [A, n] of slots [A], in float64, rounded once."""
    normed, reward = _final_terms(beams, i, score, length)
    return (normed + reward).float()


def _finish(beams: Beams, i: Tensor, finishes: Tensor, ended: _Endings, keeps_best: bool) -> None:
    """Add the survivors [A, C] that finish to the finished hypotheses, in rank order."""
    cut = torch.where(ended.eos >= 0, 0.0, beams.cut_length_offset[i][:, None])
    final = final_score(beams, i, ended.score, ended.length + cut)
    ints = torch.stack((ended.node, ended.length, ended.eos), -1)  # [A, C, 3]
    floats = torch.stack((ended.score, ended.log_prob, final), -1)
    num_finished = beams.num_finished[i]
    num_new = finishes.sum(1, dtype=INT)
    total = num_finished + num_new
    beams.num_found[i] += num_new
    if keeps_best:
        # stable, so that equal hypotheses stay in the order of finishing
        capacity = beams.finished_ints.shape[1]
        is_one = torch.cat((_counted(capacity, num_finished), finishes), 1)
        finals = torch.cat((beams.finished_final[i], final), 1)
        # a target may finish at -inf; it comes before empty places
        finals = torch.where(is_one, finals.clamp(min=torch.finfo(finals.dtype).min), -INF)
        order = finals.sort(dim=1, descending=True, stable=True).indices
        order = order[:, :capacity, None]
        ints, floats = (
            torch.cat((beams.finished_ints[i], ints), 1),
            torch.cat((beams.finished_floats[i], floats), 1),
        )
        beams.finished_ints[i] = ints.gather(1, order.expand(-1, -1, ints.shape[2]))
        beams.finished_floats[i] = floats.gather(1, order.expand(-1, -1, floats.shape[2]))
        beams.num_finished[i] = torch.minimum(total, beams.width[i])
    else:
        column, dump = i[:, None], beams.finished_ints.shape[1] - 1
        place = num_finished[:, None] + finishes.cumsum(1, dtype=INT) - 1
        place = torch.where(finishes, place, dump).long()
        beams.finished_ints[column, place] = ints
        beams.finished_floats[column, place] = floats
        beams.num_finished[i] = total
    best = torch.where(finishes, ended.score, -INF).amax(1)
    beams.best_finished[i] = torch.maximum(beams.best_finished[i], best)


def _counted(size: int, count: Tensor) -> Tensor:
    """Return [A, size] bool, true in the first ``count[a]`` places of every line."""
    return torch.arange(size, dtype=INT, device=count.device) < count[:, None]


def _packed(mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the places [size] of the True elements of a mask, in order, and which are valid [size]."""
    mask = mask.flatten()
    number = mask.cumsum(0, dtype=torch.long)  # how many stand up to here
    target = torch.where(mask & (number <= size), number - 1, size)
    place = number.new_zeros(size + 1)
    place[target] = torch.arange(mask.numel(), device=mask.device)
    total = number[-1:] if mask.numel() else number.new_zeros(1)
    return place[:size], torch.arange(size, device=mask.device) < total


def _offsets(count: Tensor) -> Tensor:
    """Turn counts [A] into offsets [A + 1]."""
    return torch.nn.functional.pad(count.cumsum(0, dtype=INT), (1, 0))
