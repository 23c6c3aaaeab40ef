"""The parts of `ruled_select` for a step of one beam on a CPU, whose sizes the host may read.

Such a step costs as much as it has operations, and those of NumPy cost less than torch's. The parts do what
those for many beams do, on the candidates that there are, without empty places.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pybeam.contracts import Survivors
from pybeam.study.candidates import INF, Candidates, Given, Listing, numbers

NO_NAN = torch.zeros(1, dtype=torch.bool)


def line(values: np.ndarray) -> Tensor:
    """Values as a line of one beam, [1, N]."""
    return torch.from_numpy(values.reshape(1, -1))


def is_lone(given: Given) -> bool:
    """Whether it is a step of one beam, on a CPU."""
    return given.width.numel() == 1 and given.logits.device.type == "cpu"


def listed(given: Given, siblings: int | None) -> Candidates | None:
    """All candidates [1, E * M] of E entries; None: an entry is no row, or a row is padding, or has a NaN."""
    num_rows, num_entries = given.logits.shape[0], int(given.offset[-1])
    if num_entries != num_rows or int(given.rows.offset[-1]) != num_rows:
        return None
    options = given.options
    most = int(given.width) + len(options.eos_ids) if siblings is None else siblings
    if options.max_candidates is not None:
        most = min(most, int(options.max_candidates))
    found = given.continuations(most)
    if found.has_nan.numpy().any():
        return None
    token, log_prob = found.token.numpy(), found.log_prob.numpy()
    score = line(given.score.numpy()[:num_rows, None].astype(log_prob.dtype) + log_prob)
    keep, is_held = line(token >= 0), line(np.zeros(token.shape, bool))
    is_eos = line(
        np.isin(token, options.eos_ids) if len(options.eos_ids) > 1 else token == options.eos_ids[0]
    )
    row = numbers(num_rows, found.token.device, torch.int64)[None]
    listing = Listing(line(token), line(log_prob), is_eos, is_held, row, token.shape[1])
    return Candidates(score, keep, keep, keep, listing, None)


def ranked(candidates: Candidates, most: int) -> Candidates | None:
    """The best `most` candidates that are kept, best first; None: there is none."""
    score = candidates.score.numpy()[0]
    place = np.flatnonzero(candidates.keep.numpy()[0] & (score > -INF))
    if not place.size:
        return None
    place = place[np.argsort(-score[place], kind="stable")[:most]]
    keep = line(np.ones(place.shape, bool))
    return Candidates(line(score[place]), keep, keep, keep, candidates.listing, line(place))


def packed(candidates: Candidates, capacity: int) -> Survivors | None:
    """The survivors [1, C], of which there are C; None: there are fewer than others want to see."""
    first, other = (
        np.flatnonzero(mask.numpy()) for mask in (candidates.finishes, candidates.goes_on)
    )
    count = np.array([len(first) + len(other), len(first)], np.int32)
    if count[0] < min(2, capacity):
        return None
    both, finished = torch.from_numpy(count).split(1)
    order, listing = np.concatenate((first, other)), candidates.listing
    assert candidates.place is not None
    place = candidates.place.numpy()[0, order]
    return Survivors(
        line(listing.token.numpy()[0, place]),
        line((place // listing.per_row).astype(np.int32)),
        line(candidates.score.numpy()[0, order]),
        line(listing.log_prob.numpy()[0, place]),
        both,
        finished,
        NO_NAN.clone(),
    )
