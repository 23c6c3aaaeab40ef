"""Tags, times and code stay as they are, and the rest is translated."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybeam.text.markup import html, subtitles


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("Yo <b>soy</b> la luz.", ["Yo", "soy", "la luz."]),
        ('<a href="a>b" title=x>luz</a>', ["luz"]),
        ("<p>a</p><!-- b <i>c</i> --><p>d</p>", ["a", "d"]),
        ("<script>var a = '<b>no</b>';</script>sí", ["sí"]),
        ("<PRE>no</PRE> sí <code/> y", ["sí", "y"]),
        ("1 < 2 y a <b", ["1 < 2 y a <b"]),
        ('<p title="open>a</p>', ["a"]),
        ("<style>no", []),
        ("&lt;a&gt; &amp;", ["&lt;a&gt; &amp;"]),
        ("<br/>...<hr>", []),
    ],
)
def test_html(text, texts):
    found = html(text)
    assert list(found.texts) == texts
    assert found.fill(found.texts) == text


@pytest.mark.parametrize("split", [html, subtitles])
@settings(max_examples=40)
@given(text=st.text("<>a/!- \"'&1:,\n{\\}", max_size=60))
def test_nothing_is_lost(split, text):
    found = split(text)
    assert found.fill(found.texts) == text


@pytest.mark.parametrize(
    "part", ["<", "<a", "<!--", "<script>", "<a '", '<a "', "{\\", "1\n1:1,1 "]
)
@pytest.mark.parametrize("split", [html, subtitles])
def test_long_texts_take_time_in_proportion(split, part):
    """A text that is a hundred times as long may not take thousands of times as long."""
    text = part * (200_000 // len(part))
    start = time.process_time()
    split(text)
    assert time.process_time() - start < 2.0


SRT = """1
00:00:01,000 --> 00:00:02,500
Yo <i>soy</i> la luz
del mundo.

2
00:00:03,000 --> 00:00:04,000 X1:40
- ¡Luz!

"""


def test_subtitles():
    found = subtitles(SRT)
    assert found.texts == ("Yo", "soy", "la luz\ndel mundo.", "- ¡Luz!")
    assert found.fill(["I", "am", "the light", "Light!"]) == (
        SRT.replace("Yo", "I").replace("soy", "am").replace("la luz\ndel mundo.", "the light")
    ).replace("- ¡Luz!", "Light!")
    vtt = "WEBVTT Kind: captions\n\n00:01.000 --> 00:02.000 align:start\nYo\n"
    assert subtitles(vtt).texts == ("Yo",)
    assert subtitles(SRT.replace("\n", "\r\n")).texts[-1] == "- ¡Luz!"
