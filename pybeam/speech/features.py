"""Turn sound into the features that a speech model reads."""

from __future__ import annotations

import importlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.ctranslate2.binary import whisper_sizes
from pybeam.text.ctranslate2 import is_ctranslate2
from pybeam.text.json_files import positive, read_json
from pybeam.text.model_files import blaming

SMALLEST_DEVIATION = 1e-8  # for a bin that never changes, as in digital silence
WHISPER_HIGHEST = 8000  # Hz, whatever the sampling rate
FRAMES_AT_ONCE = 3000  # of a long recording, so that spectra need little memory
SECONDS_AT_ONCE = 30  # of samples as Python's numbers, which are large
# sizes by their names in the file, and their values if the file does not name them
WHISPER_SIZES = {
    "feature_size": 80,
    "sampling_rate": 16000,
    "n_fft": 400,
    "hop_length": 160,
    "chunk_length": 30,
}
# tables follow from these sizes by a formula, and no file shows how large they should be
LARGEST_SIZE = 1 << 20
LARGEST_SPECTRUM = 1 << 25
LARGEST_SIZES = {
    "feature_size": 1 << 12,
    "num_mel_bins": 1 << 12,
    "n_fft": 1 << 16,
    "chunk_length": 1 << 12,
}


class FeatureExtractor:
    """The features of Speech2Text: Kaldi's log-mel filter banks, normalised over each recording.

    Frames of 25 ms every 10 ms, the first and last ones whole; of each frame the mean is taken away,
    ``x[t] - 0.97 x[t - 1]``, a Povey window, the power spectrum, triangles on the mel scale from 20 Hz to
    half the sampling rate, the natural logarithm. Then per bin ``(x - mean) / deviation`` over the frames
    (Kaldi's "cepstral" mean and variance normalisation).

    Args:
        num_mel_bins: F, the number of features of a frame.
        sampling_rate: of the samples, in Hz.
        normalize_means, normalize_vars: whether to subtract the mean, and whether to divide by the deviation.

    Raises:
        ImportError: the package kaldi-native-fbank is missing.
        ValueError: there are fewer than 3 bins, or more than the spectrum at this rate has room for.
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
        try:
            self._fbank.OnlineFbank(self._options)
        except ValueError as error:
            raise ValueError(
                f"`num_mel_bins` and `sampling_rate` must be a number of filters that sound of this rate has "
                f"room for, such as 80 at 16000 Hz, but are {num_mel_bins} and {sampling_rate}: {error}"
            ) from error

    def __call__(self, samples: Tensor) -> Tensor:
        """Compute features [E, F] float32 of samples [n] from -1 to 1; E is 0 for less than 25 ms."""
        computer = self._fbank.OnlineFbank(self._options)
        for part in samples.split(SECONDS_AT_ONCE * self.sampling_rate):
            # Kaldi computes on 16-bit integers
            computer.accept_waveform(self.sampling_rate, (part * 2.0**15).tolist())
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


class FireRedFeatureExtractor(FeatureExtractor):
    """The features of FireRedASR: Kaldi's log-mel filter banks, normalised by what training has seen.

    Frames are those of `FeatureExtractor`. Then every bin becomes ``(x - mean) * inverse_deviation``, in
    float64.

    Args:
        mean, inverse_deviation: F numbers each.
        sampling_rate: of the samples, in Hz.

    Raises:
        ImportError: the package kaldi-native-fbank is missing.
        ValueError: there are not as many means as deviations.
    """

    def __init__(
        self,
        mean: Sequence[float],
        inverse_deviation: Sequence[float],
        sampling_rate: int = 16000,
    ) -> None:
        if len(mean) != len(inverse_deviation):
            raise ValueError(
                f"`inverse_deviation` must have a number for each of {len(mean)} means, but has "
                f"{len(inverse_deviation)}"
            )
        super().__init__(len(mean), sampling_rate, normalize_means=False, normalize_vars=False)
        self._mean = torch.tensor(mean, dtype=torch.float64)
        self._inverse_deviation = torch.tensor(inverse_deviation, dtype=torch.float64)

    def __call__(self, samples: Tensor) -> Tensor:
        """Compute features [E, F] float32 of samples [n] from -1 to 1; E is 0 for less than 25 ms."""
        features = super().__call__(samples).double()  # [E, F]
        return ((features - self._mean) * self._inverse_deviation).float()


class WhisperFeatureExtractor:
    """Features of Whisper: the log-mel spectrogram of a recording, filled up with silence.

    Every `hop_length` samples: take the power spectrum of the `n_fft` samples around that place (a periodic
    Hann window, the ends mirrored, the last frame dropped), and sum it under triangles of area 1. These are
    evenly spaced on Slaney's mel scale from 0 to 8 kHz (``3 f / 200`` below 1 kHz,
    ``15 + 27 ln(f / 1000) / ln 6.4`` above). Then take ``y = log10(max(x, 1e-10))`` and
    ``(max(y, max(y) - 8) + 4) / 4``, where the inner maximum is over the recording.

    Args:
        num_mel_bins: F, the number of features of a frame.
        sampling_rate: of the samples, in Hz; 16000 or more.
        n_fft: samples of a frame.
        hop_length: samples from one frame to the next.
        chunk_length: seconds that recordings are filled up to; longer ones are refused.

    See Radford et al. 2022 (arXiv:2212.04356), section 2.2, and Slaney's Auditory Toolbox (1998).
    """

    def __init__(
        self,
        num_mel_bins: int = 80,
        sampling_rate: int = 16000,
        n_fft: int = 400,
        hop_length: int = 160,
        chunk_length: int = 30,
    ) -> None:
        self.num_mel_bins, self.sampling_rate = num_mel_bins, sampling_rate
        self.chunk_length = chunk_length
        self.hop_length = hop_length
        self._window = torch.hann_window(n_fft)
        frequency = np.linspace(0, sampling_rate // 2, n_fft // 2 + 1)
        self._filters = torch.from_numpy(_slaney_filters(frequency, num_mel_bins)).float()

    def __call__(self, samples: Tensor) -> Tensor:
        """Compute features [E, F] float32 of samples [n] from -1 to 1; E is 3000 for 30 s.

        Raises:
            ValueError: the recording is longer than `chunk_length`.
        """
        size = self.chunk_length * self.sampling_rate
        if len(samples) > size:
            raise ValueError(
                f"a recording must have at most {self.chunk_length} s ({size} samples), but has "
                f"{len(samples) / self.sampling_rate:.1f} s; cut it: `ffmpeg -i in.wav -f segment "
                f"-segment_time {self.chunk_length} -c copy part%03d.wav`"
            )
        filled = F.pad(samples.float(), (0, size - len(samples)))
        window = self._window
        spectrum = torch.stft(
            filled, len(window), self.hop_length, window=window, return_complex=True
        )
        mel = self._filters @ spectrum[:, :-1].abs().square()  # [F, E]
        log_mel = mel.clamp_min(1e-10).log10()
        return (log_mel.clamp_min(float(log_mel.max()) - 8).t().contiguous() + 4) / 4

    def recording(self, samples: Tensor) -> Tensor:
        """Compute features [E, F] float32 of samples [n] from -1 to 1 of any length; E is n // hop_length.

        The inner maximum is over the whole recording, as in openai-whisper and faster-whisper. Silence
        follows the end.
        """
        parts = list(self.log_mels([samples]))
        loudest = max((float(part.max()) for part in parts), default=-math.inf)
        return self.scaled(torch.cat([torch.zeros(0, self.num_mel_bins), *parts]), loudest)

    def log_mels(self, blocks: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield y, up to 3,000 frames [E, F] at a time, of a recording that comes in blocks of samples [n].

        Any blocks of the same samples give the same numbers to the bit.
        """
        hop, size = self.hop_length, len(self._window)
        whole = (FRAMES_AT_ONCE - 1) * hop + size
        waiting, has_begun = torch.zeros(0), False
        num_samples = num_done = 0
        for block in itertools.chain(blocks, [None]):
            if block is None:
                waiting = F.pad(waiting, (0, size))
            else:
                num_samples += len(block)
                waiting = torch.cat((waiting, block.float()))
            if not has_begun and (block is None or len(waiting) > size // 2):
                waiting = torch.cat((waiting[1 : size // 2 + 1].flip(0), waiting))
                has_begun = True
            while num := min(FRAMES_AT_ONCE, num_samples // hop - num_done):
                if block is not None and (num < FRAMES_AT_ONCE or len(waiting) < whole):
                    break
                yield self._log_mel(waiting.unfold(0, size, hop)[:num])
                num_done, waiting = num_done + num, waiting[num * hop :]

    def _log_mel(self, frames: Tensor) -> Tensor:
        power = torch.fft.rfft(frames * self._window).abs().square()
        return (power @ self._filters.t()).clamp_min(1e-10).log10_()

    def scaled(self, log_mel: Tensor, loudest: float) -> Tensor:
        """Turn y [E, F], which is `log_mel`, into features in place; `loudest` is the inner maximum."""
        return log_mel.clamp_(min=loudest - 8).add_(4).div_(4)


def _slaney_filters(frequency: np.ndarray, num_mel_bins: int) -> np.ndarray:
    """Return [F, bins]: how much of the power at each frequency counts in each mel bin."""
    highest = 15 + 27 * np.log(WHISPER_HIGHEST / 1000) / np.log(6.4)
    mel = np.linspace(0, highest, num_mel_bins + 2)
    # [F + 2]
    edge = np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))
    low, centre, high = (edge[i : i + num_mel_bins, None] for i in range(3))
    rising, falling = (frequency - low) / (centre - low), (high - frequency) / (high - centre)
    return np.minimum(rising, falling).clip(min=0) * 2 / (high - low)


def load_feature_extractor(path: str | os.PathLike[str]) -> Extractor:
    """Load the feature extractor of a speech model's directory.

    It reads `preprocessor_config.json`, or else the `feature_extractor` of `processor_config.json`, where
    transformers 5 writes it. A Whisper of CTranslate2 may have neither, and its features are as usual.

    Args:
        path: the directory.

    Returns:
        A function of samples [n] float32, from -1 to 1, that returns features [E, F] float32. Its
        `sampling_rate` is in Hz.

    Raises:
        ValueError: the file is missing, or describes features that pybeam does not compute.
        ImportError: the package kaldi-native-fbank is missing, for features of Speech2Text and FireRedASR.
    """
    path, config = _extractor_config(Path(path))
    kind = config.get("feature_extractor_type")
    if not isinstance(kind, str) or kind not in EXTRACTORS:
        raise ValueError(
            f"`feature_extractor_type` in {path} must be one of {', '.join(EXTRACTORS)}, but is {kind!r}; "
            "compute the features elsewhere and hand them to pybeam.Decoder"
        )
    with blaming(path.parent):
        return EXTRACTORS[kind](path, config)


def _extractor_config(directory: Path) -> tuple[Path, dict[str, Any]]:
    path = directory / "preprocessor_config.json"
    whole = directory / "processor_config.json"
    if not path.exists() and whole.exists():
        config = read_json(whole).get("feature_extractor")
        if isinstance(config, dict):
            return whole, config
    if not path.exists() and is_ctranslate2(directory):
        return path, {"feature_extractor_type": "WhisperFeatureExtractor"} | whisper_sizes(
            directory
        )
    return path, read_json(path)


def _speech2text(path: Path, config: dict[str, Any]) -> FeatureExtractor:
    config = {"num_mel_bins": 80, "sampling_rate": 16000} | config
    sizes = {name: _size(path, config, name) for name in ("num_mel_bins", "sampling_rate")}
    # the file format spells "cepstral" this way
    normalizes = config.get("do_ceptral_normalize", True)
    return FeatureExtractor(
        **sizes,
        normalize_means=bool(normalizes and config.get("normalize_means", True)),
        normalize_vars=bool(normalizes and config.get("normalize_vars", True)),
    )


def _whisper(path: Path, config: dict[str, Any]) -> WhisperFeatureExtractor:
    for name in ("dither", "do_normalize", "padding_value"):
        if config.get(name):
            raise ValueError(
                f"`{name}` in {path} must be 0 or false, but is {config[name]!r}; compute the features "
                "elsewhere and hand them to pybeam.Decoder"
            )
    config = WHISPER_SIZES | config
    num_mel_bins, sampling_rate, *sizes = (_size(path, config, name) for name in WHISPER_SIZES)
    if sampling_rate < 2 * WHISPER_HIGHEST:
        raise ValueError(
            f"`sampling_rate` in {path} must be at least {2 * WHISPER_HIGHEST}, but is {sampling_rate}"
        )
    n_fft, hop_length, chunk_length = sizes
    num_samples = chunk_length * sampling_rate
    if not 2 <= n_fft <= num_samples or hop_length > num_samples:
        raise ValueError(
            f"`n_fft` and `hop_length` in {path} must be samples of `chunk_length` = {chunk_length} s, at "
            f"least 2 and 1, but are {n_fft} and {hop_length}"
        )
    largest = max(num_samples, n_fft * num_mel_bins, num_samples // hop_length * n_fft)
    if largest > LARGEST_SPECTRUM:
        raise ValueError(
            f"`feature_size`, `sampling_rate`, `n_fft`, `hop_length` and `chunk_length` in {path} must make "
            f"tables of at most {LARGEST_SPECTRUM:,} numbers, but make {largest:,}"
        )
    return WhisperFeatureExtractor(num_mel_bins, sampling_rate, *sizes)


def _firered(path: Path, config: dict[str, Any]) -> FireRedFeatureExtractor:
    num_mel_bins = _size(path, config, "num_mel_bins")
    mean, inverse_deviation = (
        _numbers(path, config, name, num_mel_bins) for name in ("mean", "inverse_deviation")
    )
    rate = _size(path, config, "sampling_rate")
    return FireRedFeatureExtractor(mean, inverse_deviation, rate)


def _size(path: Path, config: dict[str, Any], name: str) -> int:
    return positive(path, config, name, LARGEST_SIZES.get(name, LARGEST_SIZE))


def _numbers(path: Path, config: dict[str, Any], name: str, num: int) -> list[float]:
    found: Any = config.get(name)
    is_list = isinstance(found, list) and len(found) == num
    if not is_list or not all(isinstance(x, int | float) for x in found):
        raise ValueError(f"`{name}` in {path} must be a list of {num} numbers")
    numbers: list[float] = found
    return numbers


Extractor = FeatureExtractor | WhisperFeatureExtractor
EXTRACTORS: dict[str, Callable[[Path, dict[str, Any]], Extractor]] = {
    "Speech2TextFeatureExtractor": _speech2text,
    "WhisperFeatureExtractor": _whisper,
    "FireRedFeatureExtractor": _firered,
}


def _fbank_package() -> Any:
    try:
        return importlib.import_module("kaldi_native_fbank")
    except ImportError as error:
        raise ImportError(
            "features of sound need the package kaldi-native-fbank: `pip install 'pybeam-search[speech]'`"
        ) from error
