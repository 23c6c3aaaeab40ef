"""Sound files of any kind."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np


def sine(seconds: float, rate: int, hertz: float = 440.0) -> np.ndarray:
    """Make samples [n] from -1 to 1."""
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def write_sound(
    path: Path, samples: np.ndarray | None = None, rate: int = 16000, *, codec: str
) -> None:
    """Encode samples [channels, n] from -1 to 1; None: a sine of a second."""
    if samples is None:
        samples = sine(1.0, rate)[None]
    layout = "mono" if len(samples) == 1 else "stereo"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(samples.T.reshape(1, -1), np.float32), "flt", layout
        )
        frame.sample_rate = rate
        size = stream.codec_context.frame_size or 1024
        resampler = av.AudioResampler(stream.format, layout, rate, frame_size=size)
        for one in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(one))
        container.mux(stream.encode(None))
