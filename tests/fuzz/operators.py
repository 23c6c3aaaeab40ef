"""Random and spoilt arguments of the operators: an error that names an argument, or the reference's numbers.

New memory is poisoned (`PYBEAM_POISON=1`), pools hold NaN where nobody may read, and tensors are slices of
larger ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pybeam import backends, ops
from pybeam.contracts import Distances, Finishing
from support import isas
from support.asserts import assert_close, assert_same_survivors
from support.attention_cases import random_case as attention_case
from support.attention_cases import random_distances
from support.select_cases import OPTIONS, random_case

SAID = (ValueError, TypeError)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65, 100)
NUMBERS = (0, 1, -1, 2, 3, 127, 128, 2**15, 2**31 - 1, -(2**31))
Arguments = dict[str, Any]


def case(seed: int) -> None:
    """Call one operator on one instruction set, with arguments that fit, or with one that may not."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(chance.choice([1, 1, 2, 3]))
    before = backends.load("native").isa()
    isa = _any_isa(chance)
    name, (make, compare) = chance.choice(list(OPERATORS.items()))
    arguments = make(chance)
    told = f"{name} on {isa}"
    if chance.random() < 0.5:
        told += f", {spoil(arguments, chance)}"
    try:
        call(name, arguments, compare, told)
    except Exception as error:
        raise AssertionError(told) from error
    finally:
        backends.load("native").set_isa(before)


def call(name: str, arguments: Arguments, compare: Callable, told: str) -> None:
    """Both backends raise what users are told, or both give the same."""
    outcomes = []
    for backend in ("native", "reference"):
        given = {key: _own(value) for key, value in arguments.items()}
        try:
            returned = getattr(ops, name)(**given, backend=backend)
        except SAID as error:
            if "`" not in str(error):
                raise AssertionError(f"{told}: {backend} names no argument: {error}") from error
            outcomes.append(None)
            continue
        # what is written in place is the result
        changed = given.get("tensors", given.get("pool"))
        outcomes.append(changed if returned is None else returned)
    actual, expected = outcomes
    if (actual is None) != (expected is None):
        raise AssertionError(f"{told}: only one of native and reference raises")
    if actual is not None:
        compare(actual, expected)


def spoil(arguments: Arguments, chance: random.Random) -> str:
    """Change one argument so that it may not fit; says how."""
    name = chance.choice([key for key, value in arguments.items() if isinstance(value, Tensor)])
    tensor: Tensor = arguments[name]
    how, changed = chance.choice(SPOILERS)
    if changed is _one_number and name.endswith("margin"):
        changed = _one_margin
    arguments[name] = changed(tensor, chance)
    return f"{name} {how}"


def _one_number(tensor: Tensor, chance: random.Random) -> Tensor:
    return _with_number(tensor, chance, [torch.nan, torch.inf, -torch.inf, -0.0, 1e-40])


def _one_margin(tensor: Tensor, chance: random.Random) -> Tensor:
    """As `_one_number`; by a margin below the rounding of scores, kernels may drop or keep the best one."""
    return _with_number(tensor, chance, [torch.nan, torch.inf, -torch.inf, -0.0])


def _with_number(tensor: Tensor, chance: random.Random, odd: list[float]) -> Tensor:
    spoilt = tensor.clone()
    if spoilt.numel():
        at = tuple(chance.randrange(size) for size in spoilt.shape)
        if spoilt.dtype.is_floating_point:
            spoilt[at] = chance.choice(odd)
        elif spoilt.dtype == torch.bool:
            spoilt[at] = not spoilt[at]
        else:
            most = torch.iinfo(spoilt.dtype).max
            spoilt[at] = chance.choice([number for number in NUMBERS if -most <= number <= most])
    return spoilt


def _shorter(tensor: Tensor, chance: random.Random) -> Tensor:
    if not tensor.dim():
        return tensor
    dim = chance.randrange(tensor.dim())
    return tensor.narrow(dim, 0, max(tensor.shape[dim] - 1, 0))


def _apart(tensor: Tensor, chance: random.Random) -> Tensor:
    """The same numbers, every other one in memory."""
    wide = tensor.new_zeros(*tensor.shape, 2)
    wide[..., 0] = tensor
    return wide[..., 0]


def _transposed(tensor: Tensor, chance: random.Random) -> Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor


