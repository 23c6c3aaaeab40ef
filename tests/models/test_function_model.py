"""`FunctionModel` hands out the prefixes it promises and refuses what a function may not return."""

import pytest
import torch

import pybeam
from pybeam.models import FunctionModel
from pybeam.processors import force_eos
from support.laws import essence
from support.session_driver import SessionDriver

VOCAB, BOS, EOS = 6, 9, 1


@pytest.fixture(autouse=True)
def needs_a_cpu(device):
    if device.type != "cpu":
        pytest.skip("functions run on the CPU")


def zeros(prefixes, lengths, source_ids):
    return torch.zeros(len(lengths), VOCAB)


def driver_of(fn, backend, **sizes):
    return SessionDriver(FunctionModel(fn, VOCAB, bos_id=BOS, eos_id=EOS), backend, **sizes)


def test_prefixes_are_padded_and_begin_with_bos(backend):
    calls = []

    def fn(prefixes, lengths, source_ids):
        calls.append((prefixes, lengths, source_ids))
        return zeros(prefixes, lengths, source_ids)

    driver = driver_of(fn, backend, num_slots=3)
    driver.open({0: "a", 2: "b"}, [7, 4])
    driver.step([0])
    driver.extend({0: [(0, 3), (0, BOS)]})
    driver.step([0])
    driver.extend({0: [(1, EOS), (0, 5), (1, 2)]})
    driver.step([2, 0])
    prefixes, lengths, source_ids = calls[-1]
    assert prefixes.tolist() == [[BOS, -1, -1], [BOS, BOS, EOS], [BOS, 3, 5], [BOS, BOS, 2]]
    assert lengths.tolist() == [1, 3, 3, 3]
    assert source_ids.tolist() == [4, 7, 7, 7]
    assert {tensor.dtype for tensor in calls[-1]} == {torch.int64}
    assert calls[0][0].tolist() == [[BOS]]


def test_logits_are_handed_on(backend):
    expected = torch.randn(2, VOCAB, requires_grad=True)
    driver = driver_of(lambda *_: expected, backend)
    driver.open({0: None})
    driver.extend({0: [(0, 1), (0, 2)]})
    logits = driver.step([0])[0]
    assert torch.equal(logits, expected) and not logits.requires_grad


def test_float64_is_kept_by_the_reference_alone(backend):
    driver = driver_of(lambda *_: torch.zeros(1, VOCAB, dtype=torch.float64), backend)
    driver.open({0: None})
    is_reference = backend == "reference"
    assert driver.step([0])[0].dtype == (torch.float64 if is_reference else torch.float32)


@pytest.mark.parametrize("chain", [(), (force_eos(),)], ids=["", "log-probs"])
def test_logits_may_lie_in_any_order(backend, chain):
    torch.manual_seed(0)
    table = torch.randn(VOCAB, 12)

    def decoded(fn):
        algorithm = pybeam.fixed_beam(3, max_length=4, processors=chain)
        model = FunctionModel(fn, VOCAB, bos_id=BOS, eos_id=EOS)
        return pybeam.Decoder(model, algorithm, backend=backend).decode(["a", "b"])

    column_by_column = decoded(lambda prefixes, *_: table[:, prefixes[:, -1]].T.detach())
    row_by_row = decoded(lambda prefixes, *_: table[:, prefixes[:, -1]].T.contiguous())
    assert essence(column_by_column) == essence(row_by_row)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        ([0.0] * VOCAB, TypeError, "must return a tensor, but returned list"),
        (torch.zeros(2, VOCAB), ValueError, r"\[1, 6\], but returned \[2, 6\]"),
        (torch.zeros(1, 7), ValueError, r"\[1, 6\], but returned \[1, 7\]"),
        (torch.zeros(VOCAB), ValueError, r"\[1, 6\], but returned \[6\]"),
        (torch.zeros(1, VOCAB, dtype=torch.int32), ValueError, "float tensor, .* torch.int32"),
    ],
)
def test_wrong_results_are_refused(backend, result, error, message):
    driver = driver_of(lambda *_: result, backend)
    driver.open({0: None})
    with pytest.raises(error, match=message):
        driver.step([0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, 5, 0, 1), TypeError, "`fn` must be a function, but is NoneType"),
        ((zeros, 0, 0, 0), ValueError, "`vocab_size` must be at least 1, but is 0"),
        ((zeros, 5, -1, 1), ValueError, "`bos_id` must not be negative, but is -1"),
        ((zeros, 5, 0, 5), ValueError, "`eos_id` must be 0 to 4, but is 5"),
    ],
)
def test_wrong_facts_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        FunctionModel(*arguments)


@pytest.mark.parametrize(("source", "length"), [([1, 2, 3], 3), ("ab", 2), (5, 1), (None, 1)])
def test_sources_may_be_anything(source, length):
    model = FunctionModel(zeros, VOCAB, BOS, EOS)
    assert model.check(source) is source
    assert model.source_length(source) == length
    assert model.max_positions is None
