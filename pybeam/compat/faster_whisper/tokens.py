"""Tokens that are never written: `suppress_tokens` as faster-whisper reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# stands for all that is no speech
NO_SPEECH = -1
# names and sounds are set in these, and mostly not spoken; marks of a sentence are not among them
SYMBOLS = [
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *"<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( )))".split(),
]
SYMBOLS += "[[ ]] {{ }} ♪♪ ♪♪♪".split()
# the first of their tokens stands for no other characters
MUSIC = "♩♪♫♬♭♮♯"
# between words they are spoken, at the beginning of one they are not
AT_THE_BEGINNING = (" -", " '")
CONTROL = (
    *("<|transcribe|>", "<|translate|>", "<|startoftranscript|>", "<|startofprev|>"),
    *("<|startoflm|>", "<|nospeech|>", "<|nocaptions|>"),
)


def suppressed(tokenizer: Tokenizer, asked: Sequence[int] | None) -> Sequence[int] | None:
    """Return the tokens that are never written; nothing if nothing is asked for.

    Args:
        tokenizer: of the model.
        asked: ids, and -1 for all that is no speech. Control tokens join them.
    """
    if not asked:
        return asked
    found = {token for token in asked if token != NO_SPEECH}
    if NO_SPEECH in asked:
        found |= no_speech(tokenizer)
    control = (tokenizer.token_to_id(token) for token in CONTROL)
    return tuple(sorted(found | {token for token in control if token is not None}))


def no_speech(tokenizer: Tokenizer) -> set[int]:
    """Return the tokens of symbols that are mostly not spoken."""

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    tokens = {token for text in AT_THE_BEGINNING for token in ids(text)[:1]}
    for symbol in (*SYMBOLS, *MUSIC):
        for own in (ids(symbol), ids(" " + symbol)):
            if len(own) == 1 or symbol in MUSIC:
                tokens.update(own[:1])
    return tokens
