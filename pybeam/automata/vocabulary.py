"""`Vocabulary`: the bytes that each token adds to a text."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

from pybeam.text.deltas import INCOMPLETE
from pybeam.text.tokenizer import Tokenizer

Decode = Callable[[list[int]], str]
# how SentencePiece and its kin name a token of one byte
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# random outputs whose texts tell whether each token has a text of its own
NUM_TRIED, TRIED_LENGTH = 50, 6


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes that each token adds to a text. A token may hold a part of a character.

    The text of an output is ``opening[v]`` of its first token v and ``tokens[v]`` of all others, joined.
    This is what `Tokenizer.decode` gives with ``strips=False``, so a space that a tokenizer drops at the
    beginning belongs to no text. Where `skips` is true, tokens whose opening is empty do not end the
    beginning: the token behind them adds its opening, too.

    No text holds control tokens: EOS, padding, tags, the unknown word, and ids of the model alone.

    Attributes:
        tokens: of every id, its bytes behind other tokens; None: a control token.
        opening: of every id, its bytes where the text begins; None: a control token.
        skips: see above.
    """

    tokens: tuple[bytes | None, ...]
    opening: tuple[bytes | None, ...]
    skips: bool = False

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """Return the vocabulary of a tokenizer's outputs. That of a tokenizer is found once.

        Args:
            tokenizer: a `pybeam.Tokenizer`; one of transformers; a vocabulary; or an object whose method
                `vocab()` gives the text of each id as str or bytes, in a list or by id, None for control
                tokens. These texts are joined as they are.

        Raises:
            TypeError: this is none of them.
            ValueError: the text of a token depends on the tokens beside it, so that it has no bytes of its
                own.
        """
        if isinstance(tokenizer, Vocabulary):
            return tokenizer
        try:
            found = _FOUND.get(tokenizer)
        except TypeError:  # nothing can refer to it weakly
            return _read(tokenizer)
        if found is None:
            found = _FOUND[tokenizer] = _read(tokenizer)
        return found

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} ids, {len(self.written):,} with a text)"

    @cached_property
    def written(self) -> list[int]:
        """The ids that add to a text."""
        return [token for token, text in enumerate(self.tokens) if text is not None]

    @cached_property
    def continuing(self) -> Vocabulary:
        """The vocabulary of outputs that go on with a prompt: their first token has the space before it."""
        return Vocabulary(self.tokens, self.tokens)

    def text(self, ids: Iterable[int]) -> bytes:
        """Return the text of an output. Raises ValueError for a control token."""
        joined, begins = b"", True
        for token in ids:
            texts = self.opening if begins else self.tokens
            text = texts[token] if 0 <= token < len(texts) else None
            if text is None:
                raise ValueError(f"`ids` must have texts, but {token} is a control token")
            joined += text
            begins = begins and self.skips and not text
        return joined


_FOUND: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


def _read(tokenizer: Any) -> Vocabulary:
    if isinstance(tokenizer, Tokenizer):
        unknown = [] if tokenizer.unk_id is None else [tokenizer.unk_id]
        return _probed(partial(tokenizer.decode, strips=False), tokenizer.target_ids, unknown)
    if callable(getattr(tokenizer, "vocab", None)):
        return _given(tokenizer.vocab())
    if callable(getattr(tokenizer, "get_vocab", None)):
        keeps = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return _probed(
            partial(tokenizer.decode, **keeps), tokenizer.get_vocab(), tokenizer.all_special_ids
        )
    raise TypeError(
        "`tokenizer` must be a pybeam.Tokenizer, a tokenizer of transformers, or an object whose `vocab()` "
        f"gives the text of each token, but is {type(tokenizer).__name__}"
    )


def _given(texts: Any) -> Vocabulary:
    if isinstance(texts, Mapping):
        texts = [texts.get(token) for token in range(max(texts, default=-1) + 1)]
    if not isinstance(texts, Sequence) or isinstance(texts, str | bytes):
        raise TypeError(
            f"`vocab()` must give a list of texts, or texts by id, but gives {type(texts).__name__}"
        )
    odd = [one for one in texts if not (one is None or isinstance(one, str | bytes))]
    if odd:
        raise TypeError(f"`vocab()` must give str, bytes or None, but gives {odd[0]!r}")
    # an empty text would lead from a state to itself, again and again
    tokens = tuple((one.encode() if isinstance(one, str) else one) or None for one in texts)
    return Vocabulary(tokens, tokens)


def _probed(decode: Decode, ids: Mapping[str, int], control: Iterable[int]) -> Vocabulary:
    """Find the bytes of tokens as what their ids add to the text of another token, and to no text."""
    names = {token: name for name, token in ids.items()}
    for token in control:
        names.pop(token, None)
    size = max(ids.values(), default=-1) + 1
    tokens: list[bytes | None] = [None] * size
    opening = list(tokens)
    anchor = _anchor(decode, names)
    before = decode(anchor)
    for token, name in names.items():
        text = decode([*anchor, token]).removeprefix(before)
        if text:
            tokens[token] = _bytes(text, name)
            opening[token] = _bytes(decode([token]), name)
    found = Vocabulary(tuple(tokens), tuple(opening), _skips(decode, tokens, opening))
    _try(decode, found)
    return found


def _anchor(decode: Decode, names: Iterable[int]) -> list[int]:
    """Return a token whose text is a whole word or a part of one, so that no decoder changes it."""
    found = next((token for token in names if decode([token]).isalnum()), None)
    return [] if found is None else [found]


def _bytes(text: str, name: str) -> bytes:
    if INCOMPLETE not in text:
        return text.encode()
    if byte := BYTE.fullmatch(name):
        return bytes([int(byte[1], 16)])
    if all(character in ALPHABET for character in name):
        return bytes(ALPHABET[character] for character in name)
    return text.encode()


def _alphabet() -> dict[str, int]:
    """Return the bytes that the characters of GPT-2's names of tokens mean (Radford et al. 2019).

    Bytes that can be printed stand for themselves, the others follow from U+0100 on.
    """
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printed += range(ord("®"), ord("ÿ") + 1)
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


ALPHABET = _alphabet()


def _skips(decode: Decode, tokens: list[bytes | None], opening: list[bytes | None]) -> bool:
    """Whether a token behind one that adds nothing at the beginning is at the beginning still."""
    for token, text in enumerate(opening):
        if text == b"" and tokens[token]:
            return decode([token, token]) == ""
    return False


def _try(decode: Decode, vocabulary: Vocabulary) -> None:
    """Raise ValueError if joined bytes are not the text of some random outputs."""
    draw = random.Random(0)
    for _ in range(NUM_TRIED if vocabulary.written else 0):
        ids = draw.choices(vocabulary.written, k=TRIED_LENGTH)
        text = decode(ids)
        # decoders disagree about bytes that are no character
        joined = vocabulary.text(ids).decode(errors="replace")
        if INCOMPLETE not in joined and text != joined:
            raise ValueError(
                "`tokenizer` must give each token a text of its own, but the text of a token depends on "
                f"those beside it: tokens {ids} are {text!r}, and their texts are {joined!r}"
            )
