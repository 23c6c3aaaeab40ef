"""Forced decoding: a source with a target takes the target's tokens, at the model's own log-probs.

A target without EOS is a scored prefix: the search goes on from its last token.

A beam with a target has one row. `select` chooses a token for it as for any other beam, so that its
logits are read once and by the same rules. Then the target's token replaces the chosen one. The best
chosen token ``t`` has the largest logit, ``log_prob[t] = -log(sum(exp(logit - max)))``, and therefore

    log_prob[y] = (logit[y] - logit[t]) + log_prob[t]

is what `select` would have given the target's token y, to the last bit. Nothing is read back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends.arrays import Beams
from pybeam.contracts import Survivors
from pybeam.models.rows import Rows

INF = float("inf")


class Entries(NamedTuple):
    """The entries of beams, one beam after another, as `select` takes them."""

    score: Tensor  # [B] float32
    offset: Tensor  # [A + 1] int32


def next_forced(beams: Beams, slot: Tensor) -> Tensor:
    """Return the next token [A] int32 in the target of these slots [A]; -1 if there is none."""
    i = slot.long()
    depth, start = beams.depth[i], beams.scored_from[i]
    token = beams.prefix[i, depth.long().clamp(max=beams.prefix.shape[1] - 1)]
    is_inside = (depth >= start) & (depth < start + beams.target_length[i])
    return torch.where(is_inside, token, -1)


def revive(score: Tensor, offset: Tensor, target: Tensor) -> Tensor:
    """Return scores [B] for `select`, with 0 in place of -inf where there is a target [A].

    `select` drops every candidate of score -inf, but a target goes on behind a token that cannot follow.
    """
    if not score.numel():
        return score
    # an empty beam begins where the next one does, and has no target
    entry = offset[:-1].clamp(max=score.numel() - 1).long()
    own = score[entry]
    return score.scatter_reduce(
        0, entry, torch.where((target >= 0) & (own == -INF), 0.0, own), "amax"
    )


def force(
    chosen: Survivors,
    target: Tensor,
    rows: Rows,
    entries: Entries,
    logits: Tensor,
    normalises: bool,
    log_probs: Tensor | None = None,
) -> Survivors:
    """The survivors `chosen`, with the target's token [A] in place of the chosen one where it is not -1.

    A token that cannot follow gets -inf, and the target goes on. Within a prefix it gets 0, since every
    hypothesis has it. No token finishes the beam here: behind EOS there is no row, and a beam without rows
    finishes as it is.

    Args:
        entries: those of the beams.
        logits: [R, V], as `select` was given them.
        normalises: whether `select` has normalised them; otherwise they are what ranks.
        log_probs: [R, V], if the logits rank without being log-probabilities. Tokens of a prefix then
            count these, because every hypothesis has them and they rank nothing.
    """
    if not logits.shape[0]:
        return chosen  # nothing moves
    # an empty beam may begin behind the last row, but has no target
    row = rows.offset[:-1].clamp(max=logits.shape[0] - 1).long()  # [A]
    entry = entries.offset[:-1].clamp(max=entries.score.numel() - 1).long()
    dtype = chosen.log_prob.dtype
    log_prob = logits[row, target.clamp(min=0).long()].to(dtype)  # [A]
    if normalises:
        # an EOS that finishes stands first, whether or not it is the best
        best, column = chosen.log_prob.max(1)
        token = chosen.token.gather(1, column[:, None])[:, 0]
        log_prob = log_prob - logits[row, token.clamp(min=0).long()].to(dtype) + best
    # `select` has chosen nothing for a row without any possible token
    gain = log_prob = torch.where(chosen.count > 0, log_prob, -INF)
    is_prefix = rows.num_generated[row] < 0  # [A]
    if log_probs is not None:
        log_prob = log_probs[row, target.clamp(min=0).long()].to(dtype)
        gain = torch.where(is_prefix, log_prob, gain)
    is_free = is_prefix & (gain == -INF)
    gain, log_prob = (value.masked_fill(is_free, 0.0) for value in (gain, log_prob))
    first = dict(
        token=target,
        parent=torch.zeros_like(target),
        score=entries.score[entry] + gain,
        log_prob=log_prob,
    )
    follows = (target >= 0) & ~chosen.has_nan
    for name, value in first.items():
        column = getattr(chosen, name)[:, 0]
        column.copy_(torch.where(follows, value, column))
    return chosen._replace(
        count=chosen.count.masked_fill(follows, 1),
        num_finished=chosen.num_finished.masked_fill(follows, 0),
    )


def demote_eos(chosen: Survivors, beams: Beams, slot: Tensor, width: Tensor) -> Survivors:
    """The survivors `chosen` of slots [A], where EOS right behind a prefix must be the best candidate.

    An EOS that is not the best one does not finish, and takes one of the `width` [A] places of the next beam;
    see `PrefixRule`.
    """
    i = slot.long()
    is_behind = (beams.depth[i] == beams.prefix_length[i]) & (beams.prefix_length[i] > 0)
    # a row has one EOS, and candidates that go on stand behind it; among equal scores the smaller token wins
    ended, other = chosen.score[:, 0], chosen.score[:, 1]
    is_best = (ended > other) | ((ended == other) & (chosen.token[:, 0] < chosen.token[:, 1]))
    is_late = is_behind & (chosen.num_finished > 0) & (chosen.count > 1) & ~is_best
    columns = torch.arange(chosen.token.shape[1], device=slot.device) + is_late[:, None]
    columns = columns.clamp(max=chosen.token.shape[1] - 1)
    left = torch.minimum(chosen.count - 1, width - 1)
    return chosen._replace(
        **{
            name: getattr(chosen, name).gather(1, columns)
            for name in ("token", "parent", "score", "log_prob")
        },
        count=torch.where(is_late, left, chosen.count),
        num_finished=torch.where(is_late, 0, chosen.num_finished),
    )