def _repeated(tensor: Tensor, chance: random.Random) -> Tensor:
    """All lines are one in memory."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() and len(tensor) else tensor


SPOILERS = [
    *3 * [("has another number", _one_number)],
    ("is shorter", _shorter),
    ("is longer", lambda tensor, _: torch.cat((tensor, tensor)) if tensor.dim() else tensor),
    ("is of another dtype", lambda tensor, chance: tensor.to(chance.choice([*DTYPES, torch.int64]))),
    ("has a gap between numbers", _apart),
    ("is transposed in memory", _transposed),
    ("is one line, repeated", _repeated),
    ("has one more dimension", lambda tensor, _: tensor[None]),
    ("is empty", lambda tensor, _: tensor[:0] if tensor.dim() else tensor),
]  # fmt: skip


def _own(value: Any) -> Any:
    """Return a copy in memory of the same layout, for an operator that writes to it."""
    if isinstance(value, list):
        return [_own(one) for one in value]
    if not isinstance(value, Tensor):
        return value
    # an expanded or gapped tensor keeps its strides
    if 0 in value.stride():
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


def _any_isa(chance: random.Random) -> str:
    native = backends.load("native")
    while True:
        isa = chance.choice(isas.OF_FLOATS)
        try:
            native.set_isa(isa)
        except RuntimeError:
            continue
        return isa


def _select(chance: random.Random) -> Arguments:
    num_beams = chance.randint(1, 5)
    sizes = [chance.choice([0, 1, 2, 3, 5, 9]) for _ in range(num_beams)]
    vocab_size = chance.choice([*SIZES, 700, 5000])
    made = random_case(
        chance.randrange(10**9),
        vocab_size,
        sizes,
        [chance.choice([0, 1, 2, 5, 12, 128, 300]) for _ in range(num_beams)],
        chance.choice(DTYPES),
        chance.choice([0.0, 0.3, 3.0, 40.0]),
        chance.choice([0.0, 0.3]),
        [name for name in OPTIONS if chance.random() < 0.4],
    )
    if chance.random() < 0.3:
        made["logits"] = made["logits"].round()
    made["finishing"] = chance.choice(list(Finishing))
    made["normalise"] = chance.random() < 0.8
    return made


def _attention(chance: random.Random) -> Arguments:
    num_sources = chance.randint(1, 4)
    key_heads = chance.choice([1, 2, 3])
    made = attention_case(
        [chance.choice([1, 2, 5, 17, 40]) for _ in range(num_sources)],
        [chance.choice([0, 1, 3, 16, 17, 50]) for _ in range(num_sources)],
        key_heads * chance.choice([1, 2, 4]),
        key_heads,
        chance.choice([1, 5, 8, 16, 20, 32, 64, 72, 128]),
        chance.choice(DTYPES),
        chance.choice([1, 2]),
        chance.random() < 0.6,
        chance.randrange(10**9),
    )
    if chance.random() < 0.4:
        which = " ".join(one for one in ("bias", "window", "cap") if chance.random() < 0.6)
        made["distances"] = random_distances(made, which, seed=chance.randrange(10**9))
        assert isinstance(made["distances"], Distances)
    return made


def _rows(chance: random.Random) -> tuple[int, list[int], torch.dtype]:
    """How many rows a pool has, the shape of one, and its dtype."""
    shape = [chance.choice(SIZES[:9]) for _ in range(chance.randint(0, 2))]
    return (
        chance.choice(SIZES),
        shape,
        chance.choice([*DTYPES, torch.int32, torch.uint8, torch.bool]),
    )


def _pool(num: int, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Rows that lie apart from each other in memory."""
    wide = torch.randint(0, 100, (num, 2, *shape)).to(dtype)
    return wide[:, 1]


def _places(num: int, count: int, chance: random.Random, *, distinct: bool) -> Tensor:
    every = chance.sample(range(num), count) if distinct else chance.choices(range(num), k=count)
    return torch.tensor([-1 if chance.random() < 0.2 else i for i in every], dtype=torch.int32)


def _gather(chance: random.Random) -> Arguments:
    num, shape, dtype = _rows(chance)
    count = chance.randint(0, num)
    return {
        "tensors": [_pool(num, shape, dtype) for _ in range(chance.randint(0, 3))],
        "source": _places(num, count, chance, distinct=False),
        "target": _places(num, count, chance, distinct=True),
    }


def _scatter(chance: random.Random) -> Arguments:
    num, shape, dtype = _rows(chance)
    count = chance.randint(0, num)
    index = _places(num, count, chance, distinct=True)
    return {"pool": _pool(num, shape, dtype), "index": index, "rows": _pool(count, shape, dtype)}


def _backtrace(chance: random.Random) -> Arguments:
    num_slots, num_nodes, count = chance.randint(1, 4), chance.choice(SIZES), chance.choice(SIZES)
    parents = [[chance.randrange(-1, n) for n in range(num_nodes)] for _ in range(num_slots)]
    return {
        "token": torch.randint(0, 2**31 - 1, (num_slots, num_nodes), dtype=torch.int32),
        "parent": torch.tensor(parents, dtype=torch.int32),
        "slot": torch.randint(0, num_slots, (count,), dtype=torch.int32),
        "node": torch.randint(-1, num_nodes, (count,), dtype=torch.int32),
        "capacity": chance.choice([num_nodes, num_nodes, 1, 3]),
    }


def _equal(actual: Any, expected: Any) -> None:
    pairs = (
        [(actual, expected)] if isinstance(actual, Tensor) else zip(actual, expected, strict=True)
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


OPERATORS: dict[str, tuple[Callable[[random.Random], Arguments], Callable]] = {
    "select": (_select, assert_same_survivors),
    "tree_attention": (_attention, assert_close),
    "gather_rows": (_gather, _equal),
    "scatter_rows": (_scatter, _equal),
    "backtrace": (_backtrace, _equal),
}
