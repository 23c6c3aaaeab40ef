"""All layers of a decoder in one launch, as one launch for each part."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends.torch_layers import Activation
from pybeam.triton_kernels.persistent import LayersShape, Programs
from support.decoder_layers import LayersCase, layers_case

PRE_NORM = LayersShape(64, 96, 2, Activation.RELU, 1e-5, 0.2, is_pre_norm=True)
POST_NORM = LayersShape(32, 128, 2, Activation.GELU, 1e-5, 0.3, is_pre_norm=False)
# shape, rows, nodes, and source lengths of sources, words of masks, padded rows
CASES = [
    (PRE_NORM, [5], [17], [9], 1, 3),
    (PRE_NORM, [1], [1], [1], 2, 0),
    (PRE_NORM, [9, 2], [70, 3], [3, 67], 2, 1),
    (POST_NORM, [3, 2], [20, 2], [5, 6], 1, 1),
    (POST_NORM, [12], [30], [5], 1, 0),
]


def case_of(shape, rows, nodes, lengths, words, num_padded, device, dtype) -> LayersCase:
    torch.manual_seed(5)
    given = shape, 2, rows, nodes, lengths, dtype, device, words, num_padded
    return layers_case(*given)


def assert_same(case: LayersCase, programs: Programs, tolerance: float) -> None:
    """Rows of sources are the same, and new keys and values go to the same cells."""
    pools = [pool.clone() for pool in case.own_pools]
    expected = case.by_parts()
    written = [pool.clone() for pool in case.own_pools]
    for pool, kept in zip(case.own_pools, pools, strict=True):
        pool.copy_(kept)
    x = case.in_one(programs)
    num = int(case.cells.offset[-1])
    close = dict(rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(x[:num].float(), expected[:num].float(), **close)
    for pool, other in zip(case.own_pools, written, strict=True):
        torch.testing.assert_close(pool.float(), other.float(), **close)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_one_launch_for_each_part(case, device):
    """bfloat16 is not for the interpreter, which multiplies it wrongly."""
    programs = Programs(7, 4, num_nodes=16)
    assert_same(case_of(*case, device, torch.float16), programs, 4e-3)
