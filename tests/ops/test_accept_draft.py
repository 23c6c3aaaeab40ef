"""`accept_draft`: greedy outputs of draft positions, and how far the draft agrees with them."""

from __future__ import annotations

import math

import pytest
import torch

from pybeam import backends, ops
from pybeam.contracts import Acceptance
from support.asserts import SCORE_ULP

INF = math.inf
EOS = 2


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def accept(logits, draft, backend: str, device: torch.device, eos_id: int = EOS) -> Acceptance:
    result = ops.accept_draft(logits.to(device), draft.to(device), eos_id, backend=backend)
    return Acceptance(*(field.cpu() for field in result))


def logits_of(tokens: list[list[int]], vocab_size: int = 9) -> torch.Tensor:
    """[R, Q, V] logits whose largest is at these tokens."""
    logits = torch.arange(vocab_size) / -vocab_size * torch.ones(len(tokens), len(tokens[0]), 1)
    return logits.scatter(2, torch.tensor(tokens)[..., None], 1.0)


def oracle(logits: torch.Tensor, draft: torch.Tensor, eos_id: int) -> tuple[list, ...]:
    """Token, accepted, eos_position and has_nan, one number at a time."""
    tokens, accepted, eos_position, has_nan = [], [], [], []
    for lines, fed in zip(logits.tolist(), draft.tolist(), strict=True):
        bad = [any(math.isnan(x) or x == INF for x in line) for line in lines]
        best = [-1 if b else line.index(max(line)) for line, b in zip(lines, bad, strict=True)]
        best = [
            -1 if t >= 0 and line[t] == -INF else t for t, line in zip(best, lines, strict=True)
        ]
        final = [best[0]]
        for q in range(1, len(best)):
            if final[-1] in (-1, eos_id) or fed[q] != final[-1]:
                break
            final.append(best[q])
        tokens.append(best)
        accepted.append(len(final))
        eos_position.append(len(final) - 1 if final[-1] == eos_id != -1 else -1)
        has_nan.append(bad[len(final) - 1])
    return tokens, accepted, eos_position, has_nan


def check(logits, draft, backend: str, device: torch.device, eos_id: int = EOS) -> Acceptance:
    result = accept(logits, draft, backend, device, eos_id)
    expected = oracle(logits, draft, eos_id)
    for name, values in zip(
        ("token", "accepted", "eos_position", "has_nan"), expected, strict=True
    ):
        assert getattr(result, name).tolist() == values, name
    log_prob = logits.double().log_softmax(-1).amax(-1).masked_fill(result.token < 0, -INF)
    atol = SCORE_ULP * max(1.0, math.log(logits.shape[2]))
    torch.testing.assert_close(result.log_prob, log_prob.float(), atol=atol, rtol=0)
    return result


@pytest.mark.parametrize(
    ("outputs", "guesses", "accepted", "eos_position"),
    [
        pytest.param([5, 6, 7], [5, 6], 3, -1, id="all-agree"),
        pytest.param([5, 6, 7], [4, 6], 1, -1, id="none-agrees"),
        pytest.param([5, 6, 7], [5, 4], 2, -1, id="second-differs"),
        pytest.param([5, 6, 7], [4, 7], 1, -1, id="later-agreement-does-not-count"),
        pytest.param([5, EOS, 7], [5, EOS], 2, 1, id="cut-after-eos"),
        pytest.param([EOS, 6, 7], [EOS, 6], 1, 0, id="eos-first"),
        pytest.param([5, 6, EOS], [5, 6], 3, 2, id="eos-last"),
        pytest.param([5, 6, EOS], [4, 6], 1, -1, id="eos-that-is-not-final"),
        pytest.param([5, 6, 7], [-1, -1], 1, -1, id="no-guesses"),
    ],
)
def test_by_hand(backend, device, outputs, guesses, accepted, eos_position):
    result = check(logits_of([outputs]), ints([[99, *guesses]]), backend, device)
    assert result.token.tolist() == [outputs]
    assert result.accepted.tolist() == [accepted]
    assert result.eos_position.tolist() == [eos_position]


def test_ties_and_zeros(backend, device):
    logits = torch.full((4, 1, 300), -1.0)
    logits[0, 0, [7, 250]] = 3.0
    logits[1] = 0.25
    logits[2, 0, 5], logits[2, 0, 4] = 0.0, -0.0
    logits[3, 0, 4], logits[3, 0, 5] = 0.0, -0.0
    result = check(logits, torch.zeros(4, 1, dtype=torch.int32), backend, device)
    assert result.token.flatten().tolist() == [7, 0, 4, 4]


def test_ties_far_apart(backend, device):
    logits = torch.zeros(1, 2, 20_011)
    logits[0, 0, [5, 9000, 17_000]] = 1.0
    logits[0, 1, [8191, 8192, 20_010]] = 1.0
    assert check(logits, ints([[0, 5]]), backend, device).token.tolist() == [[5, 8191]]


def test_positions_without_output(backend, device):
    logits = logits_of([[5, 6, 7]] * 6)
    logits[0, 1, 3] = math.nan
    logits[1, 1, 3] = INF
    logits[2, 1] = -INF
    logits[3, 2, 8] = math.nan
    logits[4, 0] = math.nan
    logits[5, 1, :8] = -INF
    # row 3 does not come as far as its NaN; -1 never agrees with a position that has no output
    draft = ints([[0, 5, 6], [0, 5, 6], [0, 5, -1], [0, 4, 6], [0, -1, -1], [0, 5, 6]])
    result = check(logits, draft, backend, device)
    assert result.accepted.tolist() == [2, 2, 2, 1, 1, 2]
    assert result.token[:, 1].tolist() == [-1, -1, -1, 6, 6, 8]
    assert result.has_nan.tolist() == [True, True, False, False, True, False]


