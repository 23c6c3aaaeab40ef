"""Whisper's timestamps in every state of a segment, beside transformers."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from pybeam import backends
from pybeam.speech import whisper_timestamps
from support.asserts import assert_close
from support.processor_rows import START, processed

BACKENDS = [name for name in ("reference", "native") if name in backends.available()]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("most", [None, 0, 3])
@pytest.mark.parametrize("stage", ["logits", "log_probs"])
def test_timestamps_as_transformers(most, stage):
    """Behind prompts that hold timestamps, too, in every state of a segment, at any temperature of logits."""
    import transformers as hf

    begin, eos, size = 12, 1, 40
    settings = hf.GenerationConfig(
        no_timestamps_token_id=begin - 1, eos_token_id=eos, max_initial_timestamp_index=most
    )
    rng = random.Random(7)
    ours = whisper_timestamps(begin - 1, max_initial=most, stage=stage)
    seen = set()
    for seed in range(60):
        forced = rng.choice([0, 1, 5])
        length = rng.choice([0, 1, 2, 3, 6])
        theirs = hf.WhisperTimeStampLogitsProcessor(settings, begin_index=1 + forced)
        histories = [
            [START, *(rng.randrange(2, size) for _ in range(forced)), *stamped(rng, length, begin)]
            for _ in range(8)
        ]
        torch.manual_seed(seed)
        logits = rng.choice([0.3, 1, 4]) * torch.randn(8, size)
        # at times the timestamps are likely, and at times they are not
        logits[:, begin:] += rng.choice([-4, -2, 0])
        logits = logits.log_softmax(1) if stage == "log_probs" else logits
        expected = theirs(torch.tensor(histories), logits.clone())
        backend = rng.choice(BACKENDS)
        found = processed([ours], logits, histories, [forced] * 8, backend=backend)
        assert_close(found, expected)
        seen |= {
            (bool(row[:begin].isfinite().any()), bool(row[begin:].isfinite().any()))
            for row in found
        }
    assert seen >= {(True, True), (True, False), (False, True)}


def stamped(rng: random.Random, length: int, begin: int) -> list[int]:
    """Draw text in which timestamps never decrease, as the rules leave it."""
    tokens: list[int] = []
    last = begin
    for _ in range(length):
        if rng.random() < 0.5:
            last = min(last + rng.randrange(3), 39)
            tokens.append(last)
        else:
            tokens.append(rng.randrange(2, begin - 1))
    return tokens


def test_rows_do_not_depend_on_others_when_timestamps_win(backend):
    """The sums of all timestamps are compared, and their rounding must not follow the batch."""
    torch.manual_seed(0)
    rows = torch.randn(33, 1600)
    histories = [[START, 7, 60]] * 33
    ours = whisper_timestamps(50)
    together = processed([ours], rows, histories, backend=backend)
    for r in (0, 16, 32):
        alone = processed([ours], rows[r : r + 1], histories[:1], backend=backend)
        assert torch.equal(alone[0], together[r])


def test_all_but_one_token_may_follow_given_ones(backend):
    """The rules count from there, and however large the limit of the first timestamp is."""
    ours = whisper_timestamps(4, max_initial=2**31 - 1)
    begun = dataclasses.replace(ours, is_begun=True)
    histories, logits = [[START, 7], [START, 7, 6], [START, 7], [START, 7, 3]], torch.zeros(4, 9)
    requests = [(begun,), (begun,), (ours,), (begun,)]
    found = processed([ours], logits, histories, [1] * 4, requests=requests, backend=backend)
    allowed = [row.isfinite().nonzero()[:, 0].tolist() for row in found]
    assert allowed == [[0, 1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 3], [5, 6, 7, 8], [5, 6, 7, 8]]
