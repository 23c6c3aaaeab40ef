"""Matrices that stay in their file are mapped one at a time, and no further than they go."""

import mmap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pybeam.models.checkpoint import Checkpoint
from pybeam.models.weights import WeightReader

resource = pytest.importorskip("resource")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_a_file_is_mapped_once_at_a_time_and_no_further_than_a_matrix(tmp_path):
    matrices = {f"{i}.weight": torch.full((64, 64), float(i)) for i in range(96)}
    path = tmp_path / "model.safetensors"
    save_file(matrices, path)
    reader = WeightReader(Checkpoint(tmp_path), torch.device("cpu"), None, "0.weight")
    if not reader.is_packed:
        pytest.skip("without the C++ extension nothing is mapped")
    taken = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
    # room for fewer descriptors than there are matrices; threads of other tests may take some
    bound = [i for i in range(len(taken) + 64) if i not in taken][63]
    given = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (bound, given[1]))
    try:
        joined = reader.matrix([*matrices], 64, 64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, given)
    assert torch.equal(joined, torch.cat([*matrices.values()]))
    held = reader.matrix(["7.weight"], 64, 64)
    assert torch.equal(held, matrices["7.weight"])
    maps = [one.split() for one in Path("/proc/self/maps").read_text().splitlines()]
    [place] = [one[0] for one in maps if one[-1] == str(path)]
    begin, end = (int(one, 16) for one in place.split("-"))
    assert end - begin <= held.nbytes + 2 * mmap.PAGESIZE
