"""Stop strings end a text, and no part of them is ever shown."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pybeam.text.stops import Stops

LETTERS = st.text("ab", max_size=12)


def ended(text: str, strings: list[str]) -> str:
    """The text as it stands when the first stop string is whole, without that string."""
    for size in range(len(text) + 1):
        found = [one for one in strings if text[:size].endswith(one)]
        if found:
            return text[:size].removesuffix(max(found, key=len))
    return text


@settings(max_examples=40)
@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_what_is_shown_stays_and_nothing_of_a_stop_string_is_shown(text, strings):
    stops = Stops(strings)
    whole, _ = stops.cut(text)
    assert whole == ended(text, strings)
    shown = [stops.shown(text[:size]) for size in range(len(text) + 1)]
    for before, after in zip(shown, [*shown[1:], whole], strict=True):
        assert after.startswith(before)


def test_as_much_is_shown_as_can_be():
    stops = Stops(["\n\n", "END"])
    assert stops.shown("a\n") == "a" and stops.shown("a\nb") == "a\nb"
    assert stops.shown("aE") == "a" and stops.shown("aEN") == "a" and stops.shown("aENd") == "aENd"
    assert stops.shown("aEND b") == "a" and stops.cut("aEND b") == ("a", True)
    assert stops.cut("aEN") == ("aEN", False)
    assert not Stops([]) and Stops([]).shown("abc") == "abc"
