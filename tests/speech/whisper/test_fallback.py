"""Temperatures that are tried for a window whose text is not good enough."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from support.tiny_whisper import OPTIONS, sounds, transcribed

LENGTHS = (250, 64, 100, 318)
# every window fails, so that all temperatures are tried
SAMPLED = replace(
    OPTIONS, log_prob_threshold=0.0, no_speech_threshold=None, temperatures=(0.7, 1.2)
)


@pytest.mark.slow
def test_samples_follow_from_the_seed(model, directory):
    recordings = sounds(150, 240, seed=6)
    texts = [
        [t.text for t in transcribed(model, directory, recordings, replace(SAMPLED, seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_temperatures_are_tried_until_one_passes(model, directory):
    """Each window by the rules of faster-whisper, from the numbers of its segments."""
    recordings = sounds(*LENGTHS, seed=6)
    options = replace(OPTIONS, temperatures=(0.0, 0.4, 0.8), no_speech_threshold=None)
    searched = transcribed(model, directory, recordings, replace(options, temperatures=(0.0,)))
    averages = sorted(s.average_log_prob for one in searched for s in one.segments)
    options = replace(options, log_prob_threshold=averages[len(averages) // 2])
    found = transcribed(model, directory, recordings, options)
    segments = [segment for one in found for segment in one.segments]
    assert {segment.temperature for segment in segments} >= {0.0, 0.8}
    for segment in segments:
        if segment.temperature < 0.8:
            assert segment.average_log_prob >= options.log_prob_threshold
    # where the first temperature passes, it is as if there were no others
    for ours, theirs in zip(found, searched, strict=True):
        if ours.segments[0].temperature == 0:
            assert ours.segments[0] == theirs.segments[0]


def test_repetitions_fail(model, directory):
    """Their text compresses well; the ratio is that of the window's text."""
    [features] = sounds(100, seed=6)
    options = replace(OPTIONS, log_prob_threshold=None, no_speech_threshold=None, timestamps=False)
    [plain] = transcribed(model, directory, [features], replace(options, temperatures=(0.0,)))
    [segment] = plain.segments
    data = segment.text.strip().encode()
    assert segment.compression_ratio == len(data) / len(zlib.compress(data))
    below = replace(options, compression_ratio_threshold=segment.compression_ratio - 0.01)
    [found] = transcribed(model, directory, [features], replace(below, temperatures=(0.0, 0.9)))
    assert found.segments[0].temperature == 0.9


def test_the_best_sample_is_taken(model, directory):
    [features] = sounds(100, seed=6)
    options = replace(
        OPTIONS, temperatures=(1.0,), log_prob_threshold=None, no_speech_threshold=None
    )
    gains = []
    for seed in range(4):
        averages = [
            transcribed(model, directory, [features], replace(options, best_of=n, seed=seed))[0]
            .segments[0]
            .average_log_prob
            for n in (1, 6)
        ]
        gains.append(averages[1] - averages[0])
    assert min(gains) >= 0 < max(gains)
