"""The memory of weights is known before they are read."""

from __future__ import annotations

import shutil

import pytest

import pybeam
from pybeam.hub.weights import weight_bytes
from support import marian_folders
from support.paths import MODEL


def test_bytes_follow_from_numbers_and_dtype():
    """The example's file has float16; almost all of its numbers are in matrices."""
    num = pybeam.load_model(MODEL).num_parameters
    assert num == 7_578_624
    assert weight_bytes(MODEL) == weight_bytes(MODEL, "float32") == 2 * num
    whole = {dtype: weight_bytes(MODEL, dtype) / num for dtype in ("bfloat16", "int8", "int4")}
    assert 2.0 <= whole["bfloat16"] < 2.02 and 1.0 < whole["int8"] < 1.02
    assert 0.6 < whole["int4"] < 0.8, "tables of tokens have 8 bits"


@pytest.mark.slow
def test_what_is_quantised_stays_so(tmp_path):
    sizes = {}
    for dtype in ("int8", "int4"):
        pybeam.quantize(MODEL, tmp_path / dtype, dtype=dtype)
        sizes[dtype] = weight_bytes(tmp_path / dtype)
        asked = weight_bytes(MODEL, dtype)
        assert sizes[dtype] == weight_bytes(tmp_path / dtype, dtype) == pytest.approx(asked, 0.02)
    assert sizes["int4"] < 0.8 * sizes["int8"]


def test_folders_of_other_systems(tmp_path):
    arrays, _ = marian_folders.write_folder(tmp_path, 1)
    least = sum(one.nbytes for one in arrays.values())
    assert least <= weight_bytes(tmp_path) < 1.1 * least


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda path: path.unlink(), "is the download complete"),
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "not a sound safetensors file"),
    ],
)
def test_a_file_that_is_not_sound(tmp_path, spoil, problem):
    folder = shutil.copytree(MODEL, tmp_path / "model")
    spoil(folder / "model.safetensors")
    with pytest.raises(ValueError, match=problem):
        weight_bytes(folder)
