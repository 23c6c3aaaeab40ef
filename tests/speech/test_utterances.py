"""Utterances of a stream are the stretches of the whole sound, and come in time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pybeam.speech import SpeechRules, SpeechStart, Utterance, UtteranceFinder
from pybeam.speech.utterances import LIVE_RULES
from pybeam.speech.voice_activity import FRAME, RATE
from support.spoken import chunks_of, frank_activity, random_probabilities, sound_of

RULES = [
    LIVE_RULES,
    SpeechRules(min_silence=0.16, max_speech=3.0),
    SpeechRules(min_silence=0.16, max_speech=1.0, padding=0.05, min_speech=0.25),
    SpeechRules(0.7, 0.2, padding=0.0, min_silence=0.0, max_speech=9.0),
    SpeechRules(0.1, max_speech=2.0, min_silence=1.0, min_speech=0.5, padding=0.6),
]


def delay(rules: SpeechRules) -> float:
    """The `d` of `UtteranceFinder`, and the frames that are judged together."""
    own = max(rules.min_silence, 2 * rules.padding)
    if rules.min_speech:
        own = rules.min_silence + 2 * rules.padding + rules.min_speech
    return own + 5 * FRAME / RATE


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_utterances_are_the_stretches_of_the_whole_sound(rules, monkeypatch):
    """Whatever the chunks. Each begins with its news, comes in its time, and no other sound is held."""
    activity, rng, num_found = frank_activity(monkeypatch, rules), np.random.default_rng(5), 0
    for seed in range(12):
        whole = sound_of(random_probabilities(rng), seed)
        finder, found, taken = UtteranceFinder(activity), [], 0
        for chunk in chunks_of(whole, rng):
            taken += len(chunk)
            for one in finder.more(chunk):
                found.append(one)
                if isinstance(one, Utterance):
                    # a chunk may hold the end of an utterance and much more
                    late = (taken - len(chunk)) / RATE
                    assert late <= one.start + rules.max_speech + delay(rules)
            held = sum(map(len, finder._held)) / RATE
            assert held <= rules.max_speech + delay(rules) + rules.padding
        found += finder.end()
        starts, ends = found[::2], found[1::2]
        expected = activity(whole)
        assert starts == [SpeechStart(one.start) for one in expected]
        assert [(one.start, one.end) for one in ends] == [(one.start, one.end) for one in expected]
        for one in ends:
            first, last = round(one.start * RATE), round(one.end * RATE)
            assert torch.equal(one.samples, whole[first:last])
        num_found += len(ends)
        assert finder.seconds == len(whole) / RATE
    assert num_found > 12


def test_somebody_who_begins_is_heard_at_once(monkeypatch):
    finder = UtteranceFinder(frank_activity(monkeypatch, LIVE_RULES))
    whole = sound_of(np.repeat([0.1, 0.9, 0.1], [40, 20, 41]))
    silence, speech, others = whole.split([40 * FRAME, 20 * FRAME, len(whole) - 60 * FRAME])
    assert list(finder.more(silence)) == []
    assert list(finder.more(speech)) == [SpeechStart(40 * FRAME / RATE - 0.25)]
    found = [(i, one) for i, piece in enumerate(others.split(FRAME)) for one in finder.more(piece)]
    [(num, utterance)] = found
    assert (utterance.start, utterance.end) == (40 * FRAME / RATE - 0.25, 60 * FRAME / RATE + 0.25)
    assert 0.5 <= (num + 1) * FRAME / RATE <= delay(LIVE_RULES)
    assert list(finder.end()) == []


def test_silence_is_not_held(monkeypatch):
    finder = UtteranceFinder(frank_activity(monkeypatch, LIVE_RULES))
    for _ in range(20):
        assert list(finder.more(torch.zeros(RATE))) == []
        assert sum(map(len, finder._held)) < RATE
    assert list(finder.end()) == [] and finder.seconds == 20


def test_a_stream_needs_a_longest_utterance(monkeypatch):
    with pytest.raises(ValueError, match="`max_speech` must be finite for a stream"):
        UtteranceFinder(frank_activity(monkeypatch, SpeechRules()))
