"""Compare the arrays of states, without the places that nobody may read."""

from __future__ import annotations

import torch

from pybeam.state.beam_state import BeamState

from .asserts import tree_in_use, with_own_pages

START, EOS, VOCAB = 1, 2, 9
CPU = torch.device("cpu")


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def bits(values: torch.Tensor) -> list:
    """Turn arrays into lists. Floats become their bits, so that equal lists are equal to the bit."""
    return (values.view(torch.int32) if values.dtype == torch.float32 else values).tolist()


def in_use(state: BeamState) -> dict[str, list]:
    """Return the arrays of a state without the places that nobody may read."""
    beams = state.beams
    held = {name: bits(getattr(beams, name)) for name in ("ints", "floats", "prefix", "is_alive")}
    entries = {
        "row_node": state.tree.row_node,
        "row_cell": state.tree.row_cell,
        "score": beams.score,
    }
    for name, array in entries.items():
        held[name] = [bits(array[p, :n]) for p, n in enumerate(beams.num_entries.tolist())]
    held["row_cell"] = [with_own_pages(state.tree, cells) for cells in held["row_cell"]]
    is_entry = torch.arange(beams.score.shape[1]) < beams.num_entries[:, None]
    for name in ("ended_length", "eos_log_prob", "eos_token"):
        held[name] = bits(getattr(beams, name)[is_entry & ~beams.is_alive])
    for name in ("finished_ints", "finished_floats"):
        array = getattr(beams, name)
        held[name] = [bits(array[p, :n]) for p, n in enumerate(beams.num_finished.tolist())]
    return held | tree_in_use(state.tree)
