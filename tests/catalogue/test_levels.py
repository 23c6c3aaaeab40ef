"""The tree of a catalogue: all beginnings once, level by level, whatever the form of the items."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

import pybeam
from pybeam.catalogue.levels import build, lexical_order
from pybeam.catalogue.ragged import ragged
from support.item_lists import beginnings, random_items

CASES = {
    "one": [[5]],
    "prefixes": [[2, 3], [2], [2, 3, 4], [4], [2, 3]],
    "short": random_items(1, 60, range(2, 6), range(1, 5), repeats=20),
    "long": random_items(2, 40, range(2, 4), range(1, 70), repeats=5),
    "large ids": random_items(3, 50, range(2**31 - 5, 2**31 - 1), range(1, 5)),
    "one length": random_items(4, 100, range(9), range(3, 4), repeats=30),
}


@pytest.mark.parametrize("name", CASES)
def test_the_tree_has_every_beginning_once(name):
    items = CASES[name]
    levels, found, first_item = build(*ragged(items))
    nodes = beginnings(items)
    assert levels.num_nodes == len(nodes)
    number = {one: n for n, one in enumerate(nodes)}
    for n, one in enumerate(nodes):
        begin, end = levels.edges(n)
        children = [other for other in nodes if len(other) == len(one) + 1 and other[:-1] == one]
        assert [number[child] for child in children] == list(range(begin + 1, end + 1))
        assert levels.token[begin:end].tolist() == [child[-1] for child in children]
    assert levels.start.tolist() == [
        *(number[next(one for one in nodes if len(one) == n)] for n in range(len(nodes[-1]) + 1)),
        len(nodes),
    ]
    different = sorted({tuple(item) for item in items}, key=lambda one: (len(one), one))
    assert levels.end.tolist() == [number[one] for one in different]
    for q, one in enumerate(different):
        own = found[first_item[q] : first_item[q + 1]].tolist()
        assert own == [i for i, item in enumerate(items) if tuple(item) == one]
    if len(nodes) > 1:
        parents = levels.parents(np.arange(1, len(nodes)))
        assert parents.tolist() == [number[one[:-1]] for one in nodes[1:]]


@pytest.mark.parametrize("name", CASES)
def test_lexical_order_is_stable(name):
    items = CASES[name]
    expected = sorted(range(len(items)), key=lambda i: items[i])
    assert lexical_order(*ragged(items)).tolist() == expected


def padded(items, fill):
    longest = max(map(len, items))
    return np.array([item + [fill] * (longest - len(item)) for item in items])


@pytest.mark.slow
def test_all_forms_of_items_are_one():
    pa = pytest.importorskip("pyarrow")
    items = CASES["short"]
    flat = np.array(list(itertools.chain(*items)))
    offsets = np.cumsum([0, *map(len, items)])
    lists = pa.array([[9], *items, [7]])
    forms = [
        padded(items, -1),
        padded(items, -100).astype(np.int32),
        torch.from_numpy(padded(items, -1)),
        (flat, offsets),
        (torch.from_numpy(flat), torch.from_numpy(offsets).int()),
        lists[1:-1],
        pa.chunked_array([items[:7], items[7:]]),
        lists.cast(pa.large_list(pa.int16()))[1:-1],
        iter(items),
        [np.array(item) for item in items],
        [tuple(item) for item in items],
    ]
    expected = ragged(items)
    for form in forms:
        found = ragged(form)
        assert found.values.dtype == np.int32
        assert found.values.tolist() == expected.values.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()
    zeros = ragged(padded(items, 0), padding=0)
    assert zeros.values.tolist() == expected.values.tolist()
    fixed = pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    assert ragged(fixed).offsets.tolist() == [0, 2, 4]
    assert ragged(fixed[1:]).values.tolist() == [3, 4]


def test_an_iterable_is_read_in_chunks(monkeypatch):
    monkeypatch.setattr("pybeam.catalogue.ragged.CHUNK", 7)
    told = []
    items = CASES["short"]
    found = ragged(iter(items), report=lambda *what: told.append(what))
    assert found.values.tolist() == list(itertools.chain(*items))
    assert told[0] == ("read", 7, 0) and told[-1] == ("read", len(items), 0)


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    items = CASES["short"]
    path = tmp_path / "items.parquet"
    parquet.write_table(
        pa.table({"ids": items, "name": ["x"] * len(items)}), path, row_group_size=9
    )
    catalogue = pybeam.Catalogue.from_parquet(path, "ids")
    assert [catalogue.items_of(item)[0] for item in items] == [items.index(one) for one in items]
    with pytest.raises(ValueError, match="`column` must be one of"):
        pybeam.Catalogue.from_parquet(path, "id")
    with pytest.raises(TypeError, match="array of lists"):
        pybeam.Catalogue.from_parquet(path, "name")


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        ([], ValueError, "at least one"),
        ([[1], []], ValueError, "number 1 is"),
        ([[1, -2]], ValueError, "from 0 to"),
        ([[2**31]], ValueError, "from 0 to"),
        ([[1.5]], TypeError, "which are ints"),
        ([3], TypeError, "lists of token ids"),
        ("text", TypeError, "must be a table"),
        (["text"], TypeError, "which are ints"),
        (7, TypeError, "must be a table"),
        (np.zeros((2, 2)), TypeError, "which are integers"),
        (np.zeros(2, dtype=int), ValueError, r"a table \[n, L\]"),
        (np.array([[1, -1, 2]]), ValueError, "padding on the right"),
        (np.array([[1, 2], [-1, -1]]), ValueError, "number 1 is"),
        (np.zeros((0, 3), dtype=int), ValueError, "at least one"),
        ((np.arange(3), np.array([0, 2])), ValueError, "`offsets` must ascend"),
        ((np.arange(3), np.array([0, 2, 1, 3])), ValueError, "`offsets` must ascend"),
    ],
)
def test_items_that_are_none(items, error, message):
    with pytest.raises(error, match=message):
        pybeam.Catalogue.build(items)


def test_too_many_edges(monkeypatch):
    monkeypatch.setattr("pybeam.catalogue.levels.MAX_EDGES", 5)
    with pytest.raises(ValueError, match="different beginnings"):
        pybeam.Catalogue.build([[1, 2, 3], [4, 5, 6]])


def test_progress():
    told = []
    pybeam.Catalogue.build(CASES["long"], progress=lambda *what: told.append(what))
    assert {what for what, *_ in told} == {"read", "sort", "levels"}
    longest = max(map(len, CASES["long"]))
    assert told[-1] == ("levels", longest, longest)


def test_texts():
    class Letters:
        def encode_target(self, text):
            return [ord(letter) for letter in text]

    texts = ["ab", "b", "abc", "b"]
    catalogue = pybeam.Catalogue.from_texts(iter(texts), Letters())
    assert catalogue.items_of([98]) == (1, 3)
    assert catalogue.items_of([97]) == catalogue.items_of([]) == catalogue.items_of([98, 98]) == ()
    assert (catalogue.shortest, catalogue.longest, len(catalogue)) == (1, 3, 4)
    with pytest.raises(ValueError, match="number 1 is ''"):
        pybeam.Catalogue.from_texts(["a", ""], Letters())
    with pytest.raises(TypeError, match="iterable of texts"):
        pybeam.Catalogue.from_texts("ab", Letters())


def test_random_tables_are_found_again():
    rng = random.Random(3)
    for _ in range(20):
        items = random_items(rng.random(), 30, range(4), range(1, 4), repeats=9)
        catalogue = pybeam.Catalogue.build(items)
        for item in items:
            assert catalogue.items_of(item) == tuple(i for i, o in enumerate(items) if o == item)


def test_items_are_no_arrays():
    with pytest.raises(TypeError, match=r"`Catalogue.build\(items\)` makes a catalogue of items"):
        pybeam.Catalogue([[1, 2], [3]])
