"""The arguments that processors refuse: at construction, with a model, and in requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import pybeam
from pybeam import processors as p
from pybeam.processors.base import edit_of
from pybeam.speech import whisper_timestamps
from support.search_models import EOS, random_model

V = 9


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: p.temperature(0), ValueError, "`temperature` must be finite, greater than 0"),
        (lambda: p.temperature(math.nan), ValueError, "`temperature` must be finite"),
        (lambda: p.temperature(10**400), ValueError, "`temperature` must be finite"),
        (lambda: p.temperature("1"), TypeError, "`temperature` must be a number, but is '1'"),
        (lambda: p.eos_penalty(-1), ValueError, "`penalty` must be finite, greater than 0"),
        (lambda: p.temperature(-0.5), ValueError, "`temperature` must be finite, greater than 0"),
        (lambda: p.eos_penalty(-0.5), ValueError, "`penalty` must be finite, greater than 0"),
        (lambda: p.repetition_penalty(-0.5), ValueError, "`penalty` must be finite, greater"),
        (lambda: p.eos_growth(1, -0.5), ValueError, "`factor` must be finite, greater than 0"),
        (lambda: p.sample(-0.5), ValueError, "`temperature` must be finite, greater than 0"),
        (lambda: p.sample(1, 2**63), ValueError, r"`seed` must be 0 to 9223372036854775807"),
        (lambda: p.eos_penalty(True), TypeError, "`penalty` must be a number"),
        (lambda: p.repetition_penalty(0), ValueError, "`penalty` must be finite, greater than 0"),
        (lambda: p.repetition_penalty(2, stage="probs"), ValueError, "`stage` must be 'logits' or"),
        (lambda: p.no_repeat_ngram(0), ValueError, "`n` must be at least 1, but is 0"),
        (lambda: p.no_repeat_ngram(2.0), TypeError, "`n` must be an int, but is 2.0"),
        (lambda: p.suppress_tokens(5), TypeError, "`tokens` must be a list of token ids, but is 5"),
        (lambda: p.suppress_tokens(["a"]), TypeError, "`tokens` must hold token ids, which are"),
        (lambda: p.suppress_tokens([-1]), ValueError, "`tokens` must hold token ids from 0 to"),
        (lambda: p.suppress_tokens_at_start([2**31]), ValueError, "`tokens` must hold token ids"),
        (lambda: p.no_unk(None), TypeError, "`unk_id` must hold token ids"),
        (
            lambda: p.suppress_sequences([1, 2]),
            TypeError,
            "`sequences` must be a list of token ids",
        ),
        (
            lambda: p.suppress_sequences([[1]] * 2000 + [[1] * 1000]),
            ValueError,
            "`sequences` must be at most 1,048,576 numbers, .* are 2,001 times 1,000",
        ),
        (lambda: p.suppress_sequences([[1], []]), ValueError, "`sequences` must not hold an empty"),
        (
            lambda: p.suppress_tokens_at_start([4], skips=-1),
            ValueError,
            "`skips` must be at least 0",
        ),
        (lambda: p.min_length(-1), ValueError, "`length` must be at least 0, but is -1"),
        (lambda: p.min_length(2.0), TypeError, "`length` must be an int, but is 2.0"),
        (lambda: p.first_token("a"), TypeError, "`token` must hold token ids"),
        (lambda: p.eos_growth(-1, 2), ValueError, "`start` must be at least 0, but is -1"),
        (lambda: p.eos_growth(1, 0), ValueError, "`factor` must be finite, greater than 0"),
        (lambda: p.token_penalty(3, math.inf), ValueError, "`penalty` must be finite"),
        (lambda: p.token_penalty(None, 1), TypeError, "`token` must hold token ids"),
        (lambda: p.biased_prefix(1), ValueError, "`beta` must be .* less than 1, but is 1"),
        (lambda: p.biased_prefix(-0.1), ValueError, "`beta` must be finite, greater than 0"),
        (lambda: p.biased_prefix(0.1, "abc"), TypeError, "`prefix` must be a list of token ids"),
        (lambda: p.allowed_sequences([]), ValueError, "`sequences` must hold at least one"),
        (lambda: p.allowed_sequences([[]]), ValueError, "`sequences` must not hold an empty one"),
        (lambda: p.allowed_sequences("ab"), TypeError, "`sequences` must be a list of lists"),
        (lambda: p.allowed_tokens(3), TypeError, "`function` must be a function"),
        (lambda: p.from_function(3), TypeError, "`function` must be a function"),
        (lambda: whisper_timestamps(-1), ValueError, "`no_timestamps` must hold token ids"),
        (lambda: whisper_timestamps(3, max_initial=-1), ValueError, "`max_initial` must be at"),
        (lambda: whisper_timestamps(3, stage="x"), ValueError, "`stage` must be 'logits' or"),
        (lambda: p.count_penalty(math.inf), ValueError, "`frequency` must be finite"),
        (lambda: p.count_penalty(0, "1"), TypeError, "`presence` must be a number"),
        (lambda: p.count_penalty(1, stage="x"), ValueError, "`stage` must be 'logits' or"),
        (lambda: p.sample(-1), ValueError, "`temperature` must be finite, greater than 0"),
        (lambda: p.sample(1, -1), ValueError, "`seed` must be 0 to"),
        (
            lambda: p.sequence_bias([[1, 2, 3]]),
            TypeError,
            "`biases` must be pairs of token ids and",
        ),
        (lambda: p.sequence_bias(5), TypeError, "`biases` must be pairs of token ids and a bias"),
        (lambda: p.sample("1"), TypeError, "`temperature` must be a number, but is '1'"),
        (lambda: p.sequence_bias([([], 1.0)]), ValueError, "`biases` must not hold an empty one"),
        (lambda: p.sequence_bias({(3,): math.inf}), ValueError, "`biases` must be finite"),
        (lambda: p.sequence_bias({(3,): "x"}), TypeError, "`biases` must be a number"),
        (lambda: p.sequence_bias({(3,): 1}, stage="x"), ValueError, "`stage` must be 'logits' or"),
        (lambda: p.encoder_repetition_penalty(0), ValueError, "`penalty` must be finite, greater"),
        (lambda: p.encoder_repetition_penalty(2, 3), TypeError, "`source` must be a list of token"),
        (
            lambda: p.encoder_repetition_penalty(2, stage="x"),
            ValueError,
            "`stage` must be 'logits' or",
        ),
        (lambda: p.encoder_no_repeat_ngram(0), ValueError, "`n` must be at least 1, but is 0"),
        (lambda: p.encoder_no_repeat_ngram(2, [-1]), ValueError, "`source` must hold token ids"),
        (lambda: p.sample(1, top_k=-1), ValueError, "`top_k` must be at least 0, but is -1"),
        (lambda: p.sample(1, top_p=2), ValueError, "`top_p` must be 0 to 1, but is 2"),
        (lambda: p.sample(1, min_p=2), ValueError, "`min_p` must be 0 to 1, but is 2"),
        (lambda: p.sample(1, draw=-1), ValueError, "`draw` must be 0 to"),
        (lambda: p.top_k(2.0), TypeError, "`top_k` must be an int, but is 2.0"),
        (lambda: p.top_k(2, stage="x"), ValueError, "`stage` must be 'logits' or"),
        (lambda: p.top_p(-0.5), ValueError, "`top_p` must be 0 to 1, but is -0.5"),
        (lambda: p.top_p(True), TypeError, "`top_p` must be a number, but is True"),
        (lambda: p.top_p(0.5, stage="x"), ValueError, "`stage` must be 'logits' or"),
        (lambda: p.min_p(-0.1), ValueError, "`min_p` must be 0 to 1, but is -0.1"),
        (lambda: p.min_p(math.nan), ValueError, "`min_p` must be 0 to 1, but is nan"),
        (lambda: p.min_p(0.5, stage="x"), ValueError, "`stage` must be 'logits' or"),
        (lambda: p.from_function(len, stage=1), ValueError, "`stage` must be 'logits' or"),
    ],
)
def test_construction(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_numbers_at_their_limits():
    assert p.sample(1, 2**63 - 1, draw=2**63 - 1).seed == 2**63 - 1
    assert p.top_k(2**31 - 1).k == 2**31 - 1 and p.top_p(1).p == p.min_p(1).p == 1
    assert p.eos_growth(0, 0.5).factor == 0.5


@pytest.mark.parametrize("kind", [torch.tensor, np.array, np.int64])
def test_ids_and_numbers_may_be_of_torch_or_numpy(kind):
    given = list(map(kind, (3, 4))) if kind is np.int64 else kind([3, 4])
    assert p.suppress_tokens(given) == p.suppress_tokens([3, 4])
    assert p.suppress_sequences([given]) == p.suppress_sequences([[3, 4]])
    assert p.temperature(np.float32(1.5)) == p.temperature(1.5)
    assert pybeam.limits.SourceLimit(np.float32(1.5)).tokens(3) == 4


@pytest.mark.parametrize(
    ("chain", "error", "message"),
    [
        (["x"], TypeError, "`processors` must hold functions or .* number 0 is 'x'"),
        (p.temperature(2), TypeError, "`processors` must be a list, but is Temperature"),
        (
            [p.eos_penalty(0.5), p.temperature(2)],
            ValueError,
            r"stage 'logits' first, but Temperature\(.*\) follows EosPenalty",
        ),
        ([p.eos_penalty(0.5), lambda logits, rows: logits], ValueError, "stage 'logits' first"),
        (
            [p.temperature(2), p.eos_penalty(0.5), p.temperature(3)],
            ValueError,
            r"but Temperature\(.*3.*\) follows EosPenalty",
        ),
        (
            [p.gumbel(0), p.eos_penalty(0.5), p.eos_penalty(0.7)],
            ValueError,
            r"must have Gumbel.* last, .* but EosPenalty\(penalty=0.7.* is the last",
        ),
    ],
)
def test_what_an_algorithm_refuses(chain, error, message):
    with pytest.raises(error, match=message):
        pybeam.fixed_beam(3, processors=chain)


class Elsewhere(pybeam.models.FunctionModel):
    """Starts from a token that it cannot generate."""

    def __init__(self):
        super().__init__(lambda prefixes, *_: torch.zeros(len(prefixes), V), V, V, EOS)


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (p.suppress_tokens([V]), "`tokens` must hold ids of the model's vocabulary, 0 to 8, .* 9"),
        (p.suppress_tokens_at_start([99]), "`tokens` must hold ids"),
        (p.no_unk(V), "`tokens` must hold ids"),
        (p.suppress_sequences([[1, V]]), "`sequences` must hold ids"),
        (p.biased_prefix(0.1, [V]), "`prefix` must hold ids"),
        (p.allowed_sequences([[2, V]]), "`automaton` must hold ids"),
        (p.allowed_sequences([[2, EOS]]), r"`automaton` must have no edges with EOS \(1\)"),
        (whisper_timestamps(V - 1), "`no_timestamps` must hold ids of the model"),
        (whisper_timestamps(EOS - 1), "`no_timestamps` must be greater than EOS, which is 1"),
        (p.repetition_penalty(2, counts_start=True), "`counts_start` needs a start token of"),
        (p.no_repeat_ngram(1, counts_start=True), "`counts_start` needs a start token of"),
    ],
)
def test_what_does_not_fit_the_model(processor, message):
    algorithm = pybeam.fixed_beam(3, processors=[processor])
    with pytest.raises(ValueError, match=message):
        pybeam.Decoder(Elsewhere(), algorithm)


def test_the_smallest_numbers_that_are_fit():
    assert p.min_length(0).length == 0
    assert p.no_repeat_ngram(1).n == 1
    assert p.first_token(0).token == p.token_penalty(0, -1.0).token == 0
    assert p.suppress_tokens_at_start([0], skips=0).skips == 0
    assert p.eos_growth(0, 0.1).start == p.sample(0.0, 0).seed == p.gumbel(0).seed == 0


def test_a_class_that_does_something_else_has_not_the_edit_of_its_base():
    base = type(p.eos_penalty(0.5))

    class Louder(base):
        def __call__(self, logits, rows, data):
            return 2 * super().__call__(logits, rows, data)

    class Twin(base):
        """With a rule of its own."""

        edit = base.edit
        __call__ = Louder.__call__

    assert edit_of(base(0.5)) == edit_of(Twin(0.5)) == base(0.5).edit
    assert edit_of(Louder(0.5)) is None and edit_of(lambda logits, rows: logits) is None


@pytest.mark.parametrize("start", [V, V + 3])
def test_a_start_token_that_counts_must_be_one_of_the_vocabulary(start):
    model = random_model(1, V)
    model.start_id = start
    with pytest.raises(ValueError, match=f"vocabulary, 0 to {V - 1}, .* starts with {start};"):
        p.repetition_penalty(2, counts_start=True).check(model)
    model.start_id = V - 1
    p.repetition_penalty(2, counts_start=True).check(model)


def test_a_start_token_beyond_the_vocabulary():
    chain = [p.repetition_penalty(2), p.no_repeat_ngram(1), p.suppress_sequences([[2, 3]])]
    decoder = pybeam.Decoder(Elsewhere(), pybeam.greedy(max_length=4, processors=chain))
    (result,) = decoder.decode([[1]])
    assert result.hypotheses[0].tokens == [0]  # then EOS, the first of equal ones


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (p.temperature(2), "of class Temperature it has 0; give the algorithm one"),
        (p.suppress_tokens([2]), "of class SuppressTokens it has 2"),
        (
            p.repetition_penalty(2, counts_start=True),
            "`counts_start` of a RepetitionPenalty .* the same",
        ),
        (
            p.repetition_penalty(2, stage="log_probs"),
            "`stage` of a RepetitionPenalty must be the same",
        ),
        (
            p.no_repeat_ngram(3),
            "`n` of a NoRepeatNgram must be the same for all requests, 2, but is 3",
        ),
        (p.biased_prefix(0.5, [V]), "`prefix` must hold ids of the model's vocabulary"),
        (
            lambda logits, rows: logits,
            "`Request.processors` must hold what pybeam.processors makes",
        ),
    ],
)
def test_what_a_request_may_not_change(change, message):
    chain = [
        p.repetition_penalty(1.5),
        p.no_repeat_ngram(2),
        p.suppress_tokens([3]),
        p.no_unk(4),
        p.biased_prefix(0.1, [2]),
    ]
    decoder = pybeam.Decoder(random_model(1, V), pybeam.fixed_beam(3, processors=chain))
    requests = [[1], pybeam.Request([1], processors=[change])]
    good, bad = decoder.decode(requests, on_error="return")
    assert good.error is None
    with pytest.raises((TypeError, ValueError), match=message):
        raise bad.error


def test_a_request_has_a_list_of_them():
    decoder = pybeam.Decoder(random_model(1, V), pybeam.greedy(processors=[p.temperature(1)]))
    (result,) = decoder.decode(
        [pybeam.Request([1], processors=p.temperature(2))], on_error="return"
    )
    assert "`Request.processors` must be a list, but is Temperature" in str(result.error)


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (
            lambda logits, rows: logits[:, :3],
            r"must return floats \[R, V\] = \[1, 9\], but .* \[1, 3\]",
        ),
        (lambda logits, rows: None, r"must return floats .* but returned None"),
        (lambda logits, rows: logits.int(), r"must return floats .* but returned torch.int32"),
        (
            p.allowed_tokens(lambda rows: None),
            r"bool mask \[R, V\] = \[1, 9\], .* but returned None",
        ),
        (p.allowed_tokens(lambda rows: rows.token), r"but returned torch.int32 \[1\]"),
    ],
)
def test_what_functions_must_return(processor, message):
    decoder = pybeam.Decoder(random_model(1, V), pybeam.greedy(processors=[processor]))
    with pytest.raises(pybeam.DecodeError, match=message):
        decoder.decode([[1]])


def test_a_functions_own_logits_are_not_overwritten():
    logits = torch.zeros(1, V)
    model = pybeam.models.FunctionModel(lambda *_: logits, V, 0, EOS)
    chain = [p.suppress_tokens([3]), p.temperature(3)]
    pybeam.Decoder(model, pybeam.greedy(max_length=3, processors=chain)).decode([[1]])
    assert torch.equal(logits, torch.zeros(1, V))


class LengthBonus(p.Processor):
    """A processor as users write them: the deeper in the tree, the less probable is EOS."""

    state = (torch.int32,)

    def __call__(self, logits, rows, data):
        (state,) = data
        slot, node = rows.row_slot.long(), rows.node.long()
        parent = rows.tree.parent[slot, node].long()
        depth = torch.where(parent < 0, 0, state[slot, parent.clamp(min=0)] + 1)
        state[slot, node] = depth
        assert torch.equal(depth, rows.position)
        logits[:, rows.eos_id] -= depth
        return logits


def test_state_follows_hypotheses():
    model = random_model(1, V, eos_bonus=1.0)
    algorithm = pybeam.variable_beam(4, 3.0, n_best=4, max_length=15, processors=[LengthBonus()])
    expected = pybeam.variable_beam(
        4,
        3.0,
        n_best=4,
        max_length=15,
        processors=[lambda x, rows: x - rows.position[:, None] * (torch.arange(V) == EOS)],
    )
    requests = [[1] * (1 + i % 4) for i in range(30)]
    ours, theirs = (pybeam.Decoder(model, a, pybeam.Fifo(5)) for a in (algorithm, expected))
    assert ours.decode(requests) == theirs.decode(requests)


@dataclass(frozen=True)
class Counting(pybeam.Processor):
    """Each step adds one more to its logits, from Python."""

    def __call__(self, logits, rows, data):
        return logits


def test_only_classes_of_the_package_may_be_captured_unasked():
    class Warmer(type(p.temperature(2.0))):
        pass

    class Captured(Counting):
        can_capture = True

    assert p.temperature(2.0).can_capture and p.no_repeat_ngram(2).can_capture
    assert not Counting().can_capture and not Warmer(2.0).can_capture
    assert Captured().can_capture
    assert not p.from_function(lambda logits, rows: logits).can_capture
