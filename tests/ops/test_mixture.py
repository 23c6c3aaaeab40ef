"""The operator `mixture` and its oracle in torch: exact to rounding, every row on its own."""

import math

import pytest
import torch

from pybeam.backends import torch_layers
from support import isas

SIZES = (1, 3, 16, 63, 129, 700)


def torch_mixture(logits, dtype=torch.float32):
    out = torch.empty(logits[0].shape, dtype=dtype)
    torch_layers.mixture(out, logits)
    return out


@pytest.fixture(params=["torch", *isas.OF_FLOATS[:3]])
def mixture(request):
    """The function in torch, and the operator on every instruction set."""
    if request.param == "torch":
        return torch_mixture
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    before = native.isa()
    try:
        native.set_isa(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))
    request.addfinalizer(lambda: native.set_isa(before))

    def run(logits):
        out = torch.empty(logits[0].shape)
        native.mixture(out, logits)
        return out

    return run


def members(num: int, num_rows: int, size: int, seed: int = 0, scale: float = 5.0):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(num_rows, size, generator=generator) for _ in range(num)]


def by_hand(logits):
    """The mean of the probabilities in float64."""
    return torch.stack([own.double().softmax(1) for own in logits]).mean(0).log()


def assert_near(actual, expected, atol=5e-6):
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=atol, equal_nan=True)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num", [1, 2, 5])
def test_the_mean_of_probabilities(mixture, num, size):
    logits = members(num, 40, size)
    assert_near(mixture(logits), by_hand(logits))


def test_rows_stand_alone(mixture):
    logits = members(3, 50, 129)
    together = mixture(logits)
    for rows in (slice(0, 1), slice(7, 50), slice(49, 50)):
        alone = mixture([own[rows] for own in logits])
        if mixture is torch_mixture:  # torch splits the sums of few rows among threads
            torch.testing.assert_close(alone, together[rows])
        else:
            assert torch.equal(alone, together[rows])


def test_strided_rows(mixture):
    wide = members(2, 9, 80)
    logits = [own[:, 3:73] for own in wide]
    assert_near(mixture(logits), by_hand(logits))


def test_improbable_tokens_keep_their_log_prob(mixture):
    """Probabilities that float32 cannot hold."""
    logits = [torch.tensor([[0.0, -300.0, -250.0]]), torch.tensor([[0.0, -301.0, -900.0]])]
    half = math.log(0.5)
    expected = [0.0, -300 + half + math.log1p(math.exp(-1)), -250 + half]
    assert mixture(logits)[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_one_distribution_is_its_own_mixture(mixture):
    (own,) = members(1, 5, 70)
    expected = own.double().log_softmax(1)
    for num in (1, 2, 7):
        assert_near(mixture([own] * num), expected)


def test_minus_infinity_is_no_probability(mixture):
    logits = members(3, 4, 70)
    logits[0][0, 5] = -torch.inf  # one member forbids it
    for own in logits:
        own[1, 5] = -torch.inf  # all do
    logits[1][2] = -torch.inf  # one member allows nothing
    for own in logits:
        own[3] = -torch.inf  # nobody allows anything
    out = mixture(logits)
    expected = torch.stack([own.double().softmax(1).nan_to_num(0.0) for own in logits]).mean(0)
    assert_near(out, expected.log())
    assert out[0].isfinite().all()
    assert out[1, 5] == -torch.inf
    assert (out[3] == -torch.inf).all()


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("column", [0, 40, 69])
def test_nan_and_infinity_show_in_their_row(mixture, bad, column):
    logits = members(3, 5, 70)
    logits[1][2, column] = bad
    out = mixture(logits)
    assert out[2].isnan().any()
    assert out[[0, 1, 3, 4]].isfinite().all()


def test_float64_is_kept():
    logits = [own.double() for own in members(3, 4, 70)]
    out = torch_mixture(logits, torch.float64)
    torch.testing.assert_close(out, by_hand(logits), rtol=1e-12, atol=1e-12)


def test_half_precision_is_widened():
    logits = [own.bfloat16() for own in members(3, 4, 70)]
    assert_near(torch_mixture(logits), by_hand(logits))


@pytest.mark.parametrize(
    ("out", "logits", "message"),
    [
        (torch.zeros(2, 4), [], "`logits` must be at least one tensor"),
        (torch.zeros(2), [torch.zeros(2)], "`out` must have 2 dimensions"),
        (torch.zeros(4, 2).t(), [torch.zeros(2, 4)], "`out` must be contiguous"),
        (torch.zeros(2, 4), [torch.zeros(2, 4), torch.zeros(2, 5)], r"`logits` must be \[2, 4\]"),
        (torch.zeros(2, 4), [torch.zeros(2, 4).double()], "`logits` must be float32"),
        (torch.zeros(2, 4), [torch.zeros(4, 2).t()], "the last stride of `logits` must be 1"),
    ],
)
def test_wrong_arguments(out, logits, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    with pytest.raises(ValueError, match=message):
        native.mixture(out, logits)
