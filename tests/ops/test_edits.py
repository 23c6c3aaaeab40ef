"""The operator `edit_logits`: what stays, and what it refuses. `tests/processors` has what each edit does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pybeam.contracts import Edit

V, INF = 5, math.inf

pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


def ints(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def edited(rules: list, arrays: list[Tensor], logits: Tensor, **changes) -> list[list[float]]:
    """The logits of rows in slots 0, 1, ..., each with a history of its own."""
    num = len(logits)
    given = dict(
        logits=logits,
        rules=[word for rule in rules for word in (*rule, 0, 0)[:3]],
        arrays=arrays,
        history=ints([[0, 3, 2]] * num),
        prompt=ints([[]] * num),
        slot=torch.arange(num, dtype=torch.int32),
        position=ints([2] * num),
        prefix_length=ints([0] * num),
        max_length=ints([3] * num),
        eos_ids=[1],
    )
    torch.ops.pybeam.edit_logits(*(given | changes).values())
    return logits.tolist()


def test_a_banned_nan_is_still_reported():
    logits = torch.tensor([[0.0, 0.0, math.nan, 0.0, 0.0]])
    [row] = edited([(Edit.TOKENS, -1)], [ints([[2, 3]])], logits)
    assert math.isnan(row[2]) and row[3] == -INF


def test_what_is_no_column_is_nobodys():
    logits = torch.zeros(1, V)
    arrays = [ints([[-1, V, 4]]), torch.tensor([2.0]), ints([V])]
    rules = [(Edit.TOKENS, -1), (Edit.TOKEN_PENALTY, V), (Edit.FIRST_TOKEN,)]
    assert edited(rules, arrays, logits, eos_ids=[-1]) == [[0, 0, 0, 0, -INF]]
    arrays = [torch.tensor([2.0]), torch.tensor([3.0])]
    rules = [(Edit.REPETITION, 1), (Edit.EOS_PENALTY,), (Edit.NGRAM, 0, 1)]
    history = ints([[9, V, 2]])
    found = edited(rules, arrays, torch.ones(1, V), history=history, eos_ids=[7, 3])
    assert found == [[1, 1, -INF, 3, 1]]


def test_every_eos_ends():
    rules = [(Edit.MIN_LENGTH, 1), (Edit.LAST_TOKEN, 1), (Edit.EOS_PENALTY,)]
    arrays = [ints([3, 2]), torch.tensor([2.0, 2.0])]
    found = edited(rules, arrays, torch.ones(2, V), eos_ids=[1, 4])
    assert found == [[-INF] * V, [-INF, 2, -INF, -INF, 2]]


def test_log_probs_follow_logits():
    rules = [(Edit.TOKENS, -1), (Edit.LOG_SOFTMAX,), (Edit.TOKEN_PENALTY, 0)]
    [row] = edited(rules, [ints([[1, 2]]), torch.tensor([1.0])], torch.zeros(1, V))
    third = -math.log(3)
    assert row == pytest.approx([third - 1, -INF, -INF, third, third])


def test_marks_that_are_no_columns_are_nobodys():
    rules = [(Edit.MARKS, begin) for begin in (-1, 0, V, V + 1)]
    logits = torch.arange(V).float()[None]
    assert edited(rules, [ints([9])] * 4, logits) == [[0, 1, 2, 3, 4]]
    # the largest first mark may be beyond them, and a prefix longer than the hypothesis
    history, position = ints([[0]]), ints([0])
    first = dict(history=history, position=position)
    assert edited([(Edit.MARKS, 3)], [ints([V])], logits, **first) == [[-INF] * 3 + [3, 4]]
    assert edited([(Edit.MARKS, 1)], [ints([2])], logits, prefix_length=ints([9])) == [
        [-INF] * 3 + [3, 4]
    ]


def test_a_nan_beside_marks_is_still_reported():
    """No sum of marks is more probable than it."""
    for token, begin in ((1, 3), (4, 3)):
        logits = torch.tensor([[0.0, 0, 0, 9, 9]])
        logits[0, token] = math.nan
        [row] = edited([(Edit.MARKS, begin)], [ints([9])], logits, history=ints([[0, 1, 1]]))
        assert math.isnan(row[token]) and row[0] == 0


def test_records_stand_in_their_lines():
    """Where so many tokens of the prefix follow; an absurd line is nobody's."""
    record, logits = torch.zeros(3, 2), torch.zeros(4, V)
    given = ints([[0, 1, 4, V], [1, 0, 2, 3], [0, 3, 0, 0], [0, -1, 0, 0]])
    places = dict(prefix_length=ints([2, 2, 2, 2]), max_length=ints([9] * 4))
    rules = [(Edit.TOKENS, -1), (Edit.RECORD,)]
    found = edited(rules, [ints([[1]] * 4), given, record], logits, **places)
    assert found == [[0, -INF, 0, 0, 0]] * 4
    assert record.tolist() == [[0, 0], [pytest.approx(-math.log(4)), -INF], [0, 0]]


