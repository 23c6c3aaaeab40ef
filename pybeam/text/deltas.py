"""The text of an output: behind a prompt, and piece by piece while its tokens become certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybeam.text.tokenizer import Tokenizer

# what a decoder writes for bytes that are no character yet
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# tokens of the prompt behind which a continuation is turned into text, so that the space between them stays
NUM_BEFORE = 8


def text_behind(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text that tokens add behind the last tokens of a prompt, spaces at both ends included."""
    known = list(before[-NUM_BEFORE:])
    start = tokenizer.decode(known, strips=False)
    whole = tokenizer.decode([*known, *tokens], strips=False)
    return whole.removeprefix(start) if whole.startswith(start) else tokenizer.decode(tokens)


class TextDeltas:
    """The text that every longer beginning of an output adds.

    All deltas joined are the text of the whole output. Bytes that are no character yet are held back,
    and so is a text that does not begin with what was given before. If a tokenizer changes the first
    words when later ones come, and leaves it so, the deltas end there::

        deltas = pybeam.TextDeltas(tokenizer.decode)
        async for event in service.stream(request):
            match event:
                case pybeam.serving.Certain(tokens):
                    show(deltas.more(tokens))
                case pybeam.serving.ServedResult(result):
                    show(deltas.rest(tokenizer.decode(result.hypotheses[0].tokens)))

    Args:
        decode: turns tokens into a text, such as `Tokenizer.decode`.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode, self._given = decode, ""

    def more(self, tokens: Sequence[int]) -> str:
        """Return what these certain tokens, all from the first on, add to the text; "" if nothing yet."""
        return self._behind(self._decode(tokens).rstrip(INCOMPLETE))

    def rest(self, text: str) -> str:
        """Return what the text of the whole output adds."""
        return self._behind(text)

    def _behind(self, text: str) -> str:
        if not text.startswith(self._given):
            return ""
        delta, self._given = text[len(self._given) :], text
        return delta
