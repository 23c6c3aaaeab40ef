"""Filters: the bits of all nodes, whether few or many items are allowed or denied."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

import pybeam
from pybeam.catalogue import filters
from support.item_lists import beginnings, random_items

ITEMS = random_items(5, 80, range(2, 7), range(1, 5), repeats=25)


def unpacked(found, num_nodes):
    """The two lists of bools that a filter's words hold."""
    both = found.words.view(2, -1).numpy().view(np.uint8)
    return [
        np.unpackbits(half, bitorder="little")[:num_nodes].astype(bool).tolist() for half in both
    ]


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["allow", "deny", "both"])
def test_bits_are_those_of_the_allowed_items(monkeypatch, kind, share):
    monkeypatch.setattr(filters, "SPARSE_SHARE", share)
    monkeypatch.setattr(filters, "FEW", share)
    catalogue = pybeam.Catalogue.build(ITEMS)
    nodes = beginnings(ITEMS)
    rng = random.Random(share)
    for num in (0, 1, 2, 7, 40, len(ITEMS)):
        allow = rng.sample(range(len(ITEMS)), num) if kind != "deny" else None
        deny = (
            rng.sample(range(len(ITEMS)), num // 2 if allow else num) if kind != "allow" else None
        )
        found = catalogue.filter(allow=allow, deny=deny)
        left = set(range(len(ITEMS)) if allow is None else allow) - set(deny or ())
        sequences = {tuple(ITEMS[i]) for i in left}
        alive, ends = unpacked(found, len(nodes))
        assert ends == [node in sequences for node in nodes]
        below = {one[:n] for one in sequences for n in range(len(one) + 1)}
        assert alive == [node in below for node in nodes]
        assert (found.num_items, found.num_sequences) == (len(left), len(sequences))
        assert set(found.allowed(np.arange(len(ITEMS))).tolist()) == left
        for item in ITEMS[:9]:
            same = tuple(i for i, one in enumerate(ITEMS) if one == item and i in left)
            assert catalogue.items_of(item, found) == same


def test_forms_of_ids():
    catalogue = pybeam.Catalogue.build(ITEMS)
    expected = catalogue.filter(allow=[3, 4, 5]).words
    mask = np.zeros(len(ITEMS), dtype=bool)
    mask[3:6] = True
    forms = [
        slice(3, 6),
        range(3, 6),
        mask,
        mask.tolist(),
        torch.from_numpy(mask),
        torch.tensor([5, 4, 3]),
        iter([3, 4, 5, 4]),
        {3, 4, 5},
    ]
    for form in forms:
        assert torch.equal(catalogue.filter(allow=form).words, expected)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([len(ITEMS)], ValueError, f"from 0 to {len(ITEMS) - 1}, but holds {len(ITEMS)}"),
        ([-1], ValueError, "but holds -1"),
        ([0.5], TypeError, "which are ints"),
        ([True], ValueError, "a bool for each"),
        ([[1]], ValueError, "one dimension"),
        (3, TypeError, "must be ids of items"),
        ("3", TypeError, "must be ids of items"),
    ],
)
def test_ids_that_are_none(ids, error, message):
    catalogue = pybeam.Catalogue.build(ITEMS)
    for name in ("allow", "deny"):
        with pytest.raises(error, match=message) as raised:
            catalogue.filter(**{name: ids})
        assert f"`{name}`" in str(raised.value)


def test_all_words_of_long_trees():
    """A tree of several words, whose last one is not full."""
    items = [list(one) for one in itertools.product(range(3), repeat=4)]
    catalogue = pybeam.Catalogue.build(items)
    for allow in ([80], range(40), range(81)):
        alive, ends = unpacked(catalogue.filter(allow=allow), 1 + catalogue.num_edges)
        assert sum(ends) == len(allow)
        assert alive[0]
