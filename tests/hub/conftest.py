"""A hub that is served here, and `fetch` with a cache of its own."""

import pytest

import pybeam
from support.hub import NAME, instead_of_the_hub, serving_hub
from support.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model as it is published."""
    directory = tmp_path_factory.mktemp("published")
    save_tiny_model(directory, "marian")
    (directory / "source.spm").write_bytes(b"pieces")
    return directory


@pytest.fixture
def hub():
    with serving_hub() as served, instead_of_the_hub(served):
        yield served


@pytest.fixture
def fetch(tmp_path):
    def call(name=NAME, **options):
        return pybeam.hub.fetch(name, **{"cache_dir": tmp_path / "cache", **options})

    return call
