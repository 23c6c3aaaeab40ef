"""The oracle: every op in plain torch, as the contract reads, on any device and in float64 too.

Contracts are in `pybeam.ops` and `pybeam.kvcache.token_tree`; speed is no aim here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from pybeam.backends import torch_beams as beams
from pybeam.backends import torch_drafts as drafts
from pybeam.backends import torch_layers as layers
from pybeam.contracts import PAGE_CELLS, Finishing

INF = float("inf")


def select(
    logits: Tensor,
    score: Tensor,
    offset: Tensor,
    width: Tensor,
    is_ended: Tensor | None,
    max_candidates: Tensor | None,
    margin: Tensor | None,
    local_margin: Tensor | None,
    best_finished: Tensor | None,
    forced: Tensor | None,
    ban_eos: Tensor | None,
    eos_ids: Sequence[int],
    finishing: int,
    capacity: int,
    normalise: bool = True,
) -> tuple[Tensor, ...]:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logit = logits.to(dtype) + 0.0  # [R, V]; -0.0 becomes +0.0
    row_has_nan = (logit.isnan() | (logit == INF)).any(1).tolist()
    # stable: equal logits keep token order, as torch.topk does not
    order = torch.sort(logit, dim=1, descending=True, stable=True).indices
    peak = logit.amax(1, keepdim=True) if logit.numel() else logit
    shifted = torch.where(logit == -INF, logit, logit - peak)
    log_prob = torch.where(logit == -INF, logit, shifted - shifted.exp().sum(1, keepdim=True).log())
    if not normalise:
        log_prob = logit

    def at(data: Tensor | None, s: int, default):
        return default if data is None else data[s].item()

    num_beams = width.numel()
    token_out = torch.full((num_beams, capacity), -1, dtype=torch.int32)
    parent_out = token_out.clone()
    score_out = torch.full((num_beams, capacity), -INF, dtype=dtype)
    log_prob_out = score_out.clone()
    count = torch.zeros(num_beams, dtype=torch.int32)
    num_finished = torch.zeros(num_beams, dtype=torch.int32)
    has_nan = torch.zeros(num_beams, dtype=torch.bool)
    bounds = offset.tolist()
    row = 0
    for s in range(num_beams):
        # more than that many of one row cannot be among the best of the beam
        most = int(width[s]) * (1 + len(eos_ids) if finishing == Finishing.REFILL else 1)
        candidates = []  # (score, parent, token, log_prob, is_held), sorted below
        for parent, entry in enumerate(range(bounds[s], bounds[s + 1])):
            if is_ended is not None and is_ended[entry]:
                candidates.append((score[entry].to(dtype), parent, eos_ids[0], 0.0, True))
                continue
            has_nan[s] |= row_has_nan[row]
            candidates += _row_candidates(
                score[entry].to(dtype),
                parent,
                order[row],
                log_prob[row],
                limit=min(at(max_candidates, s, most), most),
                forced=at(forced, s, -1),
                banned=eos_ids if at(ban_eos, s, False) else (),
            )
            row += 1
        if has_nan[s]:
            continue
        candidates = [candidate for candidate in candidates if candidate[0] > -INF]
        # stable, and built by parent and rank: ties keep that order
        candidates.sort(key=lambda candidate: -candidate[0])
        finished, kept = _finish(candidates, int(width[s]), eos_ids, Finishing(finishing))
        best = max(
            [c[0] for c in kept]
            + [c[0] for c in finished if finishing == Finishing.HELD]
            + [torch.tensor(at(best_finished, s, -INF), dtype=dtype)],
            default=-INF,
        )
        best_log_prob = max([c[3] for c in kept if not c[4]], default=-INF)
        floor = best - at(margin, s, INF)
        local_floor = best_log_prob - torch.tensor(at(local_margin, s, INF), dtype=dtype)
        survivors = finished + [c for c in kept if c[0] > floor and (c[4] or c[3] > local_floor)]
        count[s], num_finished[s] = len(survivors), len(finished)
        for j, (total, parent, token, last, _) in enumerate(survivors):
            token_out[s, j], parent_out[s, j] = token, parent
            score_out[s, j], log_prob_out[s, j] = total, last
    results = (token_out, parent_out, score_out, log_prob_out, count, num_finished, has_nan)
    return tuple(result.to(logits.device) for result in results)


def _row_candidates(score, parent, order, log_prob, limit, forced, banned) -> list[tuple]:
    if forced >= 0:
        return [(score, parent, forced, torch.zeros_like(score), False)]
    candidates = []
    for token in order.tolist():
        if len(candidates) == limit or log_prob[token] == -INF:
            break
        if token not in banned:
            candidates.append((score + log_prob[token], parent, token, log_prob[token], False))
    return candidates


def _finish(
    candidates: list, width: int, eos_ids: Sequence[int], finishing: Finishing
) -> tuple[list, list]:
    """Split the ranked candidates of one beam into those that finish now and its next beam."""
    if finishing == Finishing.REFILL:
        finished = [c for c in candidates[:width] if c[2] in eos_ids]
        seen = candidates[: (1 + len(eos_ids)) * width]
        going_on = [c for c in seen if c[2] not in eos_ids]
        return finished, going_on[:width]
    candidates = candidates[:width]
    if finishing == Finishing.SHRINK:
        finished = [c for c in candidates if c[2] in eos_ids]
        return finished, [c for c in candidates if c[2] not in eos_ids]
    popped = 0
    if finishing == Finishing.HELD:
        while popped < len(candidates) and candidates[popped][2] in eos_ids:
            popped += 1
    return candidates[:popped], candidates[popped:]


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offset: Tensor,
    slot: Tensor,
    cell: Tensor,
    num_cells: Tensor,
    mask: Tensor | None,
    bit: Tensor | None,
    scale: float,
) -> Tensor:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    group = query.shape[1] // key.shape[1]
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    bounds = offset.tolist()
    for a, p in enumerate(slot.tolist()):
        rows = slice(bounds[a], bounds[a + 1])
        n = int(num_cells[p])
        if n == 0 or bounds[a] == bounds[a + 1]:
            continue
        cells = cell[p, :n].long()
        k = key[cells].to(dtype).repeat_interleave(group, 1)  # [n, H, D]
        v = value[cells].to(dtype).repeat_interleave(group, 1)
        logit = torch.einsum("rhd,nhd->rhn", query[rows].to(dtype), k) * scale
        if mask is not None:
            word = mask[p, :n][:, (bit[rows] // 64).long()]  # [n, rows]
            visible = (word >> (bit[rows] % 64).long()) & 1 == 1
            logit = logit.masked_fill(~visible.T[:, None], -INF)
        sees_none = (logit == -INF).all(-1, keepdim=True)
        weight = torch.softmax(logit, -1).masked_fill(sees_none, 0.0)
        out[rows] = torch.einsum("rhn,nhd->rhd", weight, v).to(query.dtype)
    return out


def tree_append(
    token: Tensor,
    parent: Tensor,
    log_prob: Tensor,
    num_nodes: Tensor,
    row_node: Tensor,
    row_cell: Tensor,
    live_cell: Tensor,
    live_mask: Tensor,
    num_live: Tensor,
    free_cell: Tensor,
    num_free: Tensor,
    page: Tensor,
    num_pages: Tensor,
    free_page: Tensor,
    num_free_pages: Tensor,
    slot: Tensor,
    first: Tensor,
    count: Tensor,
    survivor_parent: Tensor,
    survivor_token: Tensor,
    survivor_log_prob: Tensor,
    eos_id: int,
) -> None:
    for a, p in enumerate(slot.tolist()):
        survivors = range(int(first[a]), int(count[a]))
        parents = survivor_parent[a].tolist()
        is_live = {j: int(survivor_token[a, j]) != eos_id for j in survivors}
        _inherit_masks(
            live_cell[p],
            live_mask[p],
            num_live[p],
            free_cell[p],
            num_free[p],
            [(row, parents[j]) for row, j in enumerate(survivors) if is_live[j]],
        )
        old_node = row_node[p].clone()
        for row, j in enumerate(survivors):
            node = int(old_node[parents[j]]) if parents[j] >= 0 else -1
            if not is_live[j]:
                row_node[p, row], row_cell[p, row] = node, -1
                continue
            new, live = int(num_nodes[p]), int(num_live[p])
            assert new < token.shape[1] and live < live_cell.shape[1], "the token tree is full"
            if num_free[p] == 0:
                _take_page(p, free_cell, num_free, page, num_pages, free_page, num_free_pages)
            num_free[p] -= 1
            cell = free_cell[p, int(num_free[p])]
            token[p, new], parent[p, new] = survivor_token[a, j], node
            log_prob[p, new] = survivor_log_prob[a, j]
            row_node[p, row], row_cell[p, row] = new, cell
            live_cell[p, live] = cell
            live_mask[p, live] = 0
            live_mask[p, live, row // 64] = _word(1 << row % 64)
            num_nodes[p] += 1
            num_live[p] += 1


def _word(bits: int) -> int:
    """A 64-bit mask as the signed number that an int64 tensor holds."""
    return bits - (1 << 64) if bits >> 63 else bits


def _inherit_masks(cell, mask, num_live, free_cell, num_free, inherits) -> None:
    """Give every live node the bits of its rows' children; a node that no row sees frees its cell."""
    kept = 0
    for u in range(int(num_live)):
        words = [bits % (1 << 64) for bits in mask[u].tolist()]
        new = [0] * len(words)
        for row, parent in inherits:
            if parent >= 0 and words[parent // 64] >> parent % 64 & 1:
                new[row // 64] |= 1 << row % 64
        if any(new):
            cell[kept] = cell[u].clone()
            mask[kept] = torch.tensor([_word(bits) for bits in new], device=mask.device)
            kept += 1
        else:
            free_cell[int(num_free)] = cell[u]
            num_free += 1
    num_live.fill_(kept)


def _take_page(p, free_cell, num_free, page, num_pages, free_page, num_free_pages) -> None:
    assert num_free_pages > 0, "the page pool is empty; the engine must reserve before it appends"
    num_free_pages -= 1
    taken = int(free_page[int(num_free_pages)])
    page[p, int(num_pages[p])] = taken
    num_pages[p] += 1
    # a stack: the lowest cell of the page is used first
    cells = range(PAGE_CELLS * (taken + 1) - 1, PAGE_CELLS * taken - 1, -1)
    free_cell[p, :PAGE_CELLS] = torch.tensor(list(cells), dtype=torch.int32)
    num_free[p] = PAGE_CELLS


def tree_release(
    num_nodes: Tensor,
    num_live: Tensor,
    num_free: Tensor,
    page: Tensor,
    num_pages: Tensor,
    free_page: Tensor,
    num_free_pages: Tensor,
    slot: Tensor,
) -> None:
    for p in slot.tolist():
        n, held = int(num_free_pages), int(num_pages[p])
        free_page[n : n + held] = page[p, :held]
        num_free_pages += held
        for counter in (num_nodes, num_live, num_free, num_pages):
            counter[p] = 0


def gather_rows(tensors: list[Tensor], source: Tensor, target: Tensor) -> None:
    moves = (source >= 0) & (target >= 0)
    source, target = source[moves].long(), target[moves].long()
    for tensor in tensors:
        tensor[target] = tensor[source]


def scatter_rows(pool: Tensor, index: Tensor, rows: Tensor) -> None:
    has_place = index >= 0
    pool[index[has_place].long()] = rows[has_place]


def backtrace(
    token: Tensor, parent: Tensor, slot: Tensor, node: Tensor, capacity: int
) -> tuple[Tensor, Tensor]:
    tokens = torch.full((slot.numel(), capacity), -1, dtype=torch.int32)
    length = torch.zeros(slot.numel(), dtype=torch.int32)
    for i, (p, n) in enumerate(zip(slot.tolist(), node.tolist(), strict=True)):
        path = []
        while n >= 0:
            path.append(int(token[p, n]))
            n = int(parent[p, n])
        length[i] = len(path)
        path = path[::-1][:capacity]
        tokens[i, : len(path)] = torch.tensor(path, dtype=torch.int32)
    return tokens.to(token.device), length.to(token.device)


def mixture(out: Tensor, logits: Sequence[Tensor]) -> None:
    # torch splits the sums of few rows among threads: one by one, a row's bits do not depend on others
    for r in range(out.shape[0]):
        layers.mixture(out[r : r + 1], [own[r : r + 1] for own in logits])


beam_open = partial(beams.beam_open, tree_append)
beam_read = beams.beam_read
beam_commit = partial(beams.beam_commit, tree_append)
draft_open = partial(drafts.draft_open, tree_append)
draft_commit = drafts.draft_commit
beam_close = partial(beams.beam_close, tree_release)
linear = layers.linear
layer_norm = layers.layer_norm
glu = layers.glu
lstm_cell = layers.lstm_cell
