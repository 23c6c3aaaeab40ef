"""Which kernel of `select` a step takes on a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from pybeam.backends import gpu_select, triton
from pybeam.contracts import Finishing, SelectOptions

BEAM_OF_5 = SelectOptions(10, (2,), Finishing.REFILL)


@pytest.fixture
def taken(monkeypatch):
    """The kernel that is called for beams with these options, where both are there."""

    def of(options: SelectOptions = BEAM_OF_5, is_cuda: bool = True) -> str:
        logits = SimpleNamespace(is_cuda=is_cuda)
        return gpu_select.select(logits, None, None, None, options)

    cuda = SimpleNamespace(select=lambda *_: "cuda")
    monkeypatch.setattr(gpu_select, "cuda_backend", lambda: cuda)
    monkeypatch.setattr(gpu_select, "triton_select", lambda *_: "triton")
    return of


def test_a_step_takes_the_kernel_that_was_faster(taken):
    assert triton.BEAM_FUNCTIONS.select is gpu_select.select
    assert taken() == "cuda"
    assert taken(is_cuda=False) == "triton"


def test_wide_beams_take_triton(taken):
    for capacity, num_eos, finishing, kernel in [
        (256, 1, Finishing.REFILL, "cuda"),
        (128, 8, Finishing.HELD, "cuda"),
        (129, 1, Finishing.NONE, "triton"),
        (256, 2, Finishing.REFILL, "triton"),
        (258, 1, Finishing.REFILL, "triton"),
    ]:
        assert taken(SelectOptions(capacity, range(num_eos), finishing)) == kernel


def test_triton_where_the_extension_has_no_such_kernel(taken, monkeypatch):
    monkeypatch.setattr(gpu_select, "cuda_backend", lambda: None)
    assert taken() == "triton"


def test_an_extension_without_a_kernel_is_not_called(monkeypatch):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    find = gpu_select.cuda_backend.__wrapped__
    monkeypatch.setattr(native, "lacking", lambda device: ["select"])
    assert find() is None
    monkeypatch.setattr(native, "lacking", lambda device: ["tree_append"])
    assert find() is native
