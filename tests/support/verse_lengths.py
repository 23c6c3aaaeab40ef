"""Verses without their words: how long their sources are, and how long their translations become.

A tiny model that ends its outputs there takes the steps of a real translator, which a CPU needs minutes for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pybeam import Request
from pybeam.models import load_model
from pybeam.models.base import Model, Session
from pybeam.models.rows import Rows
from pybeam.models.transformer.model import TransformerSession
from support.tiny_models import save_tiny_model

# tokens of 200 verses of the benchmarks' corpus, and of what the example model makes of them with `greedy`:
# every second of the first 240, then of the second 160
# fmt: off
LENGTHS = (
    (30, 35), (34, 34), (25, 26), (11, 15), (39, 43), (18, 16), (18, 17), (33, 31), (29, 34),
    (16, 16), (13, 10), (28, 27), (22, 20), (49, 54), (38, 36), (20, 16), (31, 33), (14, 15),
    (23, 19), (36, 32), (34, 32), (23, 22), (27, 31), (20, 17), (18, 19), (29, 32), (40, 40),
    (37, 34), (22, 23), (18, 19), (24, 20), (49, 42), (17, 15), (26, 22), (27, 27), (14, 12),
    (21, 24), (26, 22), (17, 12), (22, 22), (26, 25), (34, 33), (13, 13), (38, 36), (19, 14),
    (36, 36), (54, 50), (54, 54), (22, 22), (31, 23), (33, 32), (35, 27), (37, 28), (11, 11),
    (20, 15), (63, 59), (25, 25), (47, 48), (32, 22), (22, 22), (14, 13), (31, 34), (45, 45),
    (49, 46), (24, 19), (31, 29), (17, 18), (23, 21), (57, 52), (36, 34), (28, 20), (30, 28),
    (53, 47), (25, 22), (42, 33), (16, 20), (20, 18), (56, 56), (30, 34), (27, 39), (23, 18),
    (32, 25), (47, 47), (16, 15), (26, 21), (46, 48), (38, 33), (26, 27), (30, 23), (24, 25),
    (24, 22), (32, 30), (26, 26), (40, 37), (44, 39), (22, 20), (16, 15), (70, 71), (15, 13),
    (16, 13), (39, 33), (16, 18), (48, 42), (21, 17), (23, 29), (17, 16), (44, 35), (31, 30),
    (35, 38), (34, 28), (12, 12), (42, 46), (19, 13), (62, 63), (34, 36), (89, 94), (21, 21),
    (48, 44), (22, 19), (37, 37), (33, 36), (39, 39), (35, 31), (45, 47), (25, 25), (27, 25),
    (26, 20), (49, 44), (38, 39), (46, 40), (26, 28), (15, 14), (30, 26), (18, 19), (16, 14),
    (42, 41), (26, 26), (19, 15), (21, 17), (26, 23), (30, 35), (15, 15), (40, 30), (25, 27),
    (16, 16), (23, 27), (29, 30), (35, 35), (37, 33), (65, 60), (39, 34), (17, 16), (36, 39),
    (41, 37), (22, 17), (28, 29), (29, 32), (29, 29), (55, 56), (21, 17), (20, 21), (28, 26),
    (29, 27), (39, 37), (34, 29), (17, 17), (22, 21), (21, 20), (32, 35), (49, 41), (16, 16),
    (24, 21), (41, 33), (31, 30), (18, 11), (40, 38), (23, 21), (24, 25), (18, 18), (52, 50),
    (15, 14), (25, 30), (33, 35), (47, 42), (53, 55), (33, 28), (34, 38), (24, 22), (14, 14),
    (30, 30), (43, 34), (43, 41), (34, 34), (16, 18), (21, 20), (37, 35), (29, 22), (23, 19),
    (25, 22), (12, 9),
)
# fmt: on
NUM_FIRST = 120
VOCABULARY = 45


def verses() -> tuple[list[Request], list[Request]]:
    """A stream of requests and a longer one, whose `source_id` says which verse it is."""
    requests = [
        Request([3 + (i + k) % 40 for k in range(size)], source_id=i)
        for i, (size, _) in enumerate(LENGTHS)
    ]
    return requests[NUM_FIRST:], requests[:NUM_FIRST]


def verse_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Make a tiny translator that knows how long a verse becomes, and nothing else.

    How many continuations are good changes from step to step, and hypotheses of a beam end in steps that
    follow one another.
    """
    save_tiny_model(folder, "m2m_100", max_position_embeddings=256, vocab_size=VOCABULARY)
    model = load_model(folder, device="cpu")
    size = torch.tensor([length for _, length in LENGTHS])
    token = torch.arange(1, VOCABULARY + 1)
    encode = TransformerSession.encode
    verse = torch.zeros(1 << 12, dtype=torch.long)  # by slot

    def encode_verses(session, sources, indices, slots) -> None:
        verse[list(slots)] = torch.tensor(indices)
        encode(session, sources, indices, slots)

    def step(session, rows: Rows) -> Tensor:
        own = verse[rows.row_slot.long()]  # [R]
        seed = own * 7919 + rows.position * 104_729 + rows.token % 3 * 1_299_709
        chance = (seed[:, None] * token * token % 10_007 + 1) / 10_008.0  # [R, V]
        sharpness = 1.0 + 3.0 * torch.sin(own + rows.position * 0.37) ** 2
        logits = -sharpness[:, None] * torch.log(-torch.log(chance))
        logits[:, model.eos_id] = 6.0 * (rows.position - size[own]) + 8.0
        return logits

    monkeypatch.setattr(TransformerSession, "encode", encode_verses)
    monkeypatch.setattr(TransformerSession, "step", step)
    monkeypatch.setattr(TransformerSession, "call", Session.call)
    return model