def test_counts_and_biases_of_what_is_no_column_are_nobodys():
    arrays = [torch.tensor([2.0]), torch.tensor([0.5])]
    found = edited([(Edit.COUNTS,)], arrays, torch.zeros(1, V), history=ints([[0, V, 2]]))
    assert found == [[0, 0, -2.5, 0, 0]]
    biases = [ints([[[2, 3], [V, -1], [2, -1], [-1, -1]]]), torch.tensor([[1.0, 9.0, 2.0, 9.0]])]
    assert edited([(Edit.SEQUENCE_BIAS,)], biases, torch.zeros(1, V)) == [[0, 0, 2, 0, 0]]
    history = ints([[0, 2, 3]])
    found = edited([(Edit.SEQUENCE_BIAS,)], biases, torch.zeros(1, V), history=history)
    assert found == [[0, 0, 3, 0, 0]]


def test_a_nan_that_counts_is_still_reported():
    logits = torch.tensor([[0.0, 0.0, math.nan, 0.0, -INF]])
    arrays = [torch.tensor([2.0]), torch.tensor([0.5])]
    [row] = edited([(Edit.COUNTS,)], arrays, logits, history=ints([[0, 4, 2]]))
    assert math.isnan(row[2]) and row[:2] == [0, 0] and row[4] == -INF


WRONG = [
    ([(Edit.COUNTS,)], [torch.ones(2)], {}, "fewer tensors than"),
    ([(Edit.COUNTS,)], [torch.ones(2), ints([1, 1])], {}, "must be float32, but is int32"),
    (
        [(Edit.SEQUENCE_BIAS,)],
        [ints([[[1], [2]]] * 2), torch.ones(2, 1)],
        {},
        "a bias for each of 2 sequences, but there are 1",
    ),
    ([(Edit.TOKENS,)], [], {}, "fewer tensors than"),
    ([], [torch.ones(2)], {}, "but has 1 more"),
    ([(99,)], [], {}, "must be one of `Edit`, but is 99"),
    ([(Edit.NGRAM, 0, 0)], [], {}, "an n-gram must have a token"),
    ([(Edit.NGRAM, 0, 1 << 40)], [], {}, "does not fit in int32"),
    ([(Edit.TOKENS,)], [ints([[1]])], {}, "a line for each of 2 slots, but has 1"),
    ([(Edit.TOKENS,)], [torch.ones(2, 3)], {}, "must be int32, but is float32"),
    ([(Edit.MIN_LENGTH,)], [ints([[1], [1]])], {}, "must have 1 dimensions, but has 2"),
    ([(Edit.BIASED_PREFIX,)], [torch.ones(2, 1), ints([[1], [1]])], {}, "must have two numbers"),
    ([(Edit.RECORD,)], [ints([[0, 1, 2]] * 2)], {}, "fewer tensors than"),
    ([(Edit.RECORD,)], [ints([[0]] * 2), torch.ones(2, 0)], {}, "a number for each of -1 tokens"),
    (
        [(Edit.RECORD,)],
        [ints([[0, 1, 2]] * 2), torch.ones(2, 2)],
        {},
        "each of 1 tokens, but has 2",
    ),
    ([(Edit.RECORD,)], [ints([[0, 1, 2]] * 2), ints([[1]])], {}, "must be float32, but is int32"),
    ([], [], dict(prompt=ints([[3]])), "`prompt` must have a line for each"),
    (
        [],
        [],
        dict(logits=torch.zeros(2, V, dtype=torch.float64)),
        "the reference backend takes float64",
    ),
    ([], [], dict(slot=ints([0, 2])), "`slot` is out of range"),
    ([(Edit.NGRAM, 0, 1)], [], dict(position=ints([2, 3])), "must have the tokens up to"),
]


@pytest.mark.parametrize(("rules", "arrays", "changes", "message"), WRONG)
def test_wrong_arguments(rules, arrays, changes, message):
    with pytest.raises(RuntimeError, match=message):
        edited(rules, arrays, **(dict(logits=torch.zeros(2, V)) | changes))
