"""From sound to the features that a speech model reads."""

from __future__ import annotations

import importlib
import os
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pybeam.models.config import read_json

EXTRACTOR = "Speech2TextFeatureExtractor"
SMALLEST_DEVIATION = 1e-8  # of a bin that never changes, as in digital silence


class FeatureExtractor:
    """Log-mel filter banks as Kaldi computes them, normalised over each recording.

    Frames of 25 ms every 10 ms, the first and last ones whole; of each frame the mean is taken away,
    ``x[t] - 0.97 x[t - 1]``, a Povey window, the power spectrum, triangles on the mel scale from 20 Hz to
    half the sampling rate, the natural logarithm. Then per bin ``(x - mean) / deviation`` over the frames
    (Kaldi's "cepstral" mean and variance normalisation).

    Args:
        num_mel_bins: F.
        sampling_rate: of the samples, in Hz.
        normalize_means, normalize_vars: whether the mean is taken away and whether the deviation divides.

    Raises:
        ImportError: the package kaldi-native-fbank is missing.
    """

    def __init__(
        self,
        num_mel_bins: int = 80,
        sampling_rate: int = 16000,
        normalize_means: bool = True,
        normalize_vars: bool = True,
    ) -> None:
        self._fbank = _fbank_package()
        self.num_mel_bins, self.sampling_rate = num_mel_bins, sampling_rate
        self._normalize_means, self._normalize_vars = normalize_means, normalize_vars
        self._options = self._fbank.FbankOptions()
        self._options.frame_opts.samp_freq = sampling_rate
        self._options.frame_opts.dither = 0.0
        self._options.mel_opts.num_bins = num_mel_bins

    def __call__(self, samples: Tensor) -> Tensor:
        """Features [E, F] float32 of samples [n] from -1 to 1; E is 0 for less than 25 ms."""
        computer = self._fbank.OnlineFbank(self._options)
        # Kaldi's filter banks are those of 16-bit integers
        computer.accept_waveform(self.sampling_rate, (samples * 2.0**15).tolist())
        computer.input_finished()
        frames = [computer.get_frame(i) for i in range(computer.num_frames_ready)]
        if not frames:
            return torch.zeros(0, self.num_mel_bins)
        features = torch.from_numpy(np.stack(frames))  # [E, F]
        if self._normalize_means:
            features -= features.mean(0)
        if self._normalize_vars:
            features /= features.std(0, correction=0).clamp_min(SMALLEST_DEVIATION)
        return features


def load_feature_extractor(path: str | os.PathLike) -> FeatureExtractor:
    """The feature extractor of a speech model's directory, from its `preprocessor_config.json`.

    Raises:
        ValueError: the file is missing, or describes features that pybeam does not compute.
        ImportError: the package kaldi-native-fbank is missing.
    """
    path = Path(path) / "preprocessor_config.json"
    config = read_json(path)
    kind = config.get("feature_extractor_type")
    if kind != EXTRACTOR:
        raise ValueError(
            f"`feature_extractor_type` in {path} must be {EXTRACTOR}, but is {kind!r}; compute the "
            "features elsewhere and hand them to pybeam.Decoder"
        )
    sizes = {"num_mel_bins": 80, "sampling_rate": 16000}
    for name, default in sizes.items():
        sizes[name] = value = config.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"`{name}` in {path} must be a positive integer, but is {value!r}")
    # the typing error is the file format's
    normalizes = config.get("do_ceptral_normalize", True)
    return FeatureExtractor(
        **sizes,
        normalize_means=normalizes and config.get("normalize_means", True),
        normalize_vars=normalizes and config.get("normalize_vars", True),
    )


def read_wav(path: str | os.PathLike, sampling_rate: int) -> Tensor:
    """Samples [n] float32, from -1 to 1, of a WAV file: 16-bit PCM, one channel, at this rate.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file.
    """
    remedy = f"convert it: `ffmpeg -i {path} -ar {sampling_rate} -ac 1 -c:a pcm_s16le out.wav`"
    try:
        with wave.open(str(path), "rb") as file:
            found = file.getframerate(), file.getnchannels(), 8 * file.getsampwidth()
            samples = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:  # some without a message
        raise ValueError(
            f"{path} must be a WAV file with PCM samples: {str(error) or 'it ends too early'}; {remedy}"
        ) from error
    names = ("Hz", "channels", "bits per sample")
    for value, expected, name in zip(found, (sampling_rate, 1, 16), names, strict=True):
        if value != expected:
            raise ValueError(f"{path} must have {expected} {name}, but has {value}; {remedy}")
    return torch.from_numpy(np.frombuffer(samples, dtype="<i2").astype(np.float32) / 2.0**15)


def _fbank_package():
    try:
        return importlib.import_module("kaldi_native_fbank")
    except ImportError as error:
        raise ImportError(
            "features of sound need the package kaldi-native-fbank: `pip install 'pybeam[speech]'`"
        ) from error
