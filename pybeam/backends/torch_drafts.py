"""Draft and verify in plain torch: the oracle of the operators in C++ and Triton.

A source has one hypothesis, the path of nodes 0, 1, … of its tree. A node's number is its depth, and cells
stand in the source's pages in that order. The rows of a source are its last token and guesses of the tokens
behind it. The tree's masks are a staircase, because each row sees the rows before it. A wrong guess is
overwritten, and so is its cell.

`pybeam.backends.Backend` states the contracts. Nothing is read back from the device, and every size is
known beforehand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pybeam.backends.arrays import (
    EMPTY_BEAM,
    FILL_LAST,
    FILL_NONE,
    MAX_LENGTH,
    MOST_NGRAM,
    NAN,
    RUNNING,
    STEP,
    WIDTH,
    Beams,
    Drafts,
    DraftTokens,
    NewLines,
    RowArrays,
    SelectInputs,
    TreeArrays,
)
from pybeam.backends.torch_beams import TreeAppend, beam_open, beam_read, final_score
from pybeam.contracts import PAGE_CELLS, Survivors

INT = torch.int32
# in hundredths of a step: how much may be lost in each step, and how much credit can be saved up
ALLOWANCE, MOST_CREDIT = 2, 2 * STEP


def draft_open(
    tree_append: TreeAppend,
    tree: TreeArrays,
    beams: Beams,
    drafts: Drafts,
    slot: Tensor,
    lines: NewLines,
    start_id: int,
    tokens: DraftTokens,
) -> None:
    """Start these empty slots [A] with the start token and guesses."""
    beam_open(tree_append, tree, beams, slot, lines, start_id)
    i = slot.long()
    none = torch.full((slot.numel(), beams.score.shape[1]), -1, dtype=INT, device=slot.device)
    _write_next_rows(tree, beams, drafts, i, none, tokens)


def draft_read(*given: Any) -> tuple[Tensor, RowArrays, SelectInputs]:
    """See `beam_read`; the rows of a source stand one after another."""
    slot, rows, inputs = beam_read(*given)
    return slot, rows._replace(position=rows.position + rows.entry), inputs


def draft_commit(
    tree: TreeArrays,
    beams: Beams,
    drafts: Drafts,
    slot: Tensor,
    survivors: Survivors,
    eos_token: Tensor | None,
    tokens: DraftTokens,
) -> None:
    """Accept, append, stop and guess again, for slots [A] whose rows stand one after another.

    `survivors` are those of R beams of one row each. Every EOS among their tokens has become
    `DraftTokens.eos_id`. `eos_token` [R, 1] are the original tokens, None if there is only one EOS.
    """
    if not len(survivors.token):
        return  # nothing moves
    i = slot.long()
    out = _outputs(beams, i, survivors, eos_token, tokens.eos_id)
    num_rows, depth = beams.num_rows[i], beams.depth[i]  # [A]
    moves = num_rows > 0
    accepted = _accepted(tree, i, out, num_rows)  # [A]
    q = torch.arange(out.token.shape[1], dtype=INT, device=slot.device)
    is_new = (q < accepted[:, None]) & moves[:, None]
    _append(tree, beams, i, out, is_new)
    _stop(beams, i, out, accepted, moves)
    beams.steps[i] += moves
    beams.expansions[i] += num_rows
    beams.depth[i] += torch.where(moves, accepted, 0)
    is_given = depth < beams.scored_from[i] + beams.target_length[i]
    _adapt(drafts, i, num_rows - 1, accepted - 1, moves & ~is_given & (drafts.block[i] == 0))
    place = accepted[:, None] + q
    carried = out.token.gather(1, place.clamp(max=len(q) - 1).long())
    _write_next_rows(tree, beams, drafts, i, torch.where(place < len(q), carried, -1), tokens)


class _Outputs(NamedTuple):
    """The tokens that were selected for the rows of slots [A], `Q` places each."""

    token: Tensor  # [A, Q], -1 where there is no row or nothing can follow
    eos_token: Tensor  # [A, Q], the same before every EOS became one
    log_prob: Tensor  # [A, Q]
    has_nan: Tensor  # [A, Q]
    node: Tensor  # [A, Q] the node each row stands at
    is_eos: Tensor  # [A, Q]
    is_cut: Tensor  # [A, Q], there is no room for another token behind this one


def _outputs(
    beams: Beams, i: Tensor, survivors: Survivors, eos_token: Tensor | None, eos_id: int
) -> _Outputs:
    num_rows = beams.num_rows[i]
    q = torch.arange(beams.score.shape[1], dtype=INT, device=i.device)
    last_row = len(survivors.token) - 1
    row = ((num_rows.cumsum(0) - num_rows)[:, None] + q).clamp(max=last_row).long()
    token = torch.where(q < num_rows[:, None], survivors.token[row, 0], -1)
    node = (beams.depth[i][:, None] + q).long()
    return _Outputs(
        token=token,
        eos_token=(survivors.token if eos_token is None else eos_token)[row, 0],
        log_prob=survivors.log_prob[row, 0],
        has_nan=survivors.has_nan[row],
        node=node,
        is_eos=token == eos_id,
        is_cut=node + 1 >= (beams.prefix_length[i] + beams.max_length[i])[:, None],
    )


def _accepted(tree: TreeArrays, i: Tensor, out: _Outputs, num_rows: Tensor) -> Tensor:
    """Count the final outputs [A]. An output is final if all outputs before it were guessed right."""
    q = torch.arange(out.token.shape[1], dtype=INT, device=i.device)
    has_next = q + 1 < num_rows[:, None]
    holds = tree.token[i[:, None], out.node + 1] == out.token
    ends = out.is_eos | out.is_cut | (out.token < 0)
    return (has_next & ~ends & holds).cumprod(1).sum(1, dtype=INT) + 1


def _append(tree: TreeArrays, beams: Beams, i: Tensor, out: _Outputs, is_new: Tensor) -> None:
    """Append new outputs [A, Q] as nodes, and add them to the score."""
    column, node = i[:, None], out.node
    is_token = is_new & (out.token >= 0) & ~out.is_eos
    for array, new in ((tree.token, out.token), (tree.log_prob, out.log_prob.float())):
        array[column, node + 1] = torch.where(is_token, new, array[column, node + 1])
    tree.parent[column, node + 1] = node.to(INT)
    score = beams.score[i, 0]
    for j in range(out.token.shape[1]):  # one by one, as greedy search adds them
        total = (score.double() + out.log_prob[:, j].double()).float()
        score = torch.where(is_new[:, j] & (out.token[:, j] >= 0), total, score)
    moves = is_new[:, :1]
    beams.score[i] = torch.where(moves, score[:, None], beams.score[i, :1])


def _stop(beams: Beams, i: Tensor, out: _Outputs, accepted: Tensor, moves: Tensor) -> None:
    """Decide which sources are done, and store their hypotheses."""
    last = (accepted - 1).clamp(min=0).long()[:, None]

    def at_last(values: Tensor) -> Tensor:
        return values.gather(1, last)[:, 0]

    has_ended, is_none = at_last(out.is_eos), at_last(out.token) < 0
    reason = torch.where(at_last(out.is_cut), MAX_LENGTH, RUNNING)
    reason = torch.where(has_ended, WIDTH, reason)
    reason = torch.where(is_none, torch.where(at_last(out.has_nan), NAN, EMPTY_BEAM), reason)
    is_kept = (reason == MAX_LENGTH) & (beams.ended_only[i] == 0)
    is_found = moves & ((reason == WIDTH) | is_kept)
    node, score = at_last(out.node), beams.score[i, 0]
    length = node + 1 - beams.scored_from[i]  # tokens that count in n
    eos = torch.where(has_ended, at_last(out.eos_token), -1)
    ints = torch.stack((node + ~has_ended, length, eos), -1)
    counted = length + torch.where(has_ended, 0.0, beams.cut_length_offset[i])
    final = final_score(beams, i, score[:, None], counted[:, None])[:, 0]
    floats = torch.stack((score, at_last(out.log_prob).float(), final), -1)
    for array, new in ((beams.finished_ints, ints), (beams.finished_floats, floats)):
        array[i, 0] = torch.where(is_found[:, None], new.to(array.dtype), array[i, 0])
    beams.reason[i] = torch.where(moves, reason, beams.reason[i]).to(INT)
    beams.num_finished[i] += is_found
    beams.num_found[i] += is_found


def _adapt(
    drafts: Drafts, i: Tensor, num_guesses: Tensor, num_hits: Tensor, adapts: Tensor
) -> None:
    """The next window: every guess costs its price, and every guess that holds earns a step."""
    price = drafts.price[i]
    credit = drafts.credit[i] + ALLOWANCE + STEP * num_hits - price * num_guesses
    credit = torch.minimum(credit, (2 * price).clamp(min=MOST_CREDIT))
    larger = torch.maximum(2 * num_guesses, drafts.window[i] - 1)
    wanted = torch.where(num_hits == num_guesses, larger, num_hits).clamp(min=1)
    # the initialiser makes the first guess and the model the second: a row with the first guess alone would
    # not tell how well the model guesses
    wanted = torch.where((num_guesses == 0) & (credit < 2 * price), 0, wanted)
    affordable = credit.clamp(min=0) // price.clamp(min=1)
    most = torch.minimum(affordable, drafts.max_rows[i] - 1)
    for name, value in dict(window=1 + torch.minimum(wanted, most), credit=credit).items():
        column = getattr(drafts, name)
        column[i] = torch.where(adapts, value, column[i]).to(INT)


def _write_next_rows(
    tree: TreeArrays,
    beams: Beams,
    drafts: Drafts,
    i: Tensor,
    carried: Tensor,
    tokens: DraftTokens,
) -> None:
    """Write the next rows of slots [A]: the last token, and guesses of the tokens behind it.

    `carried` [A, Q] are guesses that the model has made for the first of those, or -1.
    """
    column, width = i[:, None], beams.score.shape[1]
    depth = beams.depth[i]
    known = beams.scored_from[i] + beams.target_length[i]
    num_rows = _next_rows(beams, drafts, i, depth, known)
    is_live = num_rows > 0
    # an output behind a wrong guess is a poor guess where others are good
    carried = torch.where(drafts.fill[i, None] == FILL_NONE, -1, carried)
    last_prefix = beams.prefix.shape[1] - 1
    for j in range(1, width):
        node = (depth + j).long()
        given = beams.prefix[i, (node - 1).clamp(max=last_prefix)]
        guess = _guess(tree, beams, drafts, i, node, tokens.vocab_size)
        guess = torch.where(carried[:, j - 1] >= 0, carried[:, j - 1], guess)
        guess = torch.where(node <= known, given, guess)
        # nor does one follow where nobody guesses
        num_rows = torch.where(guess < 0, num_rows.clamp(max=j), num_rows)
        is_row = j < num_rows
        # no row follows a guess that ends the output
        is_end = is_row & (guess == tokens.eos_id) & (drafts.feeds_all[i] == 0)
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


def _next_rows(beams: Beams, drafts: Drafts, i: Tensor, depth: Tensor, known: Tensor) -> Tensor:
    """Return how many rows [A] the next step has, unless a guess ends the output or nobody guesses."""
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


def _guess(
    tree: TreeArrays, beams: Beams, drafts: Drafts, i: Tensor, node: Tensor, vocab_size: int
) -> Tensor:
    """Guess the tokens [A] at these nodes [A], after those before them; negative: there is no guess."""
    before = tree.token[i, node - 1]
    guess = torch.full_like(before, -1)
    if drafts.guess.shape[1]:
        place = node - 1 - beams.prefix_length[i]
        is_given = (place >= 0) & (place < drafts.num_guesses[i])
        place = place.clamp(0, drafts.guess.shape[1] - 1)
        guess = torch.where(is_given, drafts.guess[i, place], guess)
    guess = torch.where(drafts.ngram[i] > 0, _ngram_guess(tree, drafts, i, node), guess)
    fill = torch.where(drafts.fill[i] == FILL_LAST, before, drafts.fill[i])
    return torch.where((guess >= 0) & (guess < vocab_size), guess, fill)


def _ngram_guess(tree: TreeArrays, drafts: Drafts, i: Tensor, node: Tensor) -> Tensor:
    """Return the token [A] that followed the latest earlier occurrence of the n tokens before these nodes.

    The output is searched first, then the given guesses; -1: there is none.
    """
    n = drafts.ngram[i]
    found = torch.full_like(n, -1)
    # one token more, as there may be no guesses at all
    guesses = torch.nn.functional.pad(drafts.guess[i], (0, 1))
    for text, end in ((guesses, drafts.num_guesses[i]), (tree.token[i], node)):
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
    """Return masks [A, 2Q, W]. All rows see tokens up to the last; its own row and later ones see a guess."""
    word = torch.arange(num_words, device=behind.device) * 64
    shift = (behind[..., None].clamp(min=0) - word).clamp(0, 64)
    mask = torch.full_like(shift, -1) << shift.clamp(max=63)
    return torch.where(shift == 64, 0, mask)
