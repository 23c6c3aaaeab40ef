"""Draft and verify in plain torch: the program on a GPU, and the oracle of the operators in C++.

A source has one hypothesis, the path of nodes 0, 1, … of its tree, so that a node's number is its depth
and its cell stands in the source's pages in that order. Its rows are the last token and guesses of those
behind it; what they see of each other is a staircase in the tree's masks. A guess that does not hold is
overwritten, and its cell with it.

``draft_open(tree, beams, drafts, slot, ints, floats, draft_ints, start_id, eos_id, vocab_size)``: begin
these empty slots [A], the start token and guesses; `ints`, `floats` and `draft_ints` are their lines of
the arrays of these names.

``draft_commit(tree, beams, drafts, slot, token, log_prob, has_nan, raw, eos_id, vocab_size)``: accept,
append, stop and guess again, for slots [A] whose rows stand one after another; of every row the token that
was selected for it [R, 1], or -1, its log-prob [R, 1], whether there was a NaN [R], and the token before
every EOS became `eos_id` [R, 1], None: there is one alone.

An empty slot may be named many times. Nothing is read back from the device, and every size is known before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pybeam.backends.arrays import (
    EMPTY_BEAM,
    MAX_LENGTH,
    MOST_NGRAM,
    NAN,
    RUNNING,
    STEP,
    WIDTH,
    Beams,
    Drafts,
    TreeArrays,
)
from pybeam.backends.torch_beams import beam_open, final_score
from pybeam.contracts import PAGE_CELLS

INT = torch.int32
# in hundredths of a step: what may be lost in each, and the most that is saved up
ALLOWANCE, MOST_CREDIT = 2, 2 * STEP


def draft_open(
    tree_append: Callable[..., None],
    tree: TreeArrays,
    beams: Beams,
    drafts: Drafts,
    slot: Tensor,
    ints: Tensor,
    floats: Tensor,
    draft_ints: Tensor,
    start_id: int,
    eos_id: int,
    vocab_size: int,
) -> None:
    beam_open(tree_append, tree, beams, slot, ints, floats, start_id)
    i = slot.long()
    drafts.ints[i] = draft_ints
    none = torch.full((slot.numel(), beams.score.shape[1]), -1, dtype=INT, device=slot.device)
    _lay(tree, beams, drafts, i, none, eos_id, vocab_size)


def draft_commit(
    tree: TreeArrays,
    beams: Beams,
    drafts: Drafts,
    slot: Tensor,
    token: Tensor,
    log_prob: Tensor,
    has_nan: Tensor,
    raw: Tensor | None,
    eos_id: int,
    vocab_size: int,
) -> None:
    i = slot.long()
    column, width = i[:, None], beams.score.shape[1]
    if not len(token):
        return  # nothing moves
    q = torch.arange(width, dtype=INT, device=slot.device)
    num_rows, depth = beams.num_rows[i], beams.depth[i]  # [A]
    moves, is_row = num_rows > 0, q < num_rows[:, None]
    row = ((num_rows.cumsum(0) - num_rows)[:, None] + q).clamp(max=len(token) - 1).long()
    out = torch.where(is_row, token[row, 0], -1)  # [A, Q]
    node = (depth[:, None] + q).long()  # the node each row stands at
    length = node + 1 - beams.scored_from[i][:, None]  # of the output that ends with this one
    longest = (beams.prefix_length[i] + beams.max_length[i])[:, None]
    is_eos, is_cut = out == eos_id, node + 1 >= longest
    ends = is_eos | is_cut | (out < 0)
    accepted = _accepted(tree, i, out, node, ends, num_rows)  # [A]
    is_new = (q < accepted[:, None]) & moves[:, None]
    value = log_prob[row, 0]
    is_token = is_new & (out >= 0) & ~is_eos
    for array, new in ((tree.token, out), (tree.log_prob, value.float())):
        array[column, node + 1] = torch.where(is_token, new, array[column, node + 1])
    tree.parent[column, node + 1] = node.to(INT)
    score = beams.score[i, 0]
    for j in range(width):  # one by one, as greedy search adds them
        total = (score.double() + value[:, j].double()).float()
        score = torch.where(is_new[:, j] & (out[:, j] >= 0), total, score)
    beams.score[column, q.long()] = torch.where(moves, score, beams.score[i, 0])[:, None]

    last = (accepted - 1).clamp(min=0).long()[:, None]

    def at_last(values: Tensor) -> Tensor:
        return values.gather(1, last)[:, 0]

    has_ended, is_none = at_last(is_eos), at_last(out) < 0
    reason = torch.where(at_last(is_cut), MAX_LENGTH, RUNNING)
    reason = torch.where(has_ended, WIDTH, reason)
    no_output = torch.where(has_nan[row].gather(1, last)[:, 0], NAN, EMPTY_BEAM)
    reason = torch.where(is_none, no_output, reason)
    is_kept = (reason == MAX_LENGTH) & (beams.ended_only[i] == 0)
    is_found = moves & ((reason == WIDTH) | is_kept)
    ending = at_last((token if raw is None else raw)[row, 0])
    ending = torch.where(has_ended, ending, -1)
    ints = torch.stack((at_last(node) + ~has_ended, at_last(length), ending), -1)
    counted = at_last(length) + torch.where(has_ended, 0.0, beams.cut_length_offset[i])
    final = final_score(beams, i, score[:, None], counted[:, None])[:, 0]
    floats = torch.stack((score, at_last(value).float(), final), -1)
    for array, new in ((beams.finished_ints, ints), (beams.finished_floats, floats)):
        old = array[i, 0]
        array[i, 0] = torch.where(is_found[:, None], new.to(array.dtype), old)
    beams.reason[i] = torch.where(moves, reason, beams.reason[i]).to(INT)
    beams.num_finished[i] += is_found
    beams.num_found[i] += is_found
    beams.steps[i] += moves
    beams.expansions[i] += num_rows
    beams.depth[i] += torch.where(moves, accepted, 0)
    is_given = depth < beams.scored_from[i] + beams.target_length[i]
    _adapt(drafts, i, num_rows - 1, accepted - 1, moves & ~is_given & (drafts.block[i] == 0))
    place = accepted[:, None] + q
    carried = out.gather(1, place.clamp(max=width - 1).long())
    _lay(tree, beams, drafts, i, torch.where(place < width, carried, -1), eos_id, vocab_size)


def _accepted(tree, i, out, node, ends, num_rows) -> Tensor:
    """[A] outputs that are final: as long as the next row was fed what this one put out."""
    q = torch.arange(out.shape[1], dtype=INT, device=out.device)
    has_next = q + 1 < num_rows[:, None]
    holds = tree.token[i[:, None], node + 1] == out
    goes_on = has_next & ~ends & holds
    return goes_on.cumprod(1).sum(1, dtype=INT) + 1


def _adapt(
    drafts: Drafts, i: Tensor, num_guesses: Tensor, num_hits: Tensor, adapts: Tensor
) -> None:
    """Guesses are paid for: each costs its price, each that holds earns a step."""
    price = drafts.price[i]
    credit = drafts.credit[i] + ALLOWANCE + STEP * num_hits - price * num_guesses
    credit = torch.minimum(credit, (2 * price).clamp(min=MOST_CREDIT))
    wanted = torch.where(num_hits == num_guesses, num_guesses + 1, num_hits.clamp(min=1))
    # the first guess is the initialiser's, the second the model's: one alone would teach nothing
    wanted = torch.where((num_guesses == 0) & (credit < 2 * price), 0, wanted)
    affordable = credit.clamp(min=0) // price.clamp(min=1)
    most = torch.minimum(affordable, drafts.max_rows[i] - 1)
    for name, value in dict(window=1 + torch.minimum(wanted, most), credit=credit).items():
        column = getattr(drafts, name)
        column[i] = torch.where(adapts, value, column[i]).to(INT)


def _lay(tree, beams, drafts, i, carried, eos_id, vocab_size) -> None:
    """Make the last token and guesses of what follows the next rows of slots [A].

    `carried` [A, Q] are guesses that the model made, of the nodes behind the last one, or -1.
    """
    column, width = i[:, None], beams.score.shape[1]
    depth = beams.depth[i]
    known = beams.scored_from[i] + beams.target_length[i]
    num_rows = _next_rows(beams, drafts, i, depth, known)
    is_live = num_rows > 0
    last_prefix = beams.prefix.shape[1] - 1
    for j in range(1, width):
        node = (depth + j).long()
        given = beams.prefix[i, (node - 1).clamp(max=last_prefix)]
        guess = _guess(tree, beams, drafts, i, node, vocab_size)
        guess = torch.where(carried[:, j - 1] >= 0, carried[:, j - 1], guess)
        guess = torch.where(node <= known, given, guess)
        is_row = j < num_rows
        # nothing follows a guess that ends the output
        is_end = is_row & (guess == eos_id) & (drafts.feeds_all[i] == 0)
        num_rows = torch.where(is_end, j, num_rows)
        tree.token[i, node] = torch.where(is_row, guess, tree.token[i, node])
    num_tokens = torch.where(is_live, depth + num_rows, 0)
    _take_pages(tree, i, num_tokens, -(-width // PAGE_CELLS))
    back = torch.arange(-width, width, dtype=INT, device=i.device)
    place = (depth[:, None] + back).clamp(min=0).long()  # [A, 2Q]
    cell = tree.page[column, place // PAGE_CELLS] * PAGE_CELLS + place % PAGE_CELLS
    cell = torch.where(is_live[:, None], cell, tree.live_cell[column, place]).to(INT)
    tree.live_cell[column, place] = cell
    tree.live_mask[column, place] = _staircase(place - depth[:, None], tree.live_mask.shape[2])
    q = torch.arange(width, dtype=INT, device=i.device)
    is_row = q < num_rows[:, None]
    node = depth[:, None] + q
    tree.parent[column, place] = (place - 1).to(INT)
    tree.row_node[i] = torch.where(is_row, node, 0).to(INT)
    tree.row_cell[i] = torch.where(is_row, cell[:, width:], -1).to(INT)
    beams.is_alive[i] = is_row
    beams.score[i] = beams.score[i, :1].expand(-1, width)
    beams.num_rows[i] = beams.num_entries[i] = num_rows.to(INT)
    for count in (tree.num_nodes, tree.num_live):
        count[i] = torch.where(is_live, num_tokens, count[i]).to(INT)


def _next_rows(beams, drafts, i, depth, known) -> Tensor:
    """[A] rows that come next, if no guess ends the output."""
    done = depth - beams.prefix_length[i]
    block, horizon = drafts.block[i], drafts.horizon[i]
    rows = torch.where(block > 0, block - done % block.clamp(min=1), drafts.window[i])
    rows = torch.where(done >= horizon, 1, torch.minimum(rows, horizon - done))
    given = known - depth
    rows = torch.where(given > 0, torch.minimum(drafts.max_rows[i], given), rows)
    rows = torch.minimum(rows, beams.max_length[i] - done)
    # a slot that was never opened has no place for a row
    is_live = (beams.reason[i] == RUNNING) & (beams.width[i] > 0)
    return torch.where(is_live, rows, 0)


def _guess(tree, beams, drafts, i, node, vocab_size) -> Tensor:
    """[A] tokens for these nodes [A], when those before them have been guessed."""
    before = tree.token[i, node - 1]
    if drafts.guess.shape[1]:
        place = node - 1 - beams.prefix_length[i]
        most = drafts.guess.shape[1] - 1
        guess = drafts.guess[i, place.clamp(0, most)]
        ngram = drafts.ngram[i]
        guess = torch.where((place >= 0) & (place < drafts.num_guesses[i]), guess, -1)
        guess = torch.where(ngram > 0, _looked_up(tree, drafts, i, node), guess)
    else:
        guess = torch.full_like(before, -1)
    fill = torch.where(drafts.fill[i] >= 0, drafts.fill[i], before)
    return torch.where((guess >= 0) & (guess < vocab_size), guess, fill)


def _looked_up(tree, drafts, i, node) -> Tensor:
    """[A], what followed the latest earlier occurrence of the n tokens before these nodes, or -1.

    In the output, else in the given guesses.
    """
    n = drafts.ngram[i]
    found = torch.full_like(n, -1)
    for text, end in ((drafts.guess[i], drafts.num_guesses[i]), (tree.token[i], node)):
        at = torch.arange(text.shape[1], device=i.device)  # where the next token would stand
        fits = (at >= n[:, None]) & (at < end[:, None]) & (node >= n)[:, None]
        for back in range(1, MOST_NGRAM + 1):
            wanted = tree.token[i, (node - back).clamp(min=0)]
            same = text.roll(back, 1) == wanted[:, None]
            fits &= same | (back > n)[:, None]
        latest = torch.where(fits, at, -1).amax(1)  # [A]
        value = text.gather(1, latest.clamp(min=0)[:, None])[:, 0]
        found = torch.where(latest >= 0, value, found)
    return found


def _take_pages(tree: TreeArrays, i: Tensor, num_tokens: Tensor, most: int) -> None:
    """Take the pages that so many tokens [A] need, at most `most` for each source."""
    held = tree.num_pages[i]
    missing = ((num_tokens + PAGE_CELLS - 1) // PAGE_CELLS - held).clamp(min=0)
    before = missing.cumsum(0) - missing
    for k in range(most):
        takes = k < missing
        free = (tree.num_free_pages - 1 - before - k).clamp(min=0).long()
        place = (held + k).clamp(max=tree.page.shape[1] - 1).long()
        tree.page[i, place] = torch.where(takes, tree.free_page[free], tree.page[i, place])
    tree.num_pages[i] = held + missing.to(INT)
    tree.num_free_pages.sub_(missing.sum())


def _staircase(behind: Tensor, num_words: int) -> Tensor:
    """Masks [A, 2Q, W]: up to the last token all rows see, a guess itself and those behind it."""
    word = torch.arange(num_words, device=behind.device) * 64
    shift = (behind[..., None].clamp(min=0) - word).clamp(0, 64)
    mask = torch.full_like(shift, -1) << shift.clamp(max=63)
    return torch.where(shift == 64, 0, mask)
