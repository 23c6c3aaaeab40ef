"""A target's token takes the place of the chosen one: by hand, on one small step."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch

from pybeam.contracts import Survivors
from pybeam.state.forced_decoding import demote_eos, force, next_forced, revive

INF, NAN = math.inf, math.nan
EOS = 1


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def survivors(token: list, score: list, **fields) -> Survivors:
    token, score = torch.tensor(token, dtype=torch.int32), torch.tensor(score)
    given = dict(
        token=token,
        parent=torch.full_like(token, 7),
        score=score,
        log_prob=score - 10,
        count=ints(*[token.shape[1]] * len(token)),
        num_finished=ints(*[0] * len(token)),
        has_nan=torch.zeros(len(token), dtype=torch.bool),
    )
    return Survivors(**{**given, **fields})


def test_the_next_token_of_a_target():
    """Tokens 3 and 4 of a target stand behind a prefix of one token that is not scored, 9."""
    beams = SimpleNamespace(
        prefix=torch.tensor([[0, 0, 0], [9, 3, 4]], dtype=torch.int32),
        scored_from=ints(0, 1),
        target_length=ints(0, 2),
    )
    expected = {0: -1, 1: 3, 2: 4, 3: -1, 50: -1}
    for depth, token in expected.items():
        beams.depth = ints(5, depth)
        assert next_forced(beams, ints(1, 0)).tolist() == [token, -1]


def test_rows_without_a_score_go_on_where_there_is_a_target():
    score = torch.tensor([-INF, -2.0, -INF, -INF])
    # beams of rows 0, 1 to 2, none, and 3
    offset, target = ints(0, 1, 3, 3, 4), ints(5, 6, -1, -1)
    assert revive(score, offset, target).tolist() == [0.0, -2.0, -INF, -INF]
    assert revive(score, offset, ints(-1, 6, -1, 0)).tolist() == [-INF, -2.0, -INF, 0.0]
    # an empty beam behind the last row
    assert revive(score[:1], ints(0, 1, 1), ints(5, -1)).tolist() == [0.0]
    assert revive(score[:0], ints(0, 0), ints(-1)).numel() == 0


def step(**fields) -> tuple:
    """Beams of one row, of one row within a prefix, of none, and of one that is free."""
    rows = SimpleNamespace(offset=ints(0, 1, 2, 2, 3), num_generated=ints(4, -1, 0))
    inputs = SimpleNamespace(offset=rows.offset, score=torch.tensor([-1.0, -2.0, -3.0]))
    logits = torch.tensor([[0.0, 1, 2, 3], [4.0, 5, -INF, 7], [8.0, 9, 10, 11]])
    chosen = survivors([[3, 2], [3, 2], [-1, -1], [3, 2]], [[-0.5, -0.7]] * 4)
    chosen = chosen._replace(count=ints(2, 2, 0, 2), num_finished=ints(1, 0, 0, 1), **fields)
    return chosen, rows, inputs, logits


def test_a_target_replaces_what_was_chosen():
    chosen, rows, inputs, logits = step()
    target = ints(2, 2, -1, -1)
    found = force(chosen, target, rows, inputs, logits, False)
    assert found.token[:, 0].tolist() == [2, 2, -1, 3]
    assert found.parent[:, 0].tolist() == [0, 0, 7, 7]
    # within a prefix, what cannot follow costs nothing
    assert found.log_prob[:, 0].tolist() == [2.0, 0.0, *chosen.log_prob[2:, 0].tolist()]
    assert found.score[:, 0].tolist() == [1.0, -2.0, -0.5, -0.5]
    assert found.count.tolist() == [1, 1, 0, 2]
    assert found.num_finished.tolist() == [0, 0, 0, 1]
    assert found.token[:, 1].tolist() == [2, 2, -1, 2]


def test_what_is_normalised_is_measured_from_the_chosen_token():
    chosen, rows, inputs, logits = step()
    first = chosen.log_prob[0, 0].item()
    found = force(chosen, ints(EOS, 0, -1, 0), rows, inputs, logits, True)
    assert found.log_prob[:2, 0].tolist() == [1.0 - 3.0 + first, 4.0 - 7.0 + first]
    assert found.log_prob[3, 0].item() == 8.0 - 11.0 + first
    assert found.num_finished.tolist() == [0, 0, 0, 0]
    assert found.count.tolist() == [1, 1, 0, 1]


def test_log_probs_that_do_not_rank():
    """They count, and rank nothing but within a prefix, where all rows have them."""
    chosen, rows, inputs, logits = step()
    log_probs = -logits.nan_to_num(neginf=9.0)
    found = force(chosen, ints(2, 0, -1, -1), rows, inputs, logits, False, log_probs)
    assert found.log_prob[:2, 0].tolist() == [-2.0, -4.0]
    assert found.score[:2, 0].tolist() == [-1.0 + 2.0, -2.0 - 4.0]


def test_rows_that_nothing_can_follow_and_rows_of_nan():
    chosen, rows, inputs, logits = step(has_nan=torch.tensor([True, False, False, False]))
    chosen = chosen._replace(count=ints(2, 1, 0, 0))
    found = force(chosen, ints(2, 0, -1, 0), rows, inputs, logits, False)
    assert found.token[:, 0].tolist() == [3, 0, -1, 0]
    assert found.score[:, 0].tolist() == [-0.5, 2.0, -0.5, -INF]
    assert found.count.tolist() == [2, 1, 0, 1]
    assert force(chosen, ints(2), rows, inputs, logits[:0], False) is chosen


def demoted(
    token: list, score: list, depth: int = 2, prefix_length: int = 2, **fields
) -> Survivors:
    beams = SimpleNamespace(depth=ints(0, depth), prefix_length=ints(0, prefix_length))
    fields = {"num_finished": ints(1), **fields}
    return demote_eos(survivors([token], [score], **fields), beams, ints(1), ints(3))


def test_an_eos_that_is_not_the_best_right_behind_a_prefix():
    late = demoted([EOS, 2, 3], [-2.0, -1.0, -3.0])
    assert (late.count.tolist(), late.num_finished.tolist()) == ([2], [0])
    assert late.token.tolist() == [[2, 3, 3]] and late.score.tolist() == [[-1.0, -3.0, -3.0]]
    many = demoted([EOS, 2, 3, 4, 5], [-2.0, -1.0, -3.0, -4.0, -5.0])
    assert many.count.tolist() == [2]
    for kept in (
        demoted([EOS, 2, 3], [-1.0, -2.0, -3.0]),
        demoted([EOS, 2, 3], [-1.0, -1.0, -3.0]),
        demoted([EOS, 2, 3], [-2.0, -1.0, -3.0], depth=3),
        demoted([EOS, 2, 3], [-2.0, -1.0, -3.0], depth=0, prefix_length=0),
        demoted([EOS, 2, 3], [-2.0, -1.0, -3.0], count=ints(1)),
    ):
        assert (kept.num_finished.tolist(), kept.token.tolist()) == ([1], [[EOS, 2, 3]])
    assert demoted([2, 3], [-2.0, -1.0], num_finished=ints(0)).token.tolist() == [[2, 3]]
    # among equal scores the smaller token is the better one
    assert demoted([EOS, 0, 3], [-1.0, -1.0, -3.0]).num_finished.tolist() == [0]
