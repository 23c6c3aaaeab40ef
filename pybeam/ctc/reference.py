"""Plain Python and torch for CTC: the oracle of the kernels, and what there is without them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

INF = math.inf


def log_add(a: float, b: float) -> float:
    """Compute ``log(exp(a) + exp(b))``."""
    high, low = max(a, b), min(a, b)
    return high if low == -INF else high + math.log1p(math.exp(low - high))


class Sums(NamedTuple):
    """Log-probabilities of the paths of a prefix that end in a blank, and that end in its last token."""

    blank: float
    token: float

    @property
    def total(self) -> float:
        return log_add(*self)


Prefix = tuple[int, ...]


# the parameters are those of the operator
def beam_search(
    log_probs: Tensor,
    length: Tensor,
    blank: int,
    width: int,
    n_best: int,
    max_tokens: int,
    threshold: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute what `pybeam.ctc.beam_search` finds.

    Args:
        log_probs: [B, T, V] float32.
        length: [B] int32, frames.
        blank, width, n_best, max_tokens, threshold: as there.

    Returns:
        tokens [B, n_best, T] int32, their numbers [B, n_best] int32, log-probabilities [B, n_best] float64,
        and the number of hypotheses [B] int32; -1 where a source holds NaN or +inf.
    """
    num, num_frames, _ = log_probs.shape
    tokens = torch.full((num, n_best, num_frames), -1, dtype=torch.int32)
    sizes, count = length.new_zeros(num, n_best), length.new_zeros(num)
    scores = torch.full((num, n_best), -INF, dtype=torch.float64)
    for i in range(num):
        frames = log_probs[i, : int(length[i])]
        if not (frames < INF).all():
            count[i] = -1
            continue
        beam: dict[Prefix, Sums] = {(): Sums(0.0, -INF)}
        for frame in frames.tolist():
            beam = _next_beam(beam, frame, blank, width, max_tokens, threshold)
        best = list(beam.items())[:n_best]
        count[i] = len(best)
        for j, (prefix, sums) in enumerate(best):
            tokens[i, j, : len(prefix)] = torch.tensor(prefix, dtype=torch.int32)
            sizes[i, j], scores[i, j] = len(prefix), sums.total
    return tokens, sizes, scores, count


def _next_beam(
    beam: dict[Prefix, Sums],
    frame: list[float],
    blank: int,
    width: int,
    max_tokens: int,
    threshold: float,
) -> dict[Prefix, Sums]:
    """Return the beam after one frame, the best prefix first."""

    def extended(prefix: Prefix, token: int) -> float:
        sums = beam[prefix]
        begins = sums.blank if prefix[-1:] == (token,) else sums.total
        return begins + frame[token]

    moves: list[tuple[Prefix, Sums]] = []
    for prefix, sums in beam.items():
        said = -INF
        if prefix:
            said = sums.token + frame[prefix[-1]]
            if prefix[:-1] in beam:
                said = log_add(said, extended(prefix[:-1], prefix[-1]))
        moves.append((prefix, Sums(sums.total + frame[blank], said)))
    tokens = [token for token in range(len(frame)) if token != blank]
    tokens.sort(key=lambda token: -frame[token])
    for prefix in beam:
        for token in tokens[:max_tokens]:
            longer = (*prefix, token)
            if longer not in beam:
                moves.append((longer, Sums(-INF, extended(prefix, token))))
    # sorting leaves equal ones in their order
    moves = sorted(moves, key=lambda move: -move[1].total)[:width]
    least = moves[0][1].total - threshold if moves else -INF
    return {prefix: sums for prefix, sums in moves if sums.total > least}


# of the states of `_viterbi` that a frame may come from, how far back each lies
MOVES = (0, 1, 2)


