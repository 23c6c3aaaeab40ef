"""The operators of automata: every backend against plain Python, for catalogues and pools."""

from __future__ import annotations

import math
import random

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.backends.torch_automata import CatalogueArrays
from pybeam.contracts import ColumnRules, Normalise
from support.item_lists import beginnings, random_items

V = 12
ITEMS = random_items(5, 60, range(2, V), range(1, 5), repeats=9)
NODES = beginnings(ITEMS)
CATALOGUE = pybeam.Catalogue.build(ITEMS)
FILTERS = [None, range(0, 40, 3), [7], []]


def arrays(device="cpu") -> CatalogueArrays:
    words = [
        (CATALOGUE.everything if allow is None else CATALOGUE.filter(allow=allow)).words
        for allow in FILTERS
    ]
    tensors = (*CATALOGUE.tensors, torch.stack(words))
    return CatalogueArrays(*(tensor.to(device) for tensor in tensors))


def ints(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def walks(num: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Arguments of `automaton_walk` for so many rows, the nodes that it must return, and its notes."""
    rng = random.Random(1)
    slots, nodes = 3, 200
    parent = ints(rng.randrange(-1, i) if i else -1 for _ in range(slots) for i in range(nodes))
    state = ints(rng.randrange(-1, len(NODES)) for _ in range(slots * nodes))
    parent, state = parent.view(slots, nodes), state.view(slots, nodes)
    # no row stands on the parent of another
    places = [(slot, node) for slot in range(slots) for node in range(nodes // 2, nodes)]
    parent[:, nodes // 2 :] %= nodes // 2
    rows = rng.sample(places, num)
    token, num_generated = rng.choices(range(V + 2), k=num), rng.choices(range(-1, 6), k=num)
    prefix, line = ints([2, 1, 4]), ints([0, 3, 1])
    position = [n + int(prefix[slot]) for n, (slot, _) in zip(num_generated, rows, strict=True)]
    number = {one: n for n, one in enumerate(NODES)}
    expected, noted = [], state.clone()
    for (slot, node), own, n in zip(rows, token, num_generated, strict=True):
        before = int(state[slot, max(int(parent[slot, node]), 0)])
        child = -1 if before < 0 else number.get((*NODES[before], own), -1)
        expected.append(child if n > 0 else 0)
        noted[slot, node] = expected[-1]
    places = (ints(one) for one in zip(*rows, strict=True)) if rows else (ints([]), ints([]))
    given = [parent, state, *places, ints(token), ints(position), line, prefix, prefix + 9]
    return given, ints(expected), noted


@pytest.mark.parametrize("num", [0, 250])
def test_walk(kernel, num):
    check_walk(kernel, num)


def test_walk_of_the_reference():
    check_walk("reference", 250)


def check_walk(name, num):
    given, expected, noted = walks(num)
    found = backends.load(name).automaton_walk(arrays(), *given)
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1], given[6][given[2].long()])
    assert torch.equal(given[1], noted)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, torch.zeros(3, 9, dtype=torch.int32), "`parent` must be"),
        (0, torch.full((3, 200), 200, dtype=torch.int32), "`parent` must hold nodes"),
        (1, torch.zeros(600, dtype=torch.int32), "`state` must have 2"),
        (2, ints([0, 3]), "`row_slot` and `node` must be those"),
        (2, ints([-1, 0]), "`row_slot` and `node` must be those"),
        (3, ints([0, 200]), "`row_slot` and `node` must be those"),
        (3, ints([0, -1]), "`row_slot` and `node` must be those"),
        (4, ints([0]), "`token` must be"),
        (5, ints([0]).long(), "`position` must be"),
        (6, ints([0]), "`line` must be"),
        (8, ints([0, 0]), "`max_length` must be"),
    ],
)
def test_wrong_walks(index, value, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    given, *_ = walks(2)
    given[index] = value
    with pytest.raises((ValueError, RuntimeError), match=message):
        native.automaton_walk(arrays(), *given)


def expected(logits, node, line, rules, num_columns):
    """The columns of one row in plain Python."""
    row, out = logits.tolist(), {}
    allowed = set(range(len(ITEMS)) if FILTERS[line] is None else FILTERS[line])
    sequences = {tuple(ITEMS[i]) for i in allowed}
    columns = [-math.inf] * (num_columns + 1)
    tokens = []
    if node >= 0:
        here = NODES[node]
        below = {one[: len(here) + 1] for one in sequences if one[: len(here)] == here}
        tokens = sorted(n[-1] for n in NODES if len(n) == len(here) + 1 and n[:-1] == here)
        out = {token: row[token] for token in tokens if (*here, token) in below}
        if here in sequences:
            columns[0 if rules.eos_first else num_columns] = row[rules.eos_id]
    for i, token in enumerate(tokens):
        columns[i + rules.eos_first] = out.get(token, -math.inf)
    summed = {
        Normalise.NOTHING: [0.0],
        Normalise.VOCABULARY: row,
        Normalise.COLUMNS: columns,
    }[rules.normalise]
    total = math.fsum(math.exp(x) for x in summed)
    return [x - math.log(total) if total else x for x in columns]


@pytest.mark.thinned()
@pytest.mark.parametrize("normalise", Normalise)
@pytest.mark.parametrize("eos_id", [0, 1, V])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_columns(kernel, normalise, eos_id, dtype):
    check_columns(kernel, normalise, eos_id, dtype)


@pytest.mark.parametrize("normalise", Normalise)
@pytest.mark.parametrize("eos_id", [0, 1, V])
def test_columns_of_the_reference(normalise, eos_id):
    check_columns("reference", normalise, eos_id, torch.float32)


def check_columns(name, normalise, eos_id, dtype):
    torch.manual_seed(eos_id)
    rng = random.Random(eos_id)
    num = 40
    node = [-1, 0, len(NODES) - 1, *(rng.randrange(len(NODES)) for _ in range(num - 3))]
    line = [rng.randrange(len(FILTERS)) for _ in range(num)]
    wide = (3 * torch.randn(num, V + 6)).to(dtype)
    wide[5, 4] = -torch.inf
    logits = wide[:, 2 : V + 3]
    fewest = max(
        1, *(len([n for n in NODES if n and n[:-1] == NODES[one]]) for one in node if one >= 0)
    )
    for columns in (0, fewest, fewest + 5):
        rules = ColumnRules(eos_id, eos_id < 2, columns, normalise)
        backend = backends.load(name)
        found = backend.automaton_columns(arrays(), logits, ints(node), ints(line), rules)
        width = found.shape[1] - 1
        assert width == columns or (columns == 0 and width >= fewest)
        assert found.dtype == torch.float32
        want = [expected(*one, rules, width) for one in zip(logits, node, line, strict=True)]
        torch.testing.assert_close(found, torch.tensor(want), rtol=1e-5, atol=1e-5)
        # a row has its own bits, whoever stands beside it and however many columns there are
        alone = backend.automaton_columns(
            arrays(), logits[7:8], ints(node[7:8]), ints(line[7:8]), rules
        )
        some = min(alone.shape[1], found.shape[1]) - 1
        own, among = (x[1:] if rules.eos_first else x[:-1] for x in (alone[0], found[7]))
        assert torch.equal(own[:some], among[:some])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_sound_is_nan(kernel, value):
    """Where the model's numbers are summed, wherever the strange one stands."""
    logits = torch.zeros(2, V)
    logits[0, 0] = value
    node, line = ints([0, 0]), ints([0, 0])
    for rules in (
        ColumnRules(1, True, 0, Normalise.VOCABULARY),
        ColumnRules(0, True, 0, Normalise.VOCABULARY),
    ):
        found = backends.load(kernel).automaton_columns(arrays(), logits, node, line, rules)
        assert found[0].isnan().all() and not found[1].isnan().any()


def test_float64_is_for_the_reference():
    rules = ColumnRules(1, True, 0, Normalise.VOCABULARY)
    rows = ints([0]), ints([0])
    logits = torch.randn(1, V, dtype=torch.float64)
    found = backends.load("reference").automaton_columns(arrays(), logits, *rows, rules)
    assert found.dtype == torch.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(logits=torch.zeros(2, V).double()), "`logits` must be float32"),
        (dict(logits=torch.zeros(V)), "`logits` must have 2"),
        (dict(node=ints([0])), "`node` must be"),
        (dict(line=ints([0, 4])), "`line`"),
        (dict(line=ints([0, -1])), "`line`"),
        (dict(node=ints([0, len(NODES)])), "`node`"),
        (dict(logits=torch.zeros(2, 3)), "`token` must hold columns"),
        (dict(rules=ColumnRules(V, True, 0, 1)), "`eos_id` must be 0 to"),
        (dict(rules=ColumnRules(1, True, 2, 1)), "`num_columns` must be at least"),
        (dict(rules=ColumnRules(1, True, 0, 3)), "`normalise`"),
    ],
)
def test_wrong_arguments(changes, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    given = dict(
        logits=torch.zeros(2, V),
        node=ints([0, 0]),
        line=ints([0, 0]),
        rules=ColumnRules(1, True, 0, 1),
    )
    with pytest.raises((ValueError, RuntimeError), match=message):
        native.automaton_columns(arrays(), *(given | changes).values())


@pytest.mark.parametrize(
    ("index", "array", "message"),
    [
        (0, torch.zeros(3, dtype=torch.int64), "`token` must be int32"),
        (1, ints([0]), "`first` must have at least 2"),
        (1, ints([0, 10**6]), "`first` must ascend"),
        (2, torch.zeros(1, 2, dtype=torch.int32), "`words` must have a bit"),
    ],
)
def test_wrong_arrays(index, array, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    wrong = list(arrays())
    wrong[index] = array
    rules = ColumnRules(1, True, 0, 1)
    with pytest.raises((ValueError, RuntimeError), match=message):
        native.automaton_columns(wrong, torch.zeros(1, V), ints([0]), ints([0]), rules)
