"""Let two engines, espeak-ng and flite, speak phrases of verses, and fill windows with them.

Phrases stand between the punctuation marks of the verses, and have the most frequent words of the King
James Version only (`frequent_words.txt`).
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from examples.speech import spoken_numbers
from pybeam.speech import read_wav

RATE = 16000
# most frequent first
WORDS = tuple((Path(__file__).parent / "frequent_words.txt").read_text("utf-8").split())
NUM_KNOWN = 100  # words that the example model knows
LENGTHS = 3, 8  # of a phrase, in words
LONGEST_SECONDS = 6
FLITE_SHARE = 0.3
PAUSE_SECONDS = 0.1, 0.9
# samples below this share of the loudest one are silence at the ends
SILENCE, MARGIN = 0.01, 400

# training and test have different voices: (engine, voice)
VOICES = {
    split: [
        *(("espeak-ng", f"{accent}+{voice}") for accent in spoken_numbers.ACCENTS for voice in own),
        *(("flite", voice) for voice in flite),
    ]
    for (split, own), flite in zip(
        spoken_numbers.VOICES.items(), (("kal16", "awb", "slt"), ("rms",)), strict=True
    )
}


@dataclass(frozen=True)
class Clip:
    """A spoken phrase, without the silence around it.

    Attributes:
        samples: [n] int16 at `RATE`.
        text: the phrase.
        sounds: its phonemes, as espeak-ng names them.
    """

    samples: Tensor
    text: str
    sounds: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """Phrases one after another, with pauses and noise.

    Attributes:
        samples: [n] float32 from -1 to 1 at `RATE`.
        phrases: (start, end, text), in seconds.
        cut: where a phrase begins that ends behind the recording, in seconds; None: there is none.
    """

    samples: Tensor
    phrases: list[tuple[float, float, str]]
    cut: float | None = None

    @property
    def text(self) -> str:
        return " ".join(text for _, _, text in self.phrases)


def phrases(verses: Iterable[str], num_words: int = NUM_KNOWN) -> list[str]:
    """Cut verses at their punctuation marks; return the phrases of so many frequent words, each once."""
    found, known = {}, set(WORDS[:num_words])
    for verse in verses:
        for part in re.split(r"[^a-z' ]+", verse.lower().replace("’", "'")):
            words = part.split()
            if LENGTHS[0] <= len(words) <= LENGTHS[1] and known.issuperset(words):
                found[" ".join(words)] = None
    return list(found)


def clips(texts: Sequence[str], split: str, seed: int, threads: int = 4) -> Iterator[Clip]:
    """Speak phrases in random voices of a split, "train" or "test", at random speed and pitch.

    Raises:
        FileNotFoundError: espeak-ng or flite is not installed.
    """
    for program in ("espeak-ng", "flite"):
        if shutil.which(program) is None:
            raise FileNotFoundError(
                f"the program {program} is not installed; on Debian: `apt-get install {program}`"
            )
    rng = random.Random(seed)
    engines = {
        name: [voice for voice in VOICES[split] if voice[0] == name] for name, _ in VOICES[split]
    }
    jobs = []
    for text, names in zip(texts, sounds(texts), strict=True):
        engine = "flite" if rng.random() < FLITE_SHARE else "espeak-ng"
        voice = rng.choice(engines[engine])
        jobs.append((text, names, voice, [rng.random() for _ in range(3)]))
    with ThreadPoolExecutor(threads) as pool:
        for clip in pool.map(lambda job: _clip(*job), jobs):
            if len(clip.samples) <= LONGEST_SECONDS * RATE:
                yield clip


def _clip(
    text: str, names: tuple[str, ...], voice: tuple[str, str], manner: Sequence[float]
) -> Clip:
    """Speak a phrase; its manner is speed, pitch and the size of the head, from 0 to 1."""
    (engine, name), (speed, pitch, size) = voice, manner
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "phrase.wav"
        if engine == "espeak-ng":
            words, height = round(140 + 50 * speed), round(35 + 30 * pitch)
            spoken_numbers.speak(text, path, name, words, height)
            samples = read_wav(path, spoken_numbers.RATE)
            rate = spoken_numbers.RATE
        else:
            options = "-voice", name, "--setf", f"duration_stretch={1.2 - 0.3 * speed:.2f}"
            subprocess.run(["flite", *options, "-t", text, "-o", path], check=True)
            samples, rate = read_wav(path, RATE), RATE
    # a recording that is played faster sounds like a smaller head
    samples = resampled(samples, rate * (0.9 + 0.2 * size))
    loudest = samples.abs().max()
    heard = (samples.abs() > SILENCE * loudest).nonzero()
    samples = samples[max(0, int(heard[0]) - MARGIN) : int(heard[-1]) + MARGIN]
    return Clip((samples * (32767 / loudest)).to(torch.int16), text, names)


def sounds(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """The phonemes of texts without stress, as espeak-ng names them."""
    command = ["espeak-ng", "-q", "-x", "--sep=_", "-v", "en-us", "--stdin"]
    lines = "".join(f"{text}.\n" for text in texts)
    done = subprocess.run(command, check=True, capture_output=True, text=True, input=lines)
    found = []
    for line in done.stdout.strip().split("\n"):
        names = (re.sub(r"[',:;|!]", "", name) for name in re.split(r"[\s_]+", line))
        found.append(tuple(name for name in names if name))
    return found


def resampled(samples: Tensor, rate: float) -> Tensor:
    """Change the sampling rate of samples [n] to `RATE`, by their spectrum."""
    size = round(len(samples) * RATE / rate)
    spectrum = torch.fft.rfft(samples)
    kept = torch.zeros(size // 2 + 1, dtype=spectrum.dtype)
    most = min(len(kept), len(spectrum))
    kept[:most] = spectrum[:most]
    return torch.fft.irfft(kept, size) * (size / len(samples))


def recording(
    some: Sequence[Clip],
    rng: random.Random,
    noise_db: tuple[float, float] = (5.0, 50.0),
    seconds: float | None = None,
) -> Recording:
    """Put clips one after another, with pauses, at a random loudness, under coloured noise.

    Args:
        some: the clips; none: noise alone, of a second or more.
        rng: gives pauses, loudness and noise.
        noise_db: the range from which the signal-to-noise ratio is drawn, in decibels.
        seconds: what goes beyond this is cut off; None: nothing is.
    """
    # windows of long recordings often begin where a phrase does
    parts, found, place, cut = [], [], max(0.0, rng.uniform(-0.3, 1)), None
    most = None if seconds is None else round(seconds * RATE)
    for clip in some:
        start = round(place * RATE)
        if most is not None and start >= most:
            break
        end = start + len(clip.samples)
        parts.append((start, clip.samples.float() / 2**15))
        if most is not None and end > most:
            cut = start / RATE
            break
        found.append((start / RATE, end / RATE, clip.text))
        place = end / RATE + rng.uniform(*PAUSE_SECONDS)
    size = max([RATE, *(start + len(speech) for start, speech in parts)])
    samples = torch.zeros(size + round(rng.uniform(0, 0.5) * RATE))
    for start, speech in parts:
        samples[start : start + len(speech)] += speech
    samples = samples[:most] * rng.uniform(0.1, 0.9)
    power = samples.square().mean() if parts else torch.tensor(0.01)
    noise = coloured_noise(len(samples), rng)
    noise *= (power * 10 ** (-rng.uniform(*noise_db) / 10)).sqrt()
    return Recording((samples + noise).clamp_(-1, 1), found, cut)


def coloured_noise(size: int, rng: random.Random) -> Tensor:
    """Noise [size] of power 1, whose power falls with frequency: ``f ** -a``, with a from 0 to 1.5."""
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    spectrum = torch.fft.rfft(torch.randn(size, generator=generator))
    spectrum *= torch.arange(1, len(spectrum) + 1) ** (-rng.uniform(0, 1.5) / 2)
    noise = torch.fft.irfft(spectrum, size)
    return noise / noise.square().mean().sqrt()