def align(
    log_probs: Tensor, length: Tensor, tokens: Tensor, num_tokens: Tensor, blank: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `pybeam.ctc.align` finds.

    Args:
        log_probs: [B, T, V] float32.
        length: [B] int32, frames.
        tokens: [B, L] int32, and how many count, [B] int32.
        num_tokens, blank: see there.

    Returns:
        Spans [B, L, 2] int32, the sum of each token's log-probabilities [B, L] float64, and that of the whole
        path [B] float64: -inf where there is none, NaN where a source holds NaN or +inf.
    """
    spans = tokens.new_zeros(*tokens.shape, 2)
    sums = torch.zeros(tokens.shape, dtype=torch.float64)
    total = torch.zeros(len(length), dtype=torch.float64)
    for i in range(len(length)):
        frames = log_probs[i, : int(length[i])]
        if not (frames < INF).all():
            total[i] = math.nan
            continue
        own = tokens[i, : int(num_tokens[i])].tolist()
        path, score = _viterbi(frames.tolist(), own, blank)
        total[i] = score
        for j in range(len(own) if path else 0):
            places = [t for t, state in enumerate(path) if state == 2 * j + 1]
            spans[i, j] = torch.tensor([places[0], places[-1] + 1])
            sums[i, j] = sum(float(frames[t, own[j]]) for t in reversed(places))
    return spans, sums, total


def _viterbi(frames: list[list[float]], tokens: list[int], blank: int) -> tuple[list[int], float]:
    """Return the states of the best path and its log-probability; state 2 i + 1 says token i.

    State 2 i is the blank before token i.
    """
    said = [blank, *(one for token in tokens for one in (token, blank))]
    num_states = len(said)
    if not frames:
        return [], 0.0 if not tokens else -INF
    best = [0.0 if s < 2 else -INF for s in range(num_states)]
    moves: list[list[int]] = []
    for t, frame in enumerate(frames):
        own, new = [], []
        for s in range(num_states):
            can_skip = s % 2 == 1 and s > 1 and said[s] != said[s - 2]
            from_ = [best[s], best[s - 1] if s else -INF, best[s - 2] if can_skip else -INF]
            move = 0 if t == 0 else max(MOVES, key=from_.__getitem__)
            own.append(move)
            new.append(from_[move] + frame[said[s]])
        best = new
        moves.append(own)
    state = num_states - 1
    if state > 0 and best[state - 1] >= best[state]:
        state -= 1
    score = best[state]
    path = []
    for own in reversed(moves):
        path.append(state)
        state -= own[state]
    return path[::-1] if score > -INF else [], score


# In place of the logarithm of 0 in running sums, whose differences must be finite. No path of finite numbers
# is as improbable.
FLOOR = 1e7


# the parameters are those of the operator
def prefix_scores(
    log_probs: Tensor,
    prefixes: Tensor,
    sources: list[Tensor],
    rows: list[Tensor],
    eos_ids: list[int],
    blank: int,
    pre_beam: int,
) -> None:
    """Mix the decoder's log-probabilities with prefix scores, in place; see `pybeam.ctc.prefix_scores`.

    Args:
        log_probs: [R, V], of the decoder.
        prefixes: [cells, T + 1, 2] float64: log r_n and log r_b of prefixes; those of the rows are written.
        sources: log-probabilities [S, T, V], frames [S] int32, and weights [S] float32, by slot.
        rows: slots, cells, cells of parents, tokens, and tokens before these, [R] int32 each. A row without a
            cell is padding, and one whose parent has none has said nothing.
        eos_ids: the decoder's.
        blank, pre_beam: as there; 0: all tokens are scored.
    """
    all_frames, length, weight = sources[:3]
    slot, cell, parent_cell, token, parent_token = (one.long() for one in rows)
    num = length[slot].long().clamp(min=0)[:, None]  # [R, 1]
    is_frame = torch.arange(all_frames.shape[1], device=num.device) < num  # [R, T]
    begins = (parent_cell < 0)[:, None]
    free = _free(prefixes[parent_cell.clamp(min=0)], token == parent_token)
    own = all_frames[slot, :, token.clamp(min=0)].double()  # [R, T]
    own = own.masked_fill((token == blank)[:, None], -INF)
    silence = all_frames[slot, :, blank].double()
    said = _running(free.masked_fill(begins, -INF), own, -INF)
    silent = _running(said[:, :-1], silence, torch.where(begins[:, 0], 0.0, -INF))
    state = torch.stack((said, silent), 2)
    is_row = cell >= 0
    prefixes[cell[is_row]] = state[is_row]
    terms = (free[:, :-1] + own).masked_fill(~is_frame, -INF)
    before = torch.where(begins[:, 0], 0.0, _log_sum(terms, 1))[:, None]  # [R, 1]
    total = torch.logaddexp(said, silent)[:, :-1].masked_fill(~is_frame, -INF)
    # the frames of all rows at once would be many
    score = torch.cat(
        [_log_sum(total[i, :, None] + all_frames[slot[i]], 0)[None] for i in range(len(slot))]
    )
    repeated = _log_sum((silent[:, :-1] + own).masked_fill(~is_frame, -INF), 1)[:, None]
    place = token.clamp(min=0)[:, None]
    score.scatter_(1, place, torch.where(begins, score.gather(1, place), repeated))
    if pre_beam:
        order = torch.sort(log_probs, dim=1, descending=True, stable=True).indices[:, pre_beam:]
        score.scatter_(1, order, -INF)
    score[:, blank] = -INF
    score[:, eos_ids] = torch.logaddexp(*state.gather(1, num[..., None].expand(-1, 1, 2)).unbind(2))
    gain = torch.where(score == -INF, -INF, score - before)
    w = weight[slot].double()[:, None]
    mixed = torch.where(w > 0, (1 - w) * log_probs + w * gain, log_probs)
    is_mixed = is_row[:, None] & (w > 0) & (log_probs > -INF)
    log_probs.copy_(torch.where(is_mixed, mixed.to(log_probs.dtype), log_probs))


def _free(before: Tensor, repeats: Tensor) -> Tensor:
    """Return phi [R, T + 1] of the parents' states [R, T + 1, 2]."""
    total = torch.logaddexp(before[..., 0], before[..., 1])
    return torch.where(repeats[:, None], before[..., 1], total)


def _running(free: Tensor, x: Tensor, first: Tensor | float) -> Tensor:
    """Compute ``r(0) = first``, ``r(t) = x_t + log(exp(r(t - 1)) + exp(free(t - 1)))``, [R, T + 1].

    This is ``c(t) + log(sum over s < t of exp(free(s) - c(s)))`` with the running sum c of x.
    """
    sums = F.pad(x.clamp(min=-FLOOR).cumsum(1), (1, 0))  # [R, T + 1]
    first = torch.as_tensor(first, dtype=x.dtype, device=x.device).expand(len(x))[:, None]
    terms = torch.cat((first, free[:, : x.shape[1]] - sums[:, :-1]), 1)
    result = torch.logcumsumexp(terms, 1) + sums
    return result.masked_fill(result < -FLOOR / 2, -INF)


def _log_sum(terms: Tensor, dim: int) -> Tensor:
    """Compute ``log(sum(exp(terms)))``, -inf where there are none."""
    if not terms.shape[dim]:
        return terms.sum(dim) - INF
    return terms.logsumexp(dim)
