"""A run with `--device cuda` is short, ordered, and mixes no devices."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pybeam.models import load_model
from support import on_a_gpu
from support.paths import MODEL


def item(name: str, *fixtures: str) -> SimpleNamespace:
    return SimpleNamespace(path=Path(name), fixturenames=fixtures)


def test_tests_without_a_device_are_left_out_and_kernels_come_first():
    names = "test_session.py", "test_rnn.py", "test_tree_attention.py", "test_select_eos.py"
    items = [item(name, "device", "kernel") for name in names] + [item("test_select.py", "kernel")]
    left_out = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    on_a_gpu.choose(SimpleNamespace(hook=hook), items)
    assert [one.path.name for one in items] == [names[3], names[2], names[0], names[1]]
    assert [one.path.name for one in left_out] == ["test_select.py"]


def test_files_in_which_nothing_takes_a_device_are_not_even_imported(tmp_path):
    without, with_one = tmp_path / "test_a.py", tmp_path / "test_b.py"
    without.write_text("def test_devices(): load(device='cpu')\n")
    with_one.write_text("def test_b(kernel, device): pass\n")
    assert on_a_gpu.needs_no_device(without)
    assert not on_a_gpu.needs_no_device(with_one)
    assert not on_a_gpu.needs_no_device(tmp_path)
    # fixtures that take one stand in the files that use them
    taken = "device", "kernel", "backend"
    for conftest in Path(__file__).parents[1].rglob("*/conftest.py"):
        assert not [word for word in taken if f"{word})" in conftest.read_text()], conftest


def test_a_test_with_a_device_loads_no_model_on_another():
    with on_a_gpu.explicit_devices(item("test_a.py", "device")):
        with pytest.raises(AssertionError, match="a test that takes `device` must give it"):
            load_model(MODEL)
        assert load_model(MODEL, device="cpu").device.type == "cpu"
    with on_a_gpu.explicit_devices(item("test_a.py", "tmp_path")):
        assert load_model(MODEL).device.type == "cpu"


def test_time_ends():
    plenty, none = on_a_gpu.Deadline(5), on_a_gpu.Deadline(0)
    plenty.pytest_runtest_setup(None)
    on_a_gpu.Deadline(None).pytest_runtest_setup(None)
    with pytest.raises(pytest.skip.Exception, match="0 minutes are over"):
        none.pytest_runtest_setup(None)
