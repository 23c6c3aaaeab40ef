"""Files of catalogues: mapped into memory, and refused if a search could not trust them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pybeam
from support.item_lists import random_items

ITEMS = random_items(5, 80, range(2, 7), range(1, 5), repeats=25)
METADATA = {"format": "pybeam.catalogue", "version": "1"}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "catalogue.safetensors"
    pybeam.Catalogue.build(ITEMS).save(path)
    return path


def test_a_catalogue_is_the_same_from_a_file(path):
    built, loaded = pybeam.Catalogue.build(ITEMS), pybeam.Catalogue.load(path)
    assert repr(loaded) == repr(built)
    for ours, theirs in zip(loaded.tensors, built.tensors, strict=True):
        assert ours.tolist() == theirs.tolist()
    for item in ITEMS:
        assert loaded.items_of(item) == built.items_of(item)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_catalogue_goes_to_other_processes(path):
    loaded = pickle.loads(pickle.dumps(pybeam.Catalogue.load(path)))
    built = pickle.loads(pickle.dumps(pybeam.Catalogue.build(ITEMS)))
    assert loaded.items_of(ITEMS[3]) == built.items_of(ITEMS[3])
    assert str(path).encode() in pickle.dumps(loaded)


def test_memory_is_eight_bytes_for_an_edge_beside_items():
    rng = np.random.default_rng(0)
    catalogue = pybeam.Catalogue.build(rng.integers(0, 64, (20_000, 4)))
    assert catalogue.num_bytes < 8 * catalogue.num_edges + 12 * len(catalogue) + 100


def spoilt(path, name, change):
    arrays = load_file(path)
    array = arrays[name].copy()
    arrays[name] = change(array)
    save_file(arrays, path, metadata=METADATA)


def replaced(index, value):
    def change(array):
        array[index] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("token", replaced(0, -1), "a token is negative"),
        ("token", replaced(1, 2), "do not ascend"),
        ("token", lambda a: a[:-1], "do not cover"),
        ("token", lambda a: a.astype(np.int64), "must be .* int32"),
        ("first", replaced(0, 1), "`first` does not ascend"),
        ("first", replaced(-1, 10**6), "`first` does not ascend"),
        ("first", replaced(2, 10**6), "`first` does not ascend"),
        ("first", lambda a: a[:-1], "differ"),
        ("end", replaced(0, 0), "`end`"),
        ("end", replaced(-1, 10**6), "`end`"),
        ("end", lambda a: a[:-1], "no item"),
        ("start", replaced(0, 1), "depths"),
        ("start", replaced(2, 10**6), "depths|differ"),
        ("items", replaced(0, -1), "`items`"),
        ("items", replaced(0, 7), "`items`"),
        ("items", lambda a: a[:-1], "`first_item`|`items`"),
        ("first_item", replaced(1, 0), "no item"),
    ],
)
def test_a_file_that_is_not_sound_is_refused(path, name, change, message):
    spoilt(path, name, change)
    with pytest.raises(ValueError, match=message):
        pybeam.Catalogue.load(path)


def test_other_files_are_refused(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        pybeam.Catalogue.load(tmp_path / "none")
    arrays = load_file(path)
    save_file(arrays, path)
    with pytest.raises(ValueError, match="is not a catalogue"):
        pybeam.Catalogue.load(path)
    save_file(arrays, path, metadata=METADATA | {"version": "2"})
    with pytest.raises(ValueError, match="version 1, but is of 2"):
        pybeam.Catalogue.load(path)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="sound safetensors"):
        pybeam.Catalogue.load(path)
