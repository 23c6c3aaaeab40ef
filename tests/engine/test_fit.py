"""Whether what a decoder is given is a model, and if not, how it becomes one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import pybeam
from support.search_models import random_model


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        # as a network of transformers has them
        (
            SimpleNamespace(generate=print, config=None),
            "; wrap a network of transformers: pybeam.models.huggingface.wrap(network)",
        ),
        (SimpleNamespace(generate=print), ""),
        (SimpleNamespace(config=None), ""),
        # as pybeam.load has them
        (SimpleNamespace(model=random_model(5)), "; give its attribute `model`"),
        ("here", "; load the folder: pybeam.load_model('here')"),
        (Path("here"), "; load the folder: pybeam.load_model('here')"),
    ],
)
def test_what_is_no_model_names_the_way(model, remedy):
    with pytest.raises(TypeError, match="`model` must be a pybeam model") as error:
        pybeam.Decoder(model, pybeam.greedy())
    assert str(error.value).endswith(f"but is {type(model)}{remedy}")
