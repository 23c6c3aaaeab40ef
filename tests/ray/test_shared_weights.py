"""A shared model is the model, and its weights are the memory that it was given."""

import pytest

pytest.importorskip("ray.data", reason="needs pip install 'pybeam-search[ray]'")

import torch

import pybeam
from pybeam.ray.weights import packed, unpacked
from support.example_lines import LINES
from support.paths import MODEL


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_model_comes_back_without_a_copy(dtype):
    model = pybeam.load_model(MODEL, "cpu", dtype)
    content, storages = packed(model)
    assert len(content) < 10_000 < sum(map(len, storages))
    for storage in storages:
        storage.flags.writeable = False
    again = unpacked(content, storages)
    found = {storage.ctypes.data for storage in storages}
    _, others = packed(again)
    assert {storage.ctypes.data for storage in others} == found
    tokenizer = pybeam.load_tokenizer(MODEL)
    first, second = (
        pybeam.Decoder(one, pybeam.fixed_beam(3)).decode(tokenizer.encode(LINES))
        for one in (model, again)
    )
    assert first == second


def test_views_of_one_storage_stay_views():
    whole = torch.arange(12.0).view(3, 4)
    a, b, c = unpacked(*packed([whole, whole.T, whole[1:, 2]]))
    assert torch.equal(a, whole) and torch.equal(b, whole.T) and torch.equal(c, whole[1:, 2])
    assert b.stride() == whole.T.stride()
    a[1, 2] = 100.0
    assert b[2, 1] == c[0] == 100.0
