"""Kernels that begin early wait before they touch memory."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import pybeam.triton_kernels
from pybeam.triton_kernels import dependent_launch
from support.dependent_launches import events_by_kernel

FIRST = {"ptx": "griddepcontrol.launch_dependents", "sass": "PREEXIT"}
READS_WEIGHTS_FIRST = "product_kernel"
FILES = sorted(Path(pybeam.triton_kernels.__path__[0]).rglob("*.py"))


def kernels_of(text: str) -> dict[str, tuple[list[str], str]]:
    """Names of kernels, with their marks and first statements."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            # constants of the compiler come before
            body = [one for one in body if not isinstance(one, ast.AnnAssign)]
            found[node.name] = [ast.unparse(x) for x in node.decorator_list], ast.unparse(body[0])
    return found


def test_every_kernel_waits_first():
    kernels = {name: own for path in FILES for name, own in kernels_of(path.read_text()).items()}
    assert len(kernels) > 20
    for name, ((first, *_), statement) in kernels.items():
        assert first == "begins_early" or first.startswith("one_variant("), name
        assert statement == "await_kernels()" or name == READS_WEIGHTS_FIRST, name


class Kernel:
    def __getitem__(self, grid):
        return lambda *arguments, **options: (grid, arguments, options)


def test_no_kernel_begins_early_unless_it_is_on(monkeypatch):
    monkeypatch.setattr(dependent_launch, "IS_ON", False)
    launched = dependent_launch.begins_early(Kernel())[5,](1, BLOCK=2)
    assert launched == ((5,), (1,), {"BLOCK": 2, "enable_fp_fusion": True})


def test_it_takes_a_gpu_that_can(monkeypatch):
    assert dependent_launch.can_begin_early()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    for capability, can in [((8, 9), False), ((9, 0), True), ((12, 0), True)]:
        dependent_launch._can_begin_early.cache_clear()
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda _, own=capability: own)
        launched = dependent_launch.begins_early(Kernel())[5,](1, BLOCK=2)
        options = {"BLOCK": 2, "enable_fp_fusion": True, "launch_pdl": can}
        assert launched == ((5,), (1,), options)
    dependent_launch._can_begin_early.cache_clear()


@pytest.mark.slow
def test_compiled_kernels_wait_before_they_touch_memory():
    for name, found in events_by_kernel(90).items():
        assert found.pop("is_early"), name
        waits = ["griddepcontrol.launch_dependents", "griddepcontrol.wait"]
        if name.startswith(READS_WEIGHTS_FIRST):
            before = {text: found[text][: found[text].index(wait)] for text, wait in FIRST.items()}
            assert {*before["ptx"]} == {"ld.global"} and {*before["sass"]} == {"LDG"}, name
            found = {text: found[text][len(own) :] for text, own in before.items()}
        assert found["ptx"][:2] == waits, name
        assert found["sass"][:2] == ["PREEXIT", "ACQBULK"], name
        assert not {*waits, "ACQBULK", "PREEXIT"} & {*found["ptx"][2:], *found["sass"][2:]}, name
        # there is something to wait for
        assert len(found["ptx"]) > 2, name


@pytest.mark.slow
def test_older_gpus_do_not_wait():
    for name, found in events_by_kernel(80).items():
        events = {*found["ptx"], *found["sass"]}
        assert not [event for event in events if "griddep" in event or event == "ACQBULK"], name
