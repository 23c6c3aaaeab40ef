"""`WordLanguageModel`: an n-gram model of words, whose weights tokens bring that end a word."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from pybeam.automata.automaton import NOWHERE, Automaton
from pybeam.automata.vocabulary import Vocabulary
from pybeam.backends.torch_automata import FINAL, PoolArrays, automaton_step
from pybeam.backends.transfer import to_device
from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Processor, Stage, check_stage

SPACES = re.compile(rb"\s+")
NO_TOKEN = 0


@dataclass(frozen=True)
class WordLanguageModel(Processor):
    """Scores words when they end: a token that ends one adds the word's weight, EOS that of the last one.

    The state of a hypothesis is that of the automaton behind its whole words, and the hash of the bytes of
    the word that has begun.
    """

    automaton: Automaton = field(repr=False)  # over words
    endings: Endings = field(repr=False)
    stage: Stage = "log_probs"
    per_request: ClassVar = ("automaton", "endings")
    state: ClassVar = (INT, torch.int64)
    begins_behind_prefix: ClassVar = True
    can_capture = False

    def __post_init__(self) -> None:
        check_stage(self.stage)
        # an engine would find it between the steps of others
        _ = self.automaton.needed

    def shared(self) -> Automaton:
        return self.automaton

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.endings.number, dtype=INT),)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        """`data` are a pool, the start and the number of endings [R] of every row, and the states [S, N]."""
        *pool, root, number, of_model, of_word = data
        generated, slot, node = rows.num_generated, rows.row_slot.long(), rows.node.long()
        parent = rows.tree.parent[slot, node].long().clamp(min=0)
        # words begin behind the prefix
        has_begun = generated > 0
        before = torch.where(has_begun, of_model[slot, parent], root)
        word = torch.where(has_begun, of_word[slot, parent], 0)
        token = torch.where(has_begun, rows.token, NO_TOKEN)
        for endings, own in _groups(self.endings, number):
            walk = _Walk(PoolArrays(*pool), endings.on(logits.device))
            given = before[own], word[own], token[own]
            model, hashed = walk.go_on(*given, generated[own] > 1, has_begun[own])
            of_model[slot[own], node[own]], of_word[slot[own], node[own]] = model, hashed
            added, last = walk.added(model, hashed, generated[own] > 0, logits.shape[1])
            for eos_id in rows.eos_ids:
                added[:, eos_id] = last
            shaped = logits[own] + added
            logits[own] = torch.where(generated[own][:, None] < 0, logits[own], shaped)
        return logits


def _groups(own: Endings, number: Tensor) -> list[tuple[Endings, Any]]:
    """Return the endings that rows have, by their numbers [R], and the rows that have each.

    Nothing is read back while nobody has others.
    """
    if len(_ENDINGS) == 1:
        return [(own, slice(None))]
    found = [(_ENDINGS.get(one), one) for one in sorted(set(number.tolist()))]
    return [(endings, number == one) for endings, one in found if endings is not None]


# those that somebody has, by their number
_ENDINGS: WeakValueDictionary[int, Endings] = WeakValueDictionary()
_NUMBERS = count(1)


class Endings:
    """The words that each token ends and begins.

    The bytes of a token are a head, which goes on with the word that has begun, whole words, and a tail.
    Tokens without a space have nothing but a head. The others are grouped by head and whole words. A token
    at the beginning of a text may have other bytes than behind others, so each has two lines.

    Args:
        vocabulary: the bytes of tokens.
        words: those that the language model knows.
    """

    def __init__(self, vocabulary: Vocabulary, words: list[str]) -> None:
        known = {word.encode("utf-8", "surrogateescape"): i for i, word in enumerate(words)}
        unknown = len(words)  # has no edge
        parts = [_split(text or b"") for text in (*vocabulary.opening, *vocabulary.tokens)]
        groups: dict[tuple[bytes, tuple[int, ...]], int] = {}
        group = []
        for head, whole, tail in parts:
            numbers = tuple(known.get(word, unknown) for word in whole)
            is_head = tail is None
            group.append(0 if is_head else groups.setdefault((head, numbers), len(groups) + 1))
        longest = max((len(numbers) for _, numbers in groups), default=0)
        inner = np.full((len(groups), longest), NOWHERE, dtype=np.int32)
        for line, (_, numbers) in zip(inner, groups, strict=True):
            line[: len(numbers)] = numbers
        self.num_words = unknown
        hashes = np.array([_hash(word) for word in known], dtype=np.int64)
        order = np.argsort(hashes)
        if (np.diff(hashes[order]) == 0).any():
            raise ValueError("two words of the language model have one hash; leave one of them out")
        by_hash = np.array(list(known.values()), dtype=np.int32)[order]
        arrays = (
            np.array(group, dtype=np.int32).reshape(2, -1),
            # how a token goes on with a word: hash * factor + addend
            _lines([0 if tail is not None else _power(head) for head, _, tail in parts]),
            _lines([_hash(head if tail is None else tail) for head, _, tail in parts]),
            np.array([_power(head) for head, _ in groups], dtype=np.int64),
            np.array([_hash(head) for head, _ in groups], dtype=np.int64),
            inner,
            hashes[order],
            by_hash,
            np.array(unknown, dtype=np.int32),
        )
        self.tensors = tuple(torch.from_numpy(array) for array in arrays)
        self._register()

    def _register(self) -> None:
        self.number = next(_NUMBERS)
        self._on: dict[torch.device, _Endings] = {}
        _ENDINGS[self.number] = self

    def __getstate__(self) -> tuple[int, tuple[Tensor, ...]]:
        return self.num_words, self.tensors

    def __setstate__(self, state: tuple[int, tuple[Tensor, ...]]) -> None:
        # another process has numbers of its own
        self.num_words, self.tensors = state
        self._register()

    def on(self, device: torch.device) -> _Endings:
        """Return the tensors on a device, where they stay."""
        if device not in self._on:
            self._on[device] = _Endings(
                *(to_device(one, one.dtype, device) for one in self.tensors)
            )
        return self._on[device]


def _split(text: bytes) -> tuple[bytes, list[bytes], bytes | None]:
    """The head, the whole words and the tail; no tail if there is no space."""
    head, *others = SPACES.split(text)
    return (head, others[:-1], others[-1]) if others else (head, [], None)


def _lines(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.int64).reshape(2, -1)


# odd, so that no byte of a word is lost
BASE = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    return (value & MASK) - ((value & 1 << 63) << 1)


def _hash(text: bytes) -> int:
    """A hash of a word modulo 2^64: that of ``a + b`` is ``hash(a) * power(b) + hash(b)``; 0: no word."""
    value = 0
    for byte in text:
        value = (value * BASE + _mixed(byte)) & MASK
    return _signed(value)


def _mixed(byte: int) -> int:
    value = (byte + 1) * 0xBF58476D1CE4E5B9 & MASK
    return (value ^ value >> 29) & MASK


def _power(text: bytes) -> int:
    return _signed(pow(BASE, len(text), 1 << 64))


class _Endings(NamedTuple):
    """`Endings.tensors` on the device."""

    # [2, V]: at the beginning of a text, and later
    group: Tensor
    factor: Tensor
    addend: Tensor
    # by group
    head_factor: Tensor
    head: Tensor
    inner: Tensor
    # of the model's words
    hashes: Tensor
    numbers: Tensor
    unknown: Tensor

    def word(self, hashed: Tensor) -> Tensor:
        """The numbers [...] of words by their hashes; one that has no edge for an unknown word."""
        place = torch.searchsorted(self.hashes, hashed).clamp(max=len(self.hashes) - 1)
        return torch.where(self.hashes[place] == hashed, self.numbers[place], self.unknown)


class _Walk:
    """Steps of rows through the words of a language model."""

    def __init__(self, automata: PoolArrays, endings: _Endings) -> None:
        self._automata, self._endings = automata, endings

    def _ended(self, model: Tensor, hashed: Tensor) -> tuple[Tensor, Tensor]:
        """The states [n] behind words [n], and the weights of the words; no word changes nothing."""
        target, weight = automaton_step(self._automata, model, self._endings.word(hashed))
        is_word = hashed != 0
        return torch.where(is_word, target, model), torch.where(is_word, weight, 0.0)

    def _through(self, model: Tensor, hashed: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
        """The states [n] behind the words that tokens of these groups [n] end, and their weights."""
        own = self._endings
        head = hashed * own.head_factor[group] + own.head[group]
        model, total = self._ended(model, head)
        for inner in own.inner[group].unbind(1):
            target, weight = automaton_step(self._automata, model, inner.clamp(min=0))
            is_there = inner >= 0
            model = torch.where(is_there, target, model)
            total = total + torch.where(is_there, weight, 0.0)
        return model, total

    def go_on(
        self, model: Tensor, hashed: Tensor, token: Tensor, is_later: Tensor, moves: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The states and hashes [R] behind tokens [R], where `moves`."""
        own, line = self._endings, is_later.long()
        place = token.long().clamp(max=own.group.shape[1] - 1)
        is_known = token < own.group.shape[1]
        group = torch.where(is_known, own.group[line, place], 0).long()
        ends = moves & (group > 0)
        if own.inner.shape[0]:
            target, _ = self._through(model, hashed, (group - 1).clamp(min=0))
            model = torch.where(ends, target, model)
        longer = hashed * own.factor[line, place] + own.addend[line, place]
        return model, torch.where(moves & is_known, longer, hashed)

    def added(
        self, model: Tensor, hashed: Tensor, is_later: Tensor, vocab_size: int
    ) -> tuple[Tensor, Tensor]:
        """The weights that each token adds [R, V], and those that EOS adds [R]."""
        own = self._endings
        num_groups = own.inner.shape[0]
        weights = [torch.zeros_like(model, dtype=torch.float32)]
        for group in range(num_groups):
            same = torch.full_like(model, group, dtype=torch.long)
            weights.append(self._through(model, hashed, same)[1])
        by_group = torch.stack(weights, 1)  # [R, 1 + groups]
        groups = own.group.long()
        first, later = (by_group.index_select(1, line) for line in groups)
        added = torch.where(is_later[:, None], later, first)
        missing = vocab_size - added.shape[1]
        added = torch.nn.functional.pad(added, (0, missing)) if missing else added
        target, weight = self._ended(model, hashed)
        return added, weight + self._automata.weight(target, FINAL)
