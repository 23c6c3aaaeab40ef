"""Words and their times, by hand; openai-whisper's code gives the same."""

import pytest

from pybeam.speech.alignment import TokenTimes
from pybeam.speech.transcript import Segment, Word
from pybeam.speech.words import WordFinder, split_words, timed_words

# each letter a token, and behind them control tokens
PIECES = [*" abcdef.,\"'(¿!", "語", "�"]
ID = {piece: i for i, piece in enumerate(PIECES)}
NUMBERS = dict(
    average_log_prob=-0.25, no_speech_probability=None, temperature=0.0, compression_ratio=1.0
)


def decode(ids) -> str:
    return "".join(PIECES[i] for i in ids if i < len(PIECES))


def tokens_of(text: str) -> list[int]:
    return [ID[letter] for letter in text]


class Clock:
    """An aligner in which each token has its own times."""

    def __init__(self, start: list[float]) -> None:
        self.start, self.asked = start, []

    def times(self, windows):
        self.asked += windows
        num = len(windows[0].tokens)
        return [TokenTimes(tuple(self.start), tuple(1 / (i + 1) for i in range(num)))]


def segment(start: float, end: float, text: str) -> Segment:
    return Segment(start, end, text, (99, *tokens_of(text), 98), **NUMBERS)


@pytest.mark.parametrize(
    ("text", "has_spaces", "expected"),
    [
        (" ab cd", True, [" ab", " cd"]),
        ("ab cd", True, ["ab", " cd"]),
        (" ab.", True, [" ab", "."]),
        (" a,b", True, [" a", ",b"]),
        (' "ab" c', True, [" ", '"ab', '"', " c"]),
        ("語ab語", False, ["語", "a", "b", "語"]),
    ],
)
def test_words_of_tokens(text, has_spaces, expected):
    found = split_words(tokens_of(text), decode, has_spaces=has_spaces)
    assert [word for word, _ in found] == expected
    assert sum(num for _, num in found) == len(text)


def test_bytes_of_one_character_stay_together():
    """Three tokens make a character; a fourth is no character in the whole text either."""
    parts = {1: "�", 2: "�", 3: "é"}

    def decode(ids) -> str:
        text, rest = "", list(ids)
        while rest:
            if rest[:2] == [1, 2]:
                text, rest = text + "é", rest[2:]
            elif rest[0] == 3:
                text, rest = text + "x", rest[1:]
            else:
                text, rest = text + parts[rest[0]], rest[1:]
        return text

    assert split_words([3, 1, 2, 3], decode, has_spaces=False) == [("x", 1), ("é", 2), ("x", 1)]
    assert split_words([2, 3], decode, has_spaces=False) == [("�", 1), ("x", 1)]
    assert split_words([3, 1], decode, has_spaces=False) == [("x", 1), ("�", 1)]


def test_times_and_probabilities_of_words():
    times = TokenTimes((0.0, 0.1, 0.1, 0.4, 0.9), (0.5, 0.25, 1.0, 0.125))
    words = timed_words(tokens_of("ab c"), times, decode, has_spaces=True)
    assert [(w.text, w.start, w.end, w.probability) for w in words] == [
        ("ab", 0.0, 0.1, 0.375),
        (" c", 0.1, 0.9, 0.5625),
    ]


def test_segments_get_their_words_and_their_times():
    text = " ab, cd."
    clock = Clock([0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.8, 0.8])
    finder = WordFinder(clock, decode)
    segments = [segment(10.0, 10.4, " ab,"), segment(10.4, 10.9, " cd.")]
    found = finder(segments, None, [30, 33], offset=10.0, num_frames=77, last_end=9.9)
    assert [one.words for one in found] == [
        (Word(" ab,", 10.2, 10.5, pytest.approx((1 + 1 / 2 + 1 / 3) / 3)),),
        (Word(" cd.", 10.5, 10.8, pytest.approx((1 / 5 + 1 / 6 + 1 / 7) / 3)),),
    ]
    assert [(one.start, one.end) for one in found] == [(10.2, 10.5), (10.5, 10.8)]
    [heard] = clock.asked
    assert (heard.tokens, heard.prefix, heard.num_positions) == (tokens_of(text), [30, 33], 38)


def test_punctuation_belongs_to_a_word():
    text = " ab! ¿cd"
    clock = Clock([0.1 * i for i in range(len(text) + 1)])
    [found] = WordFinder(clock, decode)([segment(0.0, 1.0, text)], None, [])
    assert [word.text for word in found.words] == [" ab!", " ¿cd"]


def test_other_marks_belong_to_words():
    text = " ab! ¿cd"
    clock = Clock([0.1 * i for i in range(len(text) + 1)])
    finder = WordFinder(clock, decode, before="", behind="?")
    [found] = finder([segment(0.0, 1.0, text)], None, [])
    assert [word.text for word in found.words] == [" ab", "!", " ¿cd"]


def test_a_long_word_behind_a_pause_is_shortened():
    """Median 0.2 s: the word may last 0.4 s, and gets its end."""
    text = " a b c d"
    clock = Clock([0.0, 4.0, 5.0, 5.1, 5.2, 5.3, 5.4, 5.5, 5.6])
    [found] = WordFinder(clock, decode)([segment(0.0, 5.6, text)], None, [], last_end=0.0)
    assert [word.text for word in found.words] == [" a", " b", " c", " d"]
    assert (found.words[0].start, found.words[0].end) == (pytest.approx(4.6), 5.0)
    assert found.start == pytest.approx(4.6)


def test_a_long_word_behind_no_pause_keeps_its_time():
    """Median 0.2 s: a word that ends at most 0.8 s behind the words before it follows no pause."""
    text = " a b c d"
    clock = Clock([0.0, 0.3, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3])
    for last_end, start in ((0.0, 0.0), (-0.2, 0.3)):
        [found] = WordFinder(clock, decode)([segment(0.0, 1.3, text)], None, [], last_end=last_end)
        assert found.words[0].start == pytest.approx(start), last_end


def test_nothing_to_align():
    clock = Clock([0.0])
    silence = [Segment(0.0, 1.0, "", (99, 98), **NUMBERS)]
    assert WordFinder(clock, decode)(silence, None, []) == silence and not clock.asked
    assert WordFinder(clock, decode)([], None, []) == []


def test_languages_without_spaces():
    clock = Clock([0.0, 0.1, 0.2, 0.3])
    segments = [segment(0.0, 0.3, "語a語")]
    [found] = WordFinder(clock, decode)(segments, None, [], language="ja")
    assert [word.text for word in found.words] == ["語", "a", "語"]
    [found] = WordFinder(clock, decode)(segments, None, [], language="de")
    assert [word.text for word in found.words] == ["語a語"]
