"""Find when the tokens of a window are said: attention of chosen heads, and dynamic time warping."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam import backends
from pybeam.arguments import ArgumentError
from pybeam.backends.inference import inferring
from pybeam.models.base import Model
from pybeam.models.transformer.attention import head_attention
from pybeam.models.transformer.sources import SharedFeatures
from pybeam.models.transformer.speech import SpeechTransformer
from pybeam.text.ctranslate2 import is_ctranslate2, transformers_config
from pybeam.text.json_files import positive, read_json
from pybeam.text.model_files import blaming

# of Whisper's encoder: each position has two frames of 10 ms
POSITIONS_PER_SECOND = 50.0
MEDIAN_WIDTH = 7
MAX_MEDIAN_WIDTH = 1 << 10

Head = tuple[int, int]


@dataclass(frozen=True, eq=False)
class AlignmentWindow:
    """A window and the text that was found in it.

    Args:
        features: [E, F], as the model was given them. Shared ones keep their states for later.
        prefix: the tokens of language and task, without timestamps; empty for a model of English alone.
        tokens: ids of the text, without timestamps, control tokens and EOS.
        num_positions: encoder positions that are sound, not silence that fills the window; None: all.
    """

    features: Tensor | SharedFeatures
    prefix: Sequence[int]
    tokens: Sequence[int]
    num_positions: int | None = None


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """When tokens are said.

    Attributes:
        start: n + 1 times in seconds from the beginning of the window: of each token, and of EOS, where the
            last one ends.
        probability: n numbers: of each token behind those before it, among tokens of text.
    """

    start: tuple[float, ...]
    probability: tuple[float, ...]


class Aligner:
    """Say when the tokens of texts are spoken, as openai-whisper and faster-whisper do.

    The text goes through the decoder once more, behind ``<|notimestamps|>``. The weights ``w[h, t, e]`` with
    which chosen heads attend to encoder positions while token t is made are standardised over t, smoothed
    over e by a median of `median_width` neighbours, and averaged over the heads. Dynamic time warping then
    finds the path from the first token and position to the last ones along which they sum to most. A token
    begins where the path reaches it.

    Each window is computed by itself, so results do not depend on what is asked beside it.

    Args:
        model: a Whisper model from `pybeam.load_model`.
        no_timestamps_id: the id of ``<|notimestamps|>``.
        heads: layer and head of each, from 0; None: all heads of the upper half of the layers.
        median_width: an odd number.
        rate: encoder positions per second.
        backend: that of `pybeam.Decoder`.

    Raises:
        ValueError: the model is no built-in Whisper model, or has no such head.

    See Giorgino 2009 (doi:10.18637/jss.v031.i07) for the warping.
    """

    def __init__(
        self,
        model: Model,
        no_timestamps_id: int,
        heads: Sequence[Head] | None = None,
        *,
        median_width: int = MEDIAN_WIDTH,
        rate: float = POSITIONS_PER_SECOND,
        backend: str = "auto",
    ) -> None:
        if not isinstance(model, SpeechTransformer):
            raise ArgumentError(
                "model",
                "must be a Whisper model whose layers pybeam computes itself, since words take their times "
                f"from its attention, but is {model!r}; load it from the folder of transformers",
            )
        if median_width < 1 or not median_width % 2:
            raise ArgumentError("median_width", f"must be odd, but is {median_width}")
        self._session = model.session(backends.resolve(backend, model.device))
        self._no_timestamps_id, self._eos_id, self._rate = no_timestamps_id, model.eos_id, rate
        self._median_width = median_width
        self._heads = _checked(model, heads)
        # the ids of Whisper's control tokens lie behind those of its text
        self._num_text = model.eos_id if model.start_id > model.eos_id else model.vocab_size

    @classmethod
    def load(cls, model: Model, path: str | os.PathLike[str], *, backend: str = "auto") -> Aligner:
        """Make one for the model of a directory, with `alignment_heads` of its `generation_config.json`.

        A folder of CTranslate2 has them in `config.json`.

        Raises:
            ValueError: a file is missing or wrong, or see above.
        """
        directory, name = Path(path), "median_filter_width"
        settings = directory / "generation_config.json"
        with blaming(directory):
            is_own = settings.exists() or not is_ctranslate2(directory)
            config = read_json(settings) if is_own else transformers_config(directory)
            last = positive(settings, config, "no_timestamps_token_id", model.vocab_size - 1)
            heads = _heads_of(settings, config)
            sizes = {name: MEDIAN_WIDTH} | read_json(directory / "config.json")
            width = positive(directory / "config.json", sizes, name, MAX_MEDIAN_WIDTH)
        try:
            return cls(model, last, heads, median_width=width, backend=backend)
        except ArgumentError as error:
            if error.name not in ("heads", "median_width"):
                raise
            raise ValueError(f"the files of {directory} are not sound: {error}") from error

    @inferring
    def times(self, windows: Sequence[AlignmentWindow]) -> list[TokenTimes]:
        """Return the times of the tokens of each window.

        Args:
            windows: as many as there are.
        """
        return [self._times(window) for window in windows]

    def _times(self, window: AlignmentWindow) -> TokenTimes:
        tokens = list(window.tokens)
        if not tokens:
            return TokenTimes((0.0,), ())
        # EOS counts in the means over tokens
        given = [*window.prefix, self._no_timestamps_id, *tokens, self._eos_id]
        state = self._session.states([window.features])  # [positions, d]
        weights, logits = head_attention(self._session, state, given, self._heads)
        if window.num_positions is not None:
            # as if the heads saw nothing behind the sound
            weights = weights[..., : max(1, window.num_positions)]
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
        # the rows from <|notimestamps|> on give a token of the text each, and then EOS
        first = len(window.prefix) + 1
        start = begin_positions(weights, self._median_width, first, -1)
        # behind an EOS that the files name by mistake there is text, too
        num_text = max(self._num_text, max(tokens) + 1)
        chosen = logits[first:-2, :num_text].softmax(-1)  # [n, text]
        probability = chosen[torch.arange(len(tokens)), torch.tensor(tokens)]
        return TokenTimes(tuple((start / self._rate).tolist()), tuple(probability.tolist()))


def begin_positions(
    weights: Tensor,
    median_width: int = MEDIAN_WIDTH,
    first: int = 0,
    last: int | None = None,
) -> np.ndarray:
    """Return the position at which each of the tokens `first:last` begins.

    Args:
        weights: [N, T, E], of N heads; other tokens count only in the means over all.
        median_width: odd.
        first, last: a slice of the T tokens.
    """
    deviation, mean = torch.std_mean(weights, dim=1, keepdim=True, unbiased=False)
    smooth = median_filter((weights - mean) / deviation, median_width)
    return warp(-smooth.mean(0)[first:last].double().numpy())


def median_filter(x: Tensor, width: int) -> Tensor:
    """Return the median of `width` neighbours along the last dimension, the ends mirrored.

    A dimension of at most ``width // 2`` stays as it is.
    """
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = F.pad(x, (half, half), mode="reflect")
    # sorted slot by slot, which is faster than sorting `width` numbers for each place
    slots = list(padded.unfold(-1, width, 1).unbind(-1))
    for last in range(width - 1, half - 1, -1):
        for i in range(last):
            low, high = slots[i], slots[i + 1]
            slots[i], slots[i + 1] = torch.minimum(low, high), torch.maximum(low, high)
    return slots[half]


def warp(cost: np.ndarray) -> np.ndarray:
    """Return the position [T] at which the cheapest path through costs [T, E] float64 reaches each token.

    A path goes from the first token and position to the last ones. It takes the next token, the next
    position, or both. Sums are rounded to float32. Among equally cheap steps the next position wins, as
    in openai-whisper.
    """
    num_tokens, num_positions = cost.shape
    infinite = np.full(num_tokens + 1, np.inf, np.float32)
    # best[i]: of the cell (i, diagonal - i); a diagonal needs the two before it alone
    before, best = infinite.copy(), infinite.copy()
    before[0] = 0
    step = np.full((num_tokens + num_positions + 1, num_tokens + 1), 2, np.int8)
    for diagonal in range(2, num_tokens + num_positions + 1):
        low, high = max(1, diagonal - num_positions), min(num_tokens, diagonal - 1)
        token = np.arange(low, high + 1)
        both, down, right = before[low - 1 : high], best[low - 1 : high], best[low : high + 1]
        takes_both = (both < down) & (both < right)
        takes_down = (down < both) & (down < right)
        least = np.where(takes_both, both, np.where(takes_down, down, right))
        step[diagonal, low : high + 1] = np.where(takes_both, 0, np.where(takes_down, 1, 2))
        before, best = best, infinite.copy()
        best[low : high + 1] = cost[token - 1, diagonal - token - 1] + least
    return _begins(step, num_tokens, num_positions)


def _begins(step: np.ndarray, num_tokens: int, num_positions: int) -> np.ndarray:
    """Go back along the steps; returns the first position [T] of each token."""
    begin = np.zeros(num_tokens, np.int64)
    i, j = num_tokens, num_positions
    while i > 0 and j > 0:
        begin[i - 1] = j - 1
        taken = step[i + j, i]
        i -= taken != 2
        j -= taken != 1
    return begin


def _heads_of(path: Path, config: dict[str, Any]) -> list[Head] | None:
    found = config.get("alignment_heads")
    if found is None:
        return None
    try:
        return [(int(layer), int(head)) for layer, head in found]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`alignment_heads` in {path} must be pairs of layer and head, but is {found!r}"
        ) from error


def _checked(model: SpeechTransformer, heads: Sequence[Head] | None) -> list[Head]:
    num_layers, num_heads = len(model.decoder.layers), model.decoder.num_heads
    if heads is None:
        return [(i, h) for i in range(num_layers // 2, num_layers) for h in range(num_heads)]
    for layer, head in heads:
        if not (0 <= layer < num_layers and 0 <= head < num_heads):
            raise ArgumentError(
                "heads",
                f"must be pairs of a layer from 0 to {num_layers - 1} and a head from 0 to {num_heads - 1}, "
                f"but one is ({layer}, {head})",
            )
    if not heads:
        raise ArgumentError("heads", "must hold at least one pair, but is empty")
    return [(int(layer), int(head)) for layer, head in heads]