def test_without_eos(backend, device):
    logits = logits_of([[5, 6, 7], [5, 6, 7]])
    logits[1, 0] = -INF
    result = check(logits, ints([[0, 5, 6], [0, -1, 6]]), backend, device, eos_id=-1)
    assert result.accepted.tolist() == [3, 1]
    assert result.eos_position.tolist() == [-1, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 2, 129, 1024, 8192, 8200, 20_011])
def test_random(backend, device, vocab_size, dtype):
    torch.manual_seed(vocab_size)
    num_rows, num_positions = 3, 3
    wide = torch.randn(num_positions, num_rows, vocab_size + 5).to(dtype)
    logits = wide[..., 3 : 3 + vocab_size].transpose(0, 1)
    draft = ints(oracle(logits, torch.zeros(3, 3), -1)[0]).roll(1, dims=1)
    draft[1, 1] += 1
    eos_id = int(draft[2, 2])
    assert not logits.is_contiguous()
    check(logits, draft, backend, device, eos_id)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", [0, 1, 3, 7])
@pytest.mark.parametrize("vocab_size", [1, 4, 9, 1021])
def test_lines_that_begin_anywhere(backend, device, vocab_size, first, dtype):
    """What stands before and after a line is larger, and is not part of it."""
    strides = (3 * (vocab_size + 2) + first, vocab_size + 2, 1)
    flat = torch.full((2 * strides[0] + 8,), 9.0)
    logits = flat.to(dtype).to(device).as_strided((2, 3, vocab_size), strides, first)
    logits.copy_(torch.randn(logits.shape, generator=torch.Generator().manual_seed(first)))
    draft = torch.zeros(2, 3, dtype=torch.int32)
    result = accept(logits, draft, backend, device)
    assert result.token.tolist() == oracle(logits, draft, EOS)[0]
    log_prob = logits.cpu().double().log_softmax(-1).amax(-1).float()
    torch.testing.assert_close(result.log_prob, log_prob, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(0, 3, 5), (1, 1, 7), (130, 1, 7), (1, 70, 7), (2, 128, 3)])
def test_shapes(backend, device, shape):
    torch.manual_seed(0)
    logits = torch.randint(-2, 2, shape).float()
    check(logits, torch.randint(0, 2, shape[:2], dtype=torch.int32), backend, device)


def test_float64():
    logits = torch.randn(2, 3, 50, dtype=torch.float64)
    result = ops.accept_draft(logits, ints([[0] * 3] * 2), backend="reference")
    torch.testing.assert_close(result.log_prob, logits.log_softmax(-1).amax(-1))


def next_logits(prefix: list[int], vocab_size: int = 12) -> torch.Tensor:
    """A model: [V] logits, with ties, that depend on the last three tokens and the length."""
    generator = torch.Generator().manual_seed(hash((*prefix[-3:], len(prefix) // 4)) % 2**31)
    logits = torch.randint(0, 6, (vocab_size,), generator=generator).float()
    logits[EOS] -= 6.0 if len(prefix) < 20 else -9.0
    return logits


@pytest.mark.parametrize("block", [1, 3, 30])
def test_jacobi_iterations_are_greedy(block):
    greedy = [1]
    while greedy[-1] != EOS:
        greedy.append(int(next_logits(greedy).argmax()))
    tokens, guesses, num_steps = [1], [0] * (block - 1), 0
    while tokens[-1] != EOS:
        fed = [tokens[-1], *guesses]
        prefixes = [tokens[:-1] + fed[: q + 1] for q in range(block)]
        logits = torch.stack([next_logits(prefix) for prefix in prefixes])[None]
        result = ops.accept_draft(logits, ints([fed]), EOS)
        num_accepted, outputs = int(result.accepted), result.token[0].tolist()
        tokens += outputs[:num_accepted]
        guesses = (outputs[num_accepted:] + [0] * block)[: block - 1]
        num_steps += 1
        assert int(result.eos_position) == (num_accepted - 1 if tokens[-1] == EOS else -1)
    assert tokens == greedy
    assert num_steps <= len(greedy) - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(logits=torch.zeros(2, 9)), r"`logits` must be \[R, Q, V\]"),
        (dict(logits=torch.zeros(2, 3, 0)), r"`logits` must be of at least one position and one"),
        (dict(logits=torch.zeros(2, 3, 9, dtype=torch.int64)), r"`logits` must be torch.float32"),
        (dict(logits=torch.zeros(2, 9, 3).mT), r"`logits` must be of last stride 1, but is 3"),
        (dict(draft=ints([[1, 2, 3]])), r"`draft` must be \[R, Q\] = \[2, 3\], but is \[1, 3\]"),
        (dict(draft=torch.zeros(2, 3)), r"`draft` must be torch.int32"),
    ],
)
def test_wrong_arguments(changes, message):
    case = dict(logits=torch.zeros(2, 3, 9), draft=ints([[1, 2, 3]] * 2))
    with pytest.raises(ValueError, match=message):
        ops.accept_draft(**{**case, **changes})


def test_native_refuses_what_the_door_would_have():
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    draft = ints([[1, 2, 3]] * 2)
    for logits in (torch.zeros(2, 9), torch.zeros(3, 3, 9), torch.zeros(2, 3, 0)):
        with pytest.raises((ValueError, RuntimeError)):
            native.accept_draft(logits, draft, EOS)


def test_results_do_not_depend_on_instructions_or_threads():
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    assert backends.load("native") is native
    torch.manual_seed(0)
    logits, draft = torch.randn(4, 8, 5000), torch.zeros(4, 8, dtype=torch.int32)
    results = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        results.append(native.accept_draft(logits, draft, EOS))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
