"""Large arrays lie in huge pages, a model's weights side by side, and nothing of them outlives it."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest
import torch

import pybeam
from pybeam.backends import memory
from pybeam.backends.memory import HUGE_PAGE, LEAST, large_array, weight_array, weights_together
from pybeam.backends.packing import Quantised
from pybeam.models.linear import PackedLinear
from support.built_in_models import parts_of
from support.paths import MODEL

needs_huge_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs Linux with huge pages"
)
MEGA = 1 << 20


def mapping_of(array: torch.Tensor) -> dict[str, str]:
    """The system's facts of the memory around the first number of this array."""
    address, found = array.data_ptr(), {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            begin, end = (int(one, 16) for one in name.split("-"))
            if found:
                break
        elif begin <= address < end:
            found[name] = " ".join(words)
    return found


def is_huge(array: torch.Tensor) -> bool:
    """Whether the system was asked for huge pages where this array begins."""
    return "hg" in mapping_of(array)["VmFlags:"].split()


def resident() -> int:
    """The bytes that this process occupies, without those of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def weights_of_a_model() -> list[torch.Tensor]:
    with weights_together():
        return [weight_array((MEGA,), torch.uint8).fill_(i) for i in range(100)]


@needs_huge_pages
def test_weights_lie_side_by_side():
    shapes = [(LEAST,), (300, 999), (LEAST + 1,), (5, 3 * MEGA), (7, LEAST)] * 3
    with weights_together():
        arrays = [weight_array(shape, torch.uint8).fill_(i) for i, shape in enumerate(shapes)]
        small = weight_array((LEAST // 4 - 1,), torch.float32)
    assert all(map(is_huge, arrays))
    begin, end = arrays[0].data_ptr(), arrays[-1].data_ptr()
    for other in (small, weight_array((LEAST,), torch.uint8)):
        assert not begin <= other.data_ptr() <= end
    for i, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        assert array.shape == shape and (array == i).all()
        assert array.data_ptr() % 64 == 0
        # who copies a tensor copies its storage
        assert array.untyped_storage().nbytes() == array.nbytes
    first, second = arrays[:2]
    assert second.data_ptr() == first.data_ptr() + LEAST


@needs_huge_pages
def test_so_do_those_of_a_model():
    model = pybeam.load_model(MODEL, device="cpu", dtype="int8")
    packed = [part._weight for part in parts_of(model) if isinstance(part, PackedLinear)]
    large = [weight for weight in packed if weight.nbytes >= LEAST]
    assert len(large) > 10 and all(is_huge(weight) for weight in large[::4])


@needs_huge_pages
def test_no_memory_outlives_its_arrays():
    before = resident()
    one, other = weights_of_a_model(), weights_of_a_model()
    assert resident() - before > 190 * MEGA
    # were an arena both's, some of it would stay
    del one
    assert 90 * MEGA < resident() - before < 110 * MEGA
    assert all((array == i).all() for i, array in enumerate(other))
    kept = other[0]
    del other
    # what was mapped together is given back together
    assert resident() - before < memory.ARENA + 10 * MEGA
    del kept
    assert resident() - before < 10 * MEGA


@needs_huge_pages
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_processes_share_weights():
    arrays = weights_of_a_model()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            is_same = all(int(array[-1]) == i for i, array in enumerate(arrays))
            code = int(not is_same or mapping_of(arrays[0])["Private_Dirty:"] != "0 kB")
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


class Refusing(mmap.mmap):
    """Memory of a kernel without huge pages."""

    def madvise(self, *_given):
        raise OSError(errno.EINVAL, "Invalid argument")


def no_memory(*_given, **_options):
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize("system", ["another", "without huge pages", "out of memory"])
def test_a_system_without_huge_pages(system, monkeypatch):
    weight = Quantised(torch.randint(-127, 128, (1100, 2000), dtype=torch.int8), torch.rand(1100))
    x = torch.randn(3, 2000)
    expected = PackedLinear(weight, None)(x)
    if system == "another":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    else:
        monkeypatch.setattr(mmap, "mmap", Refusing if system == "without huge pages" else no_memory)
    with weights_together():
        layers = [PackedLinear(weight, None) for _ in range(2)]
    array = large_array((3, HUGE_PAGE), torch.bfloat16)
    assert array.shape == (3, HUGE_PAGE) and array.dtype == torch.bfloat16
    for layer in layers:
        assert layer._weight.data_ptr() % 64 == 0
        assert torch.equal(layer(x), expected)
