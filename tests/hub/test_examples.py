"""Example models are found by name where they are installed, and nothing is asked of the hub."""

import sys

import pytest

import pybeam
from pybeam.hub.examples import NAMES


def test_names_are_those_of_the_package():
    from pybeam_examples import MODELS, RECORDINGS

    assert (*MODELS,) == NAMES
    for name, folder in MODELS.items():
        assert (folder / "model.safetensors").exists()
        assert pybeam.hub.fetch(name, offline=True) == folder
    assert all(path.exists() for path in RECORDINGS)


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    (tmp_path / "bible-es-en").mkdir()
    monkeypatch.chdir(tmp_path)
    assert pybeam.hub.fetch("bible-es-en").resolve() == tmp_path / "bible-es-en"


def test_examples_that_are_not_installed_are_named_with_their_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pybeam_examples", None)
    with pytest.raises(ImportError, match=r"pip install 'pybeam-search\[examples\]'"):
        pybeam.hub.fetch("bible-es-en")
