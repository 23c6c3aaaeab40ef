"""Write a feature extractor as an ONNX graph, for programs without pybeam.

All that happens to a frame before its power is taken is linear. So frames, window and Fourier transform are
one convolution: its kernels are the spectra of unit impulses.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from pybeam.models.onnx import FEATURES
from pybeam.models.onnx.graphs import missing_package
from pybeam.speech.features import (
    SMALLEST_DEVIATION,
    FeatureExtractor,
    FireRedFeatureExtractor,
    WhisperFeatureExtractor,
    load_feature_extractor,
)

if TYPE_CHECKING:
    from pybeam.export.builder import Builder, Value

KALDI_LOWEST = 20  # Hz
KALDI_SMALLEST = float(np.finfo(np.float32).eps)  # power in a mel bin


def export_features(path: str | os.PathLike[str], directory: str | os.PathLike[str]) -> None:
    """Write ``features.onnx``: samples in, features out, as `load_feature_extractor` computes them.

    The input ``samples`` [n] float32 is one recording, from -1 to 1, at the extractor's sampling rate. The
    output ``features`` [E, F] float32 is what ``search.onnx`` takes, one recording of its batch. Sums are
    taken in another order than by the extractor, so features may differ in their last digits.

    Two things differ where the extractor refuses a recording or finds nothing in it: the graphs of
    Speech2Text and FireRedASR fail for less than one frame (25 ms), and Whisper's cuts what is longer than
    `chunk_length`.

    Args:
        path: the directory of a speech model.
        directory: is made if it does not exist.

    Raises:
        ValueError: the model's directory does not describe features that pybeam computes.
        ImportError: the packages onnx or onnx-ir are missing, or kaldi-native-fbank for Speech2Text and
            FireRedASR.
    """
    try:
        from pybeam.export.builder import FLOAT, Builder, value
    except ImportError as error:
        raise missing_package(error) from error
    extractor = load_feature_extractor(path)
    op, samples = Builder(), value("samples", FLOAT, "n")
    # a class derived from one of these computes something else
    if type(extractor) is FeatureExtractor:
        features = _speech2text(op, extractor, samples)
    elif type(extractor) is FireRedFeatureExtractor:
        features = _fireredasr(op, extractor, samples)
    elif type(extractor) is WhisperFeatureExtractor:
        features = _whisper(op, extractor, samples)
    else:
        raise ValueError(
            f"features in {path} must be those of Speech2Text, Whisper or FireRedASR, but are those of "
            f"{type(extractor).__name__}; compute them in your program"
        )
    named = value("features", FLOAT, "E", extractor.num_mel_bins)
    Path(directory).mkdir(parents=True, exist_ok=True)
    op.save(Path(directory) / FEATURES, [samples], [(features, named)])


def _speech2text(op: Builder, extractor: FeatureExtractor, samples: Value) -> Value:
    x = _filter_banks(op, extractor, samples)
    centred = op.Sub(x, op.ReduceMean(x, [1]))
    if extractor._normalize_vars:
        deviation = op.Sqrt(op.ReduceMean(op.Mul(centred, centred), [1]))
        scale = op.Max(deviation, SMALLEST_DEVIATION)
        x = op.Div(centred if extractor._normalize_means else x, scale)
    elif extractor._normalize_means:
        x = centred
    return op.Transpose(x, perm=[1, 0])


def _fireredasr(op: Builder, extractor: FireRedFeatureExtractor, samples: Value) -> Value:
    x = op.Transpose(_filter_banks(op, extractor, samples), perm=[1, 0])  # [E, F]
    mean = op.weight(extractor._mean.float(), "mean")
    scale = op.weight(extractor._inverse_deviation.float(), "inverse_deviation")
    return op.Mul(op.Sub(x, mean), scale)


def _filter_banks(op: Builder, extractor: FeatureExtractor, samples: Value) -> Value:
    """Kaldi's log-mel filter banks [F, E]."""
    rate = extractor.sampling_rate
    size, hop = rate * 25 // 1000, rate // 100
    frames = 2.0**15 * (np.eye(size) - 1 / size)
    frames[:, 1:] -= 0.97 * frames[:, :-1]
    frames[:, 0] *= 1 - 0.97
    frames *= np.hanning(size) ** 0.85  # Povey's window
    n_fft = 1 << (size - 1).bit_length()
    filters = _kaldi_filters(np.fft.rfftfreq(n_fft, 1 / rate), extractor.num_mel_bins)
    mel = _mel(op, op.Unsqueeze(samples, [0, 1]), np.fft.rfft(frames, n_fft), hop, filters)
    return op.Log(op.Max(mel, KALDI_SMALLEST))


def _whisper(op: Builder, extractor: WhisperFeatureExtractor, samples: Value) -> Value:
    size = extractor.chunk_length * extractor.sampling_rate
    missing = op.Sub([size], op.size(samples, 0))  # negative if there is too much
    filled = op.Unsqueeze(op.Pad(samples, op.sizes(0, missing)), [0, 1])
    window = extractor._window.double().numpy()
    half = len(window) // 2
    mirrored = op.Pad(filled, [0, 0, half, 0, 0, half], mode="reflect")
    spectra = np.fft.rfft(np.diag(window))
    mel = _mel(op, mirrored, spectra, extractor.hop_length, extractor._filters.double().numpy())
    log_mel = op.Div(op.Log(op.Max(op.Slice(mel, [0], [-1], [1]), 1e-10)), float(np.log(10)))
    loudest = op.ReduceMax(log_mel, keepdims=0)
    x = op.Div(op.Add(op.Max(log_mel, op.Sub(loudest, 8.0)), 4.0), 4.0)
    return op.Transpose(x, perm=[1, 0])


def _mel(op: Builder, x: Value, spectra: np.ndarray, hop: int, filters: np.ndarray) -> Value:
    """Return the power in mel bins [F, E].

    Args:
        op: the graph.
        x: samples [1, 1, n].
        spectra: of a frame that is 1 at one place and 0 elsewhere, for each place [size, Q] complex.
        hop: samples from one frame to the next.
        filters: how much of each frequency's power counts [F, Q].
    """
    heard = filters.any(0)
    kernels = np.stack([spectra.real.T[heard], spectra.imag.T[heard]])  # [2, Q, size]
    weight = torch.from_numpy(kernels.reshape(-1, 1, len(spectra))).float()
    parts = op.Conv(x, op.weight(weight, "kernels"), strides=[hop])  # [1, 2 Q, E]
    real, imaginary = op.Split(op.Squeeze(parts, [0]), axis=0, num_outputs=2, outputs=2)
    power = op.Add(op.Mul(real, real), op.Mul(imaginary, imaginary))
    return op.MatMul(op.weight(torch.from_numpy(filters[:, heard]).float(), "filters"), power)


def _kaldi_filters(frequency: np.ndarray, num_mel_bins: int) -> np.ndarray:
    """Return [F, Q]: triangles, evenly spaced on the mel scale from 20 Hz to the highest frequency."""
    mel = 1127 * np.log(1 + frequency / 700)
    lowest = 1127 * np.log(1 + KALDI_LOWEST / 700)
    edge = np.linspace(lowest, mel[-1], num_mel_bins + 2)[:, None]  # [F + 2, 1]
    rising = (mel - edge[:-2]) / (edge[1:-1] - edge[:-2])
    falling = (edge[2:] - mel) / (edge[2:] - edge[1:-1])
    return np.minimum(rising, falling).clip(min=0)
