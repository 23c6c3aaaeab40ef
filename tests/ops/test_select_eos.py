"""`select` where several tokens end a hypothesis."""

from __future__ import annotations

import pytest
import torch

from pybeam.contracts import Finishing
from support.select_cases import OPTIONS, check, random_case


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("finishing", list(Finishing))
@pytest.mark.parametrize("eos_id", [[3, 0], [8, 1, 4, 2], [5, 40, 1]], ids=len)
@pytest.mark.parametrize("held", [0.0, 0.3])
def test_several_eos(kernel, device, finishing, eos_id, held):
    """Every one of them ends a hypothesis, and none is a candidate where EOS is banned."""
    for seed in range(3):
        case = random_case(seed, 9, (5, 3, 1, 0, 6), (5, 3, 4, 2, 6), held=held, options=OPTIONS)
        case["eos_id"] = eos_id
        case["logits"][:, eos_id[0]] += 3.0
        case["score"].clamp_(min=-0.5)
        survivors = check(case, kernel, device, finishing=finishing)
        ended = [
            set(line[:n].tolist())
            for line, n in zip(survivors.token, survivors.num_finished, strict=True)
        ]
        assert set().union(*ended) <= set(eos_id)


def test_several_eos_leave_room_for_what_goes_on(kernel, device):
    """Three EOS at the head of every row: all K that go on are found behind them."""
    case = random_case(11, 700, [4, 2], [4, 3])
    case["eos_id"] = [6, 699, 300]
    case["logits"][:, case["eos_id"]] = 50.0
    survivors = check(case, kernel, device, finishing=Finishing.REFILL)
    assert survivors.num_finished.tolist() == [4, 3]
    assert survivors.count.tolist() == [8, 6]
    case["ban_eos"] = torch.tensor([True, False])
    survivors = check(case, kernel, device, finishing=Finishing.REFILL)
    assert survivors.num_finished.tolist() == [0, 3]
    assert survivors.count.tolist() == [4, 6]
