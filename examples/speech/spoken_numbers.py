"""Let espeak-ng speak numbers digit by digit, in many voices and under noise."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from pybeam.speech import read_wav

RATE = 22050  # sampling rate of espeak-ng, in Hz
WORDS = "zero one two three four five six seven eight nine".split()
MOST_DIGITS = 4

# training and test have different voices
ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp")
VOICES = {
    "train": ("m1", "m2", "m3", "m5", "m6", "m8", "f1", "f2", "f4", "Andrea", "steph", "Lee"),
    "test": ("m4", "m7", "f3", "f5", "linda", "Andy"),
}


def spell(number: str) -> str:
    """Spell digits as words: "407" is "four zero seven"."""
    return " ".join(WORDS[int(digit)] for digit in number)


def speak(text: str, path: Path, voice: str = "en-us", speed: int = 160, pitch: int = 50) -> None:
    """Write a WAV file in which espeak-ng speaks a text.

    Args:
        text: what it says.
        path: the file.
        voice: a voice that espeak-ng knows.
        speed: words per minute.
        pitch: 0 to 99.

    Raises:
        FileNotFoundError: espeak-ng is not installed.
    """
    if shutil.which("espeak-ng") is None:
        raise FileNotFoundError(
            "the program espeak-ng is not installed; on Debian: `apt-get install espeak-ng`"
        )
    options = "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", str(path)
    subprocess.run(["espeak-ng", *options, text], check=True, capture_output=True)


def recordings(
    split: str, num: int, seed: int, noise_db: tuple[float, float] = (5.0, 50.0)
) -> Iterator[tuple[Tensor, str]]:
    """Yield spoken numbers with their words: samples [n] at `RATE`, from -1 to 1.

    Args:
        split: "train" or "test", which have different voices.
        num: how many recordings.
        seed: of digits, voices and noise.
        noise_db: the range from which signal-to-noise ratios are drawn, in decibels.
    """
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "number.wav"
        for _ in range(num):
            text = spell("".join(rng.choices("0123456789", k=rng.randint(1, MOST_DIGITS))))
            voice = f"{rng.choice(ACCENTS)}+{rng.choice(VOICES[split])}"
            speak(text, path, voice, rng.randint(120, 200), rng.randint(35, 65))
            samples = read_wav(path, RATE)
            yield noisy(samples, rng.uniform(*noise_db), generator), text


def noisy(samples: Tensor, ratio_db: float, generator: torch.Generator) -> Tensor:
    """Add white noise, so that ``10 log10(power / noise power) = ratio_db``."""
    deviation = samples.square().mean().sqrt() * 10 ** (-ratio_db / 20)
    noise = torch.randn(samples.shape, generator=generator)
    return (samples + deviation * noise).clamp_(-1, 1)
