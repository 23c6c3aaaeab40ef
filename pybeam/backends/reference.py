"""The oracle: every op in plain torch, written like its contract, on any device and in float64 too.

Contracts are in `pybeam.ops` and `pybeam.kvcache.token_tree`. Speed is no aim here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pybeam.backends import defaults, packing, torch_gumbel, torch_places, torch_plan
from pybeam.backends import torch_automata as automata
from pybeam.backends import torch_beams as beams
from pybeam.backends import torch_drafts as drafts
from pybeam.backends import torch_layers as layers
from pybeam.backends.reference_tree import tree_append, tree_release
from pybeam.backends.tensor_beams import (
    BeamFunctions,
    DraftFunctions,
    TensorBeams,
    TensorDrafts,
)
from pybeam.contracts import Cells, Distances, Finishing, NewNodes, SelectOptions, Survivors

INF = float("inf")


def select(
    logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, options: SelectOptions
) -> Survivors:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logit = logits.to(dtype) + 0.0  # [R, V]; -0.0 becomes +0.0
    row_has_nan = (logit.isnan() | (logit == INF)).any(1).tolist()
    # stable: equal logits keep token order, as torch.topk does not
    order = torch.sort(logit, dim=1, descending=True, stable=True).indices
    log_prob = _log_softmax(logit) if options.normalise else logit
    num_beams, capacity = width.numel(), options.capacity
    token_out = torch.full((num_beams, capacity), -1, dtype=torch.int32)
    out = Survivors(
        token=token_out,
        parent=token_out.clone(),
        score=torch.full((num_beams, capacity), -INF, dtype=dtype),
        log_prob=torch.full((num_beams, capacity), -INF, dtype=dtype),
        count=torch.zeros(num_beams, dtype=torch.int32),
        num_finished=torch.zeros(num_beams, dtype=torch.int32),
        has_nan=torch.zeros(num_beams, dtype=torch.bool),
    )
    bounds = offset.tolist()
    row = 0
    for s in range(num_beams):
        candidates = []
        for parent, entry in enumerate(range(bounds[s], bounds[s + 1])):
            own = score[entry].to(dtype)
            if options.is_ended is not None and options.is_ended[entry]:
                candidates.append(_Candidate(own, parent, options.eos_ids[0], 0.0, is_held=True))
                continue
            out.has_nan[s] |= row_has_nan[row]
            rules = _row_rules(options, s, int(width[s]))
            candidates += _row_candidates(own, parent, order[row], log_prob[row], rules)
            row += 1
        if out.has_nan[s]:
            continue
        finished, kept = _survivors(candidates, s, int(width[s]), options, dtype)
        out.count[s], out.num_finished[s] = len(finished) + len(kept), len(finished)
        for j, candidate in enumerate(finished + kept):
            out.token[s, j], out.parent[s, j] = candidate.token, candidate.parent
            out.score[s, j], out.log_prob[s, j] = candidate.score, candidate.log_prob
    return Survivors(*[result.to(logits.device) for result in out])


class _Candidate(NamedTuple):
    score: Any  # a tensor without dimensions, or a number
    parent: int
    token: int
    log_prob: Any
    is_held: bool = False


class _RowRules(NamedTuple):
    limit: int  # candidates of a row
    forced: int
    banned: Sequence[int]


def _log_softmax(logit: Tensor) -> Tensor:
    peak = logit.amax(1, keepdim=True) if logit.numel() else logit
    shifted = torch.where(logit == -INF, logit, logit - peak)
    log_sum = shifted.exp().sum(1, keepdim=True).log()
    return torch.where(logit == -INF, logit, shifted - log_sum)


def _at(data: Tensor | None, s: int, default: float) -> float:
    return default if data is None else data[s].item()


def _row_rules(options: SelectOptions, s: int, width: int) -> _RowRules:
    # more than that many of one row cannot be among the best of the beam
    refills = options.finishing == Finishing.REFILL
    most = width * (1 + len(options.eos_ids) if refills else 1)
    return _RowRules(
        limit=int(min(_at(options.max_candidates, s, most), most)),
        forced=int(_at(options.forced, s, -1)),
        banned=options.eos_ids if _at(options.ban_eos, s, False) else (),
    )


def _row_candidates(
    score: Tensor, parent: int, order: Tensor, log_prob: Tensor, rules: _RowRules
) -> list[_Candidate]:
    if rules.forced >= 0:
        return [_Candidate(score, parent, rules.forced, torch.zeros_like(score))]
    candidates: list[_Candidate] = []
    for token in order.tolist():
        if len(candidates) == rules.limit or log_prob[token] == -INF:
            break
        if token not in rules.banned:
            own = log_prob[token]
            candidates.append(_Candidate(score + own, parent, token, own))
    return candidates


def _survivors(
    candidates: list[_Candidate], s: int, width: int, options: SelectOptions, dtype: torch.dtype
) -> tuple[list[_Candidate], list[_Candidate]]:
    """The candidates of beam `s` that finish now, and those that are its next beam."""
    finishing = Finishing(options.finishing)
    # stable: ties keep that order
    ranked = sorted((c for c in candidates if c.score > -INF), key=lambda c: -c.score)
    finished, kept = _finish(ranked, width, options.eos_ids, finishing)
    rivals = [c.score for c in (kept + finished if finishing == Finishing.HELD else kept)]
    best = max([*rivals, torch.tensor(_at(options.best_finished, s, -INF), dtype=dtype)])
    best_log_prob = max([c.log_prob for c in kept if not c.is_held], default=-INF)
    margin, local_margin = _at(options.margin, s, INF), _at(options.local_margin, s, INF)
    kept = [
        c
        for c in kept
        if _is_within(c.score, best, margin)
        and (c.is_held or _is_within(c.log_prob, best_log_prob, local_margin))
    ]
    return finished, kept


def _is_within(value: Any, best: Any, margin: float) -> bool:
    floor = best - abs(margin)
    return bool(value >= floor if margin < 0 else value > floor)


def _finish(
    candidates: list[_Candidate], width: int, eos_ids: Sequence[int], finishing: Finishing
) -> tuple[list[_Candidate], list[_Candidate]]:
    """Split the ranked candidates of one beam into those that finish now and its next beam."""
    if finishing == Finishing.REFILL:
        finished = [c for c in candidates[:width] if c.token in eos_ids]
        seen = candidates[: (1 + len(eos_ids)) * width]
        going_on = [c for c in seen if c.token not in eos_ids]
        return finished, going_on[:width]
    candidates = candidates[:width]
    if finishing == Finishing.SHRINK:
        finished = [c for c in candidates if c.token in eos_ids]
        return finished, [c for c in candidates if c.token not in eos_ids]
    popped = 0
    if finishing == Finishing.HELD:
        while popped < len(candidates) and candidates[popped].token in eos_ids:
            popped += 1
    return candidates[:popped], candidates[popped:]


def _seen(cells: Cells, slot: int, rows: slice, num_cells: int) -> Tensor | None:
    """Return [rows, num_cells] bool: which cells of a slot these rows see; None: all."""
    if cells.mask is None and cells.paths is None:
        return None
    assert cells.entry is not None
    entry = cells.entry[rows].long()
    if cells.paths is None:
        assert cells.mask is not None
        word = cells.mask[slot, :num_cells][:, entry // 64]  # [num_cells, rows]
        return ((word >> (entry % 64)) & 1 == 1).T
    length, shared = int(cells.paths.length[slot]), cells.paths.num_shared
    num_shared = 0 if shared is None else int(shared[slot])
    # [rows, T], behind the cells that all of them see
    place = cells.paths.place[slot, entry, :length]
    seen = torch.zeros(place.shape[0], num_cells + 1, dtype=torch.bool, device=place.device)
    seen[:, :num_shared] = True
    column = torch.where(place >= 0, place + num_shared, num_cells)
    return seen.scatter_(1, column.long(), True)[:, :num_cells]


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cells: Cells,
    scale: float,
    distances: Distances | None = None,
    new: NewNodes | None = None,
) -> Tensor:
    if new is not None:
        defaults.write_nodes(scatter_rows, key, value, new)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    group = query.shape[1] // key.shape[1]
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    bounds = cells.offset.tolist()
    for a, p in enumerate(cells.slot.tolist()):
        rows = slice(bounds[a], bounds[a + 1])
        n = int(cells.num_cells[p])
        if n == 0 or bounds[a] == bounds[a + 1]:
            continue
        cell = cells.cell[p, :n].long()
        k = key[cell].to(dtype).repeat_interleave(group, 1)  # [n, H, D]
        v = value[cell].to(dtype).repeat_interleave(group, 1)
        logit = torch.einsum("rhd,nhd->rhn", query[rows].to(dtype), k) * scale
        if distances is not None:
            logit = _by_distance(logit, distances, rows, cell)
        seen = _seen(cells, p, rows, n)
        if seen is not None:
            logit = logit.masked_fill(~seen[:, None], -INF)
        sees_none = (logit == -INF).all(-1, keepdim=True)
        weight = torch.softmax(logit, -1).masked_fill(sees_none, 0.0)
        out[rows] = torch.einsum("rhn,nhd->rhd", weight, v).to(query.dtype)
    return out


def _by_distance(logit: Tensor, distances: Distances, rows: slice, cells: Tensor) -> Tensor:
    """Change the scores [rows, H, n] of these rows and these n cells."""
    cap, bias, window = distances.soft_cap, distances.bias, distances.window
    if cap is not None:
        logit = cap * torch.tanh(logit / cap)
    if bias is None and window is None:
        return logit
    assert distances.position is not None and distances.cell_position is not None
    position, cell_position = distances.position[rows], distances.cell_position[cells]
    back = position.long()[:, None] - cell_position.long()  # [rows, n]
    if bias is not None:
        column = (back + distances.origin).clamp(0, bias.shape[1] - 1)
        logit = logit + bias[:, column].transpose(0, 1)
    if window is not None:
        logit = logit.masked_fill(((back < 0) | (back >= window))[:, None], -INF)
    return logit


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
    # one row at a time, because torch splits sums of few rows among threads and bits then depend on the batch
    for r in range(out.shape[0]):
        layers.mixture(out[r : r + 1], [own[r : r + 1] for own in logits])


BEAM_FUNCTIONS = BeamFunctions(
    open=partial(beams.beam_open, tree_append),
    read=beams.beam_read,
    select=select,
    commit=partial(beams.beam_commit, tree_append),
    report=torch_plan.beam_report,
    close=partial(beams.beam_close, tree_release),
    backtrace=backtrace,
)
adds_in_products, takes_plain = True, False
embed_norm = prepend_prompts = few_rows = None
add_norm = layers.add_norm
edit_list = None
log_softmax = defaults.log_softmax
perturb = torch_gumbel.perturb
draw = None
rounded_rows = defaults.rounded_rows
restore_log_probs = defaults.restore_log_probs
layer_program = defaults.no_program
beam_program = partial(TensorBeams, BEAM_FUNCTIONS)
skips_forced_logits = False
plans_as_it_reads = True
DRAFT_FUNCTIONS = DraftFunctions(
    open=partial(drafts.draft_open, tree_append),
    read=drafts.draft_read,
    commit=drafts.draft_commit,
)
draft_program = partial(TensorDrafts, BEAM_FUNCTIONS, DRAFT_FUNCTIONS)
automaton_walk = automata.automaton_walk
automaton_columns = automata.automaton_columns
automaton_logits = automata.automaton_logits
automaton_places = torch_places.automaton_places
fill_panels = packing.fill_panels
linear = layers.linear
embed = layers.embed
layer_norm = layers.layer_norm
rms_norm = layers.rms_norm
turn_heads = layers.turn_heads
gated = layers.gated
soft_cap = layers.soft_cap
prompt_attention = layers.prompt_attention
glu = layers.glu
lstm_cell = layers.lstm_cell
