"""A random Whisper of the published layout, and recordings."""

import numpy as np
import pytest

from pybeam.compat.faster_whisper import WhisperModel
from support.converted_whisper import convert
from support.published_whisper import save_published
from support.speech_models import tone

RATE = 16000


@pytest.fixture(scope="package")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper")
    save_published(path)
    return path


@pytest.fixture(scope="package")
def model(directory):
    return WhisperModel(directory)


@pytest.fixture(scope="package")
def english(tmp_path_factory):
    path = tmp_path_factory.mktemp("english")
    save_published(path, english=True)
    return WhisperModel(path)


@pytest.fixture(scope="package")
def converted(directory, tmp_path_factory):
    """The same weights in faster-whisper itself."""
    pytest.importorskip("ctranslate2")
    import faster_whisper
    import transformers

    target = tmp_path_factory.mktemp("converted")
    original = transformers.WhisperForConditionalGeneration.from_pretrained(directory)
    convert(original, directory, target)
    return faster_whisper.WhisperModel(
        str(target), device="cpu", compute_type="float32", cpu_threads=1
    )


@pytest.fixture
def theirs(converted):
    # it keeps the length of windows that a call has asked for
    converted.feature_extractor = type(converted.feature_extractor)(**converted.feat_kwargs)
    return converted


@pytest.fixture(scope="package")
def samples():
    """Tones of 41 seconds, with silence of three seconds from the twelfth on."""
    sound = np.concatenate([tone(4 * RATE, seed).astype(np.float32) / 2**15 for seed in range(11)])
    sound = sound[: 41 * RATE]
    sound[12 * RATE : 15 * RATE] = 0
    return sound
