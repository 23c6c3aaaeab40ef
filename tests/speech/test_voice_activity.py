"""Stretches of speech beside faster-whisper's rules, and Silero's model on real sound."""

import importlib.util
import itertools
import math
import sys

import numpy as np
import pytest
import torch

from pybeam.speech import SoundFile, SpeechRules, VoiceActivity, read_sound
from pybeam.speech.transcript import Stretch
from pybeam.speech.voice_activity import FRAME, RATE, stretches
from support.paths import ROOT
from support.speech_models import write_wav
from support.spoken import random_probabilities

HAS_MODEL = importlib.util.find_spec("silero_vad") is not None
needs_model = pytest.mark.skipif(not HAS_MODEL, reason="needs the package silero-vad")


def expected_stretches(probabilities, num_samples: int, rules: SpeechRules) -> list[list[int]]:
    """`get_speech_timestamps` of faster-whisper 1.2, without its model, in one piece."""
    lowest = rules.silence_threshold or max(rules.threshold - 0.15, 0.01)
    pad = RATE * rules.padding
    longest = RATE * rules.max_speech - FRAME - 2 * pad
    found, start, pause, cut, resumed = [], None, 0, 0, 0
    for i, probability in enumerate(probabilities):
        at = FRAME * i
        if probability >= rules.threshold and pause:
            pause = 0
            resumed = at if resumed < cut else resumed
        if probability >= rules.threshold and start is None:
            start = at
            continue
        if start is not None and at - start > longest:
            if cut:
                found.append([start, cut])
                start = None if resumed < cut else resumed
                pause = cut = resumed = 0
            else:
                found.append([start, at])
                start, pause, cut, resumed = None, 0, 0, 0
                continue
        if probability < lowest and start is not None:
            pause = pause or at
            if at - pause > 1568:
                cut = pause
            if at - pause >= RATE * rules.min_silence:
                if pause - start > RATE * rules.min_speech:
                    found.append([start, pause])
                start, pause, cut, resumed = None, 0, 0, 0
    if start is not None and num_samples - start > RATE * rules.min_speech:
        found.append([start, num_samples])
    for i, one in enumerate(found):
        if i == 0:
            one[0] = int(max(0, one[0] - pad))
        if i == len(found) - 1:
            one[1] = int(min(num_samples, one[1] + pad))
            continue
        silence = found[i + 1][0] - one[1]
        if silence < 2 * pad:
            one[1] += int(silence // 2)
            found[i + 1][0] = int(max(0, found[i + 1][0] - silence // 2))
        else:
            one[1] = int(min(num_samples, one[1] + pad))
            found[i + 1][0] = int(max(0, found[i + 1][0] - pad))
    return found


@pytest.mark.parametrize(
    "rules",
    [
        SpeechRules(),
        SpeechRules(min_silence=0.16, max_speech=3.0),
        SpeechRules(min_silence=0.16, max_speech=1.0, padding=0.05, min_speech=0.25),
        SpeechRules(0.7, 0.2, padding=0.0, min_silence=0.0),
        SpeechRules(0.1, max_speech=2.0, min_silence=1.0),
    ],
    ids=str,
)
def test_stretches_are_those_of_faster_whisper(rules):
    rng = np.random.default_rng(7)
    seen = 0
    for _ in range(60):
        probabilities = random_probabilities(rng)
        num_samples = FRAME * len(probabilities) - int(rng.integers(0, FRAME))
        found = stretches(probabilities, num_samples, rules)
        expected = expected_stretches(probabilities, num_samples, rules)
        places = [[round(one.start * RATE), round(one.end * RATE)] for one in found]
        assert places == expected
        seen += len(found)
        assert all(a.end <= b.start for a, b in itertools.pairwise(found))
        assert all(one.end - one.start <= rules.max_speech + 1e-9 for one in found)
    assert seen > 60


def test_silence_and_speech_alone():
    assert stretches([], 0, SpeechRules()) == []
    assert stretches([0.1] * 9, 9 * FRAME, SpeechRules()) == []
    num = 9 * FRAME - 3
    assert stretches([0.9] * 9, num, SpeechRules()) == [Stretch(0.0, num / RATE)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(threshold=0.0), "`threshold` must be a probability between 0 and 1, but is 0.0"),
        (dict(silence_threshold=2.0), "`silence_threshold` must be a probability"),
        (dict(min_speech=-1.0), "`min_speech` must be 0 or more seconds"),
        (dict(padding=math.inf), "`padding` must be 0 or more seconds"),
        (dict(max_speech=0.5), "`max_speech` must be more than padding takes"),
    ],
)
def test_wrong_rules_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SpeechRules(**options)


@pytest.mark.parametrize("package", ["onnxruntime", "silero_vad"])
def test_missing_packages_are_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"package {package.replace('_', '-')}: `pip install"):
        VoiceActivity()


@needs_model
def test_speech_is_found_between_silence():
    """Two recordings of spoken digits with three seconds of silence around each."""
    sounds = [
        read_sound(ROOT / "examples" / "speech" / f"{n}.wav", RATE) for n in ("first", "second")
    ]
    silence = torch.zeros(3 * RATE)
    whole = torch.cat([silence, sounds[0], silence, sounds[1], silence])
    first, second = VoiceActivity()(whole)
    end = 3 + len(sounds[0]) / RATE
    assert 2.5 <= first.start <= 3.5 and end - 0.8 <= first.end <= end + 0.5
    assert end + 2.5 <= second.start <= end + 3.5
    assert VoiceActivity()(silence) == VoiceActivity()(torch.zeros(0)) == []
    assert "torchaudio" not in sys.modules


@needs_model
def test_probabilities_do_not_depend_on_what_follows():
    sound = read_sound(ROOT / "examples" / "speech" / "first.wav", RATE)
    activity = VoiceActivity()
    whole = activity.probabilities(sound)
    part = activity.probabilities(sound[: 20 * FRAME])
    assert len(whole) == math.ceil(len(sound) / FRAME) and whole[:20].tolist() == part.tolist()


@needs_model
def test_a_file_is_judged_in_blocks(tmp_path):
    sound = read_sound(ROOT / "examples" / "speech" / "first.wav", RATE)
    whole = torch.cat([sound, torch.zeros(3 * RATE + 77), sound, sound.flip(0), sound] * 4)
    write_wav(tmp_path / "a.wav", (whole * 2**15).round().numpy(), RATE)
    activity, file = VoiceActivity(), SoundFile(tmp_path / "a.wav", RATE)
    assert len(whole) > 20 * RATE
    assert activity.probabilities(file).tolist() == activity.probabilities(whole).tolist()
    assert activity(file) == activity(whole) != []
