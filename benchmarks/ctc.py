"""Prefix beam search of CTC beside flashlight's, which was torchaudio's, on frames such as models give.

Six frames of ten are blanks; in the others one token is likely, with noise around it. flashlight counts a
prefix twice in its beam, with a blank at its end and without, so that its beam holds fewer prefixes: "score"
is the mean log-probability of the outputs by all of their paths. All run on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from pybeam import ctc

SEED = 1
SOURCES = 8
# by the name of the case: frames, tokens, nats above the noise
FRAMES = {"letters": (500, 32, 6.0), "pieces": (250, 5000, 12.0)}
WIDTHS = (10, 100)
# what flashlight takes to end in time: tokens of a frame
MOST_TOKENS = 50


def frame_searches(setup: Setup) -> Iterator[list[Task]]:
    """Prefix beams of several widths over letters and over pieces of words."""
    for name, (num_frames, vocab_size, peak) in FRAMES.items():
        num_sources = min(setup.lines or SOURCES, SOURCES)
        make = partial(log_probs_of, num_sources, num_frames, vocab_size, peak)
        for width in WIDTHS:
            makers = {
                "flashlight": partial(Flashlight, make, width),
                "pybeam": partial(Ours, make, width),
                "pybeam, as many tokens": partial(Ours, make, width, MOST_TOKENS),
            }
            yield in_turn(f"{name}-{width}", makers, threads=1)


def log_probs_of(num_sources: int, num_frames: int, vocab_size: int, peak: float) -> Tensor:
    """Return log-probabilities [B, T, V]; token 0 is the blank."""
    made = torch.Generator().manual_seed(SEED)
    x = torch.randn(num_sources, num_frames, vocab_size, generator=made)
    shape = num_sources, num_frames
    token = torch.randint(1, vocab_size, shape, generator=made)
    token[torch.rand(shape, generator=made) < 0.6] = 0
    height = peak + 2 * torch.randn(*shape, 1, generator=made)
    return x.scatter_add_(2, token[..., None], height).log_softmax(2)


def score_of(frames: Tensor, tokens: list[int]) -> float:
    """Return the log-probability of an output [L] by all of its paths."""
    length = torch.tensor([len(frames)]), torch.tensor([len(tokens)])
    loss = torch.nn.functional.ctc_loss(
        frames[:, None].double(), torch.tensor([tokens]), *length, reduction="sum"
    )
    return -float(loss)


class _Search:
    def __init__(self, make: partial, width: int) -> None:
        self.frames, self.width = make(), width

    def columns(self, timed: Timed) -> dict:
        scores = map(score_of, self.frames, timed.output)
        return {
            "ms per source": 1e3 * timed.cpu_seconds / len(self.frames),
            "score": sum(scores) / len(self.frames),
        }


class Ours(_Search):
    """`pybeam.ctc.beam_search`, of all tokens or of some of each frame."""

    def __init__(self, make: partial, width: int, max_tokens: int | None = None) -> None:
        super().__init__(make, width)
        self._max_tokens = max_tokens

    def __call__(self) -> list[list[int]]:
        found = ctc.beam_search(self.frames, width=self.width, max_tokens=self._max_tokens)
        return [list(best.tokens) for [best] in found]


class Flashlight(_Search):
    """Its decoder without lexicon and language model, over the best tokens of each frame."""

    def __init__(self, make: partial, width: int) -> None:
        # no other benchmark needs it
        from flashlight.lib.text import decoder

        super().__init__(make, width)
        options = decoder.LexiconFreeDecoderOptions(
            beam_size=width,
            beam_size_token=min(MOST_TOKENS, self.frames.shape[2]),
            beam_threshold=1e9,
            lm_weight=0.0,
            sil_score=0.0,
            log_add=True,
            criterion_type=decoder.CriterionType.CTC,
        )
        self._decoder = decoder.LexiconFreeDecoder(options, decoder.ZeroLM(), -1, 0, [])

    def __call__(self) -> list[list[int]]:
        return [self._decoded(own) for own in self.frames]

    def _decoded(self, frames: Tensor) -> list[int]:
        best = self._decoder.decode(frames.data_ptr(), *frames.shape)[0]
        path = torch.tensor([token for token in best.tokens if token >= 0])
        return [token for token in torch.unique_consecutive(path).tolist() if token]
