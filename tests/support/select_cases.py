"""Make random and awkward arguments of `select`, and the reference's answers."""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pybeam import ops
from pybeam.contracts import Finishing
from support.asserts import assert_same_survivors

INF = math.inf
OPTIONS = ("max_candidates", "margin", "local_margin", "best_finished", "forced", "ban_eos")


def ints(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def offsets(sizes) -> torch.Tensor:
    return ints([0, *accumulate(sizes)])


def random_case(
    seed: int,
    vocab_size: int,
    sizes=(5, 3, 1, 0, 2),
    width=(5, 3, 4, 2, 0),
    dtype=torch.float32,
    spread: float = 3.0,
    held: float = 0.0,
    options=(),
) -> dict:
    """Arguments of `select`; the logits are a slice of a wider tensor."""
    torch.manual_seed(seed)
    num_beams, num_entries = len(sizes), sum(sizes)
    is_ended = torch.rand(num_entries) < held
    num_rows = int((~is_ended).sum())
    wide = torch.full((num_rows, vocab_size + 3), INF, dtype=dtype)
    wide[:, 1 : vocab_size + 1] = spread * torch.randn(num_rows, vocab_size)
    best_finished = torch.where(torch.rand(num_beams) < 0.5, -INF, -5 * torch.rand(num_beams))
    values = dict(
        max_candidates=torch.randint(0, 4, (num_beams,), dtype=torch.int32),
        margin=5 * torch.rand(num_beams),
        local_margin=5 * torch.rand(num_beams),
        best_finished=best_finished,
        forced=torch.randint(-1, 2, (num_beams,), dtype=torch.int32).clamp(max=vocab_size - 1),
        ban_eos=torch.rand(num_beams) < 0.5,
    )
    return dict(
        logits=wide[:, 1 : vocab_size + 1],
        score=-5 * torch.rand(num_entries),
        offset=offsets(sizes),
        width=ints(width),
        is_ended=is_ended if held else None,
        eos_id=vocab_size // 2,
        **{name: values[name] for name in options},
    )


def select(case: dict, kernel: str, device: torch.device, **more) -> ops.Survivors:
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in case.items()}
    survivors = ops.select(**moved, backend=kernel, **more)
    return ops.Survivors(*(field.cpu() for field in survivors))


ORACLES: dict[int, ops.Survivors] = {}


def oracle(case: dict, **more) -> ops.Survivors:
    """Return the reference's answer. It is cached, because the reference is slow and serves every kernel."""
    key = hash(tuple((name, _content(value)) for name, value in sorted((case | more).items())))
    if key not in ORACLES:
        ORACLES[key] = select(case, "reference", torch.device("cpu"), **more)
    return ORACLES[key]


def _content(value) -> str | tuple:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return (
        str(value.dtype),
        tuple(value.shape),
        value.contiguous().view(torch.uint8).numpy().tobytes(),
    )


def check(case: dict, kernel: str, device: torch.device, **more) -> ops.Survivors:
    actual = select(case, kernel, device, **more)
    assert_same_survivors(actual, oracle(case, **more))
    return actual


@st.composite
def cases(draw) -> dict:
    """Small beams full of ties, zeros of both signs, infinities and NaN."""
    value = st.sampled_from([-INF, -3e38, -50.0, -1.0, -1e-40, -0.0, 0.0, 0.5, 2.0, 2.0, 70.0])
    rare = st.sampled_from([0.0] * 30 + [math.nan, INF])
    vocab_size = draw(st.sampled_from([1, 2, 3, 20, 70]))
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    num_beams, num_entries = len(sizes), sum(sizes)
    is_ended = draw(st.lists(st.booleans(), min_size=num_entries, max_size=num_entries))
    num_rows = num_entries - sum(is_ended)
    row = st.lists(value, min_size=vocab_size, max_size=vocab_size)
    logits = torch.tensor([draw(row) for _ in range(num_rows)]).reshape(num_rows, vocab_size)
    if num_rows:
        logits[-1, draw(st.integers(0, vocab_size - 1))] += draw(rare)
    score = draw(
        st.lists(
            st.sampled_from([-INF, -1e30, -2.0, -0.5, 0.0]),
            min_size=num_entries,
            max_size=num_entries,
        )
    )

    def per_beam(values):
        return draw(st.lists(st.sampled_from(values), min_size=num_beams, max_size=num_beams))

    case = dict(
        logits=logits,
        score=torch.tensor(score, dtype=torch.float32),
        offset=offsets(sizes),
        width=ints(per_beam([0, 1, 2, 3, 128])),
        is_ended=torch.tensor(is_ended, dtype=torch.bool),
        eos_id=draw(st.just(-1) | st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=4)),
        finishing=draw(st.sampled_from(list(Finishing))),
        normalise=draw(st.booleans()),
    )
    if draw(st.booleans()):
        case["max_candidates"] = ints(per_beam([0, 1, 2, vocab_size, 1000]))
    if draw(st.booleans()):
        case["margin"] = torch.tensor(per_beam([0.3, -0.5, 1.7, -1.0, 11.0, INF]))
    if draw(st.booleans()):
        case["ban_eos"] = torch.tensor(per_beam([False, True]))
    return case


SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    # an emulator is slow
    suppress_health_check=[HealthCheck.too_slow],
)
