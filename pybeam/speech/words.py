"""Words of a transcript and their times, by the rules of openai-whisper and faster-whisper."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from pybeam.models.transformer.sources import SharedFeatures
from pybeam.speech.alignment import Aligner, AlignmentWindow, TokenTimes
from pybeam.speech.transcript import Segment, Word
from pybeam.text.deltas import INCOMPLETE

# ids to text with the spaces around it, "" for timestamps and control tokens
Decode = Callable[[Sequence[int]], str]

WITHOUT_SPACES = {"zh", "ja", "th", "lo", "my", "yue"}
# marks of all scripts, as openai-whisper has them
BEFORE_WORDS = "\"'“¿([{-"
BEHIND_WORDS = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
# seconds; a word lasts at most twice the median, and a larger median counts as this one
LONGEST_MEDIAN = 0.7


@dataclass(slots=True)
class _Timed:
    """A word that is being put together; seconds from the beginning of its window."""

    text: str
    num_tokens: int
    start: float
    end: float
    probability: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class WordFinder:
    """Give the segments of a window their words.

    Args:
        aligner: says when tokens are said.
        decode: turns ids into text with the spaces around it; timestamps and control tokens become "".
        before, behind: marks that belong to the word behind them, and to the word before them.
    """

    def __init__(
        self,
        aligner: Aligner,
        decode: Decode,
        before: str = BEFORE_WORDS,
        behind: str = BEHIND_WORDS,
    ) -> None:
        self._aligner, self._decode = aligner, decode
        self._before, self._behind = before, behind

    def __call__(
        self,
        segments: Sequence[Segment],
        features: Tensor | SharedFeatures,
        prefix: Sequence[int],
        *,
        language: str | None = None,
        offset: float = 0.0,
        num_frames: int | None = None,
        last_end: float = 0.0,
    ) -> list[Segment]:
        """Return the segments with their words. Their own times become those of the words, where these fit.

        Args:
            segments: of one window, in the order of time.
            features: [E, F], as the model was given them.
            prefix: the tokens of language and task.
            language: its code; some languages have no spaces between words. None: it has.
            offset: seconds of the recording before the window.
            num_frames: frames that are sound, not silence that fills the window; None: all.
            last_end: seconds from the beginning of the recording at which the last words before this window
                end. A long pause behind them shortens the first word.
        """
        tokens = [[one for one in segment.tokens if self._decode([one])] for segment in segments]
        whole = [one for own in tokens for one in own]
        if not whole:
            return list(segments)
        # a position of the encoder has two frames
        num_positions = None if num_frames is None else num_frames // 2
        [times] = self._aligner.times([AlignmentWindow(features, prefix, whole, num_positions)])
        words = timed_words(whole, times, self._decode, has_spaces=language not in WITHOUT_SPACES)
        # equal times come from tokens that share a position, and are no durations
        durations = [word.seconds for word in words if word.seconds]
        median = min(LONGEST_MEDIAN, statistics.median(durations)) if durations else 0.0
        if durations:
            _shorten_at_sentence_ends(words, 2 * median)
        _merge_punctuation(words, self._before, self._behind)
        return _shared_out(segments, tokens, words, median, offset, last_end)


def timed_words(
    tokens: Sequence[int], times: TokenTimes, decode: Decode, *, has_spaces: bool
) -> list[_Timed]:
    """Split the tokens of a text into words with their times."""
    words, first = [], 0
    for text, num in split_words(tokens, decode, has_spaces=has_spaces):
        last = first + num
        probability = statistics.fmean(times.probability[first:last])
        words.append(_Timed(text, num, times.start[first], times.start[last], probability))
        first = last
    return words


def split_words(
    tokens: Sequence[int], decode: Decode, *, has_spaces: bool
) -> list[tuple[str, int]]:
    """Split the tokens of a text into words: the text of each, and the number of its tokens.

    A word is a text behind a space, or punctuation alone; without spaces, the tokens of whole characters.
    """
    words: list[tuple[str, int]] = []
    for text, num in _characters(tokens, decode):
        begins = text.startswith(" ") or text.strip() in string.punctuation
        if has_spaces and words and not begins:
            before, num_before = words.pop()
            text, num = before + text, num_before + num
        words.append((text, num))
    return words


def _characters(tokens: Sequence[int], decode: Decode) -> Iterator[tuple[str, int]]:
    """Yield the smallest groups of tokens that are whole characters."""
    whole, place, first = decode(tokens), 0, 0
    for last in range(1, len(tokens) + 1):
        text = decode(tokens[first:last])
        broken = text.find(INCOMPLETE)
        # bytes that are no character in the whole text either stay as they are
        if broken < 0 or whole[place + broken : place + broken + 1] == INCOMPLETE:
            yield text, last - first
            place, first = place + len(text), last
    if first < len(tokens):
        yield decode(tokens[first:]), len(tokens) - first


def _shorten_at_sentence_ends(words: list[_Timed], longest: float) -> None:
    """A long word at the end of a sentence has a pause in it."""
    for before, word in itertools.pairwise(words):
        if word.seconds > longest:
            if word.text in SENTENCE_ENDS:
                word.end = word.start + longest
            elif before.text in SENTENCE_ENDS:
                word.start = word.end - longest


def _merge_punctuation(words: list[_Timed], before: str, behind: str) -> None:
    """Join punctuation and the word that it belongs to. Words that were joined to others become empty."""
    following = len(words) - 1
    for i in range(len(words) - 2, -1, -1):
        one, next_word = words[i], words[following]
        if one.text.startswith(" ") and one.text.strip() in before:
            next_word.text = one.text + next_word.text
            next_word.num_tokens += one.num_tokens
            one.text, one.num_tokens = "", 0
        else:
            following = i
    previous = 0
    for i in range(1, len(words)):
        one, word = words[i], words[previous]
        if not word.text.endswith(" ") and one.text in behind:
            word.text += one.text
            word.num_tokens += one.num_tokens
            one.text, one.num_tokens = "", 0
        else:
            previous = i


def _shared_out(
    segments: Sequence[Segment],
    tokens: Sequence[Sequence[int]],
    words: Sequence[_Timed],
    median: float,
    offset: float,
    last_end: float,
) -> list[Segment]:
    """Give each segment the words that begin in its tokens."""
    left, found = iter(words), []
    for segment, own in zip(segments, tokens, strict=True):
        mine: list[_Timed] = []
        num_tokens = 0
        while num_tokens < len(own) and (word := next(left, None)) is not None:
            num_tokens += word.num_tokens
            if word.text:
                start, end = round(offset + word.start, 2), round(offset + word.end, 2)
                mine.append(dataclasses.replace(word, start=start, end=end))
        start, end = segment.start, segment.end
        if mine:
            _shorten_behind_pause(mine, median, last_end)
            start, end = _fit(mine, median, start, end)
            last_end = end
        result = tuple(Word(one.text, one.start, one.end, one.probability) for one in mine)
        found.append(dataclasses.replace(segment, start=start, end=end, words=result))
    return found


def _shorten_behind_pause(words: list[_Timed], median: float, last_end: float) -> None:
    """The first words behind a pause may not reach back into it."""
    first, longest = words[0], 2 * median
    if first.end - last_end <= 4 * median:
        return
    second = words[1] if len(words) > 1 else None
    if first.seconds > longest or (second and second.end - first.start > 2 * longest):
        if second and second.seconds > longest:
            first.end = second.start = max(second.end / 2, second.end - longest)
        first.start = max(0.0, first.end - longest)


def _fit(words: list[_Timed], median: float, start: float, end: float) -> tuple[float, float]:
    """Return start and end of the segment: those of the words, unless the first or last word is too long."""
    first, last = words[0], words[-1]
    if start < first.end and start - 0.5 > first.start:
        first.start = max(0.0, min(first.end - median, start))
    else:
        start = first.start
    if end > last.start and end + 0.5 < last.end:
        last.end = max(last.start + median, end)
    else:
        end = last.end
    return start, end
