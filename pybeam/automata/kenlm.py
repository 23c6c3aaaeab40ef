"""Read language models in KenLM's binary form: its probing hash tables, and its tries without quantisation.

The layout is that of format version 5 (Heafield 2011, "KenLM: Faster and Smaller Language Model Queries").
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pybeam.automata.ngrams import NGrams, Order

MAGIC = b"mmap lm http://kheafield.com/code format version 5\n\0"
ANY_VERSION = b"mmap lm http://kheafield.com/code"
# tests of byte order and sizes that stand behind the magic bytes
SANITY = struct.pack("<fffIIIQ", 0.0, 1.0, -0.5, 1, 2**32 - 1, 0, 1)
FIXED = struct.Struct("<BxxxfiBxxxI")  # order, buckets per entry, kind, has words, version
PROBING, TRIE = 0, 2
KINDS = [
    "probing hash tables",
    "probing hash tables with rest costs",
    "a trie",
    "a quantised trie",
    "a trie with compressed pointers",
    "a quantised trie with compressed pointers",
]
MOST_ORDERS = 12
WEIGHTS = np.dtype([("log_prob", "<f4"), ("back_off", "<f4")])
UNIGRAM = np.dtype([*WEIGHTS.descr, ("next", "<u8")])
MIDDLE = np.dtype([("key", "<u8"), *WEIGHTS.descr])
LONGEST = np.dtype([("key", "<u8"), ("log_prob", "<f4")])
WORD_BYTES = 12  # of an entry of the table of words
# of a hash of words
TIMES_HASH, TIMES_WORD = np.uint64(8978948897894561157), np.uint64(17894857484156487943)
# n-grams that are tried at a time, and in all
MOST_PAIRS, MOST_TRIED = 1 << 22, 20_000_000_000
# places of a table that are looked at for one n-gram; KenLM's tables are two thirds full
MOST_PLACES = 1000
PROB_BITS, BACK_OFF_BITS = 31, 32
SIGN = np.uint32(1 << 31)


def is_kenlm(path: Path) -> bool:
    """Whether a file begins as KenLM's binary files do."""
    with path.open("rb") as file:
        return file.read(len(ANY_VERSION)) == ANY_VERSION


def read_kenlm(path: Path) -> NGrams:
    """Read a binary file that KenLM's build_binary has written, with its words.

    A trie is read as it lies there. Hash tables do not say which words an n-gram has; so each n-gram that
    could be there, as the shorter ones are there, is looked up.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is of another version or kind, is cut, or has no words.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if not size:
            raise ValueError(f"{path} must be a language model of KenLM, but is empty")
        content = np.frombuffer(
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8
        )
    header = _read_header(path, content)
    parts = _Parts(path, content, header.size)
    read = _read_probing if header.kind == PROBING else _read_trie
    orders = read(parts, header)
    return NGrams(_read_words(parts, len(orders[0].gram)), orders)


class _Header(NamedTuple):
    kind: int
    per_entry: float  # buckets
    counts: list[int]  # n-grams of each length
    size: int  # bytes


class _Parts:
    """A file's parts, one after another."""

    def __init__(self, path: Path, content: np.ndarray, at: int) -> None:
        self.path, self._content, self._at = path, content, at

    def take(self, num_bytes: int) -> np.ndarray:
        """The next bytes."""
        if self._at + num_bytes > len(self._content):
            raise ValueError(
                f"{self.path} must have {self._at + num_bytes:,} bytes or more by its header, but has "
                f"{len(self._content):,}; copy the file again"
            )
        self._at += num_bytes
        return self._content[self._at - num_bytes : self._at]

    def records(self, dtype: np.dtype, num: int) -> np.ndarray:
        return self.take(num * dtype.itemsize).view(dtype)

    def rest(self) -> bytes:
        return self._content[self._at :].tobytes()


def _read_header(path: Path, content: np.ndarray) -> _Header:
    remedy = "build the file again from its ARPA file, or give the ARPA file"
    # the string of the magic bytes ends in a second zero
    begin = _aligned(len(MAGIC) + 1)
    end = begin + len(SANITY)
    start = content[:end].tobytes()
    if start[: len(MAGIC)] != MAGIC or start[begin:] != SANITY:
        raise ValueError(f"{path} must be of KenLM's binary version 5 and little-endian; {remedy}")
    fixed = content[end : end + FIXED.size].tobytes()
    if len(fixed) < FIXED.size:
        raise ValueError(f"{path} ends within its header; {remedy}")
    order, per_entry, kind, has_words, _ = FIXED.unpack(fixed)
    if kind not in (PROBING, TRIE):
        known = KINDS[kind] if 0 <= kind < len(KINDS) else f"number {kind}"
        raise ValueError(
            f"{path} must be of probing hash tables or a plain trie, but is of {known}; {remedy}"
        )
    if not has_words:
        raise ValueError(f"{path} must hold its words; {remedy}, with words")
    if not 2 <= order <= MOST_ORDERS or not 1.0 < per_entry < 100.0:
        raise ValueError(f"{path} has no sound header; {remedy}")
    at = end + FIXED.size
    counts = content[at : at + 8 * order]
    if len(counts) < 8 * order or (counts.view("<u8") > len(content)).any():
        raise ValueError(f"{path} has no sound header; {remedy}")
    return _Header(kind, per_entry, counts.view("<u8").tolist(), _aligned(at + 8 * order))


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def _read_words(parts: _Parts, num: int) -> list[str]:
    *words, _ = parts.rest().split(b"\0")
    if len(words) != num:
        raise ValueError(f"{parts.path} must have {num:,} words, but has {len(words):,}")
    return [word.decode("utf-8", "surrogateescape") for word in words]


def _read_trie(parts: _Parts, header: _Header) -> list[Order]:
    """Each node of the trie leads to the word before."""
    counts = header.counts
    num_words = counts[0]
    parts.take(8 + 8 * num_words)  # hashes of words
    unigrams = parts.records(UNIGRAM, num_words + 2)
    word_bits = num_words.bit_length()
    gram = np.arange(num_words, dtype=np.int32)[:, None]
    weights = unigrams[:num_words]
    orders = [Order(gram, _negative(weights["log_prob"]), weights["back_off"].copy())]
    first = unigrams["next"][: num_words + 1]
    for k, count in enumerate(counts[1:], 2):
        is_longest = k == len(counts)
        next_bits = 0 if is_longest else counts[k].bit_length()
        bits = word_bits + PROB_BITS + (0 if is_longest else BACK_OFF_BITS + next_bits)
        packed = _Packed(parts.take(((1 + count) * bits + 7) // 8 + 8), bits)
        # differences of unsound numbers could overflow
        if first[0] != 0 or first[-1] != count or (first[1:] < first[:-1]).any():
            raise ValueError(
                f"{parts.path} is no sound trie: its {k}-grams do not follow one another"
            )
        word = packed.field(count, 0, word_bits).astype(np.int32)
        if count and not 0 <= int(word.max()) < num_words:
            raise ValueError(f"{parts.path} is no sound trie: it has a word {int(word.max()):,}")
        counts_of_parents: np.ndarray = np.diff(first.astype(np.int64))
        gram = np.column_stack([word, np.repeat(gram, counts_of_parents, 0)])
        log_prob = packed.field(count, word_bits, PROB_BITS).astype(np.uint32) | SIGN
        back_off = np.zeros(count, dtype=np.float32)
        if not is_longest:
            at = word_bits + PROB_BITS
            back_off = packed.field(count, at, BACK_OFF_BITS).astype(np.uint32).view(np.float32)
            first = packed.field(count + 1, at + BACK_OFF_BITS, next_bits)
        orders.append(Order(gram, log_prob.view(np.float32), back_off))
    return orders


class _Packed:
    """Records of some bits each, without bytes between them."""

    def __init__(self, content: np.ndarray, bits: int) -> None:
        # a word of 8 bytes from every byte on
        self._words = np.ndarray(len(content) - 7, "<u8", content, strides=(1,))
        self._bits = bits

    def field(self, num: int, at: int, size: int) -> np.ndarray:
        """Bits `at` to ``at + size`` of the first `num` records."""
        bit = np.arange(num, dtype=np.int64) * self._bits + at
        shift = (bit & 7).astype(np.uint64)
        return self._words[bit >> 3] >> shift & np.uint64((1 << size) - 1)


def _negative(log_prob: np.ndarray) -> np.ndarray:
    # hash tables keep a flag in the sign
    return -np.abs(log_prob)


def _read_probing(parts: _Parts, header: _Header) -> list[Order]:
    counts = header.counts
    parts.take(4)  # version
    num_words = int(parts.take(4).view("<u4")[0])
    if not 0 < num_words <= counts[0] + 1:
        raise ValueError(f"{parts.path} must have {counts[0]:,} words, but has {num_words:,}")
    parts.take(WORD_BYTES * _buckets(counts[0], header.per_entry))
    weights = parts.records(WEIGHTS, counts[0] + 1)[:num_words]
    word = np.arange(num_words, dtype=np.uint64)
    level = _Level(word.astype(np.int32)[:, None], word)
    orders = [Order(level.gram, _negative(weights["log_prob"]), weights["back_off"].copy())]
    for k, count in enumerate(counts[1:], 2):
        dtype = LONGEST if k == len(counts) else MIDDLE
        table = parts.records(dtype, _buckets(count, header.per_entry))
        num_entries = int((table["key"] != 0).sum())
        level, places = level.longer(table, parts.path)
        if len(places) != num_entries:
            raise ValueError(
                f"{parts.path} has {num_entries:,} {k}-grams, but {len(places):,} of known words and "
                "shorter n-grams; give the ARPA file, or build a trie"
            )
        found = table[places]
        is_longest = k == len(counts)
        back_off = np.zeros(len(found), np.float32) if is_longest else found["back_off"].copy()
        orders.append(Order(level.gram, _negative(found["log_prob"]), back_off))
    return orders


def _buckets(num: int, per_entry: float) -> int:
    return max(num + 1, int(np.float32(per_entry) * np.float32(num)))


class _Level:
    """The n-grams of one length, and the hash of each, which begins with its last word."""

    def __init__(self, gram: np.ndarray, key: np.ndarray) -> None:
        self.gram, self._key = gram, key

    def longer(self, table: np.ndarray, path: Path) -> tuple[_Level, np.ndarray]:
        """The n-grams with one word more that a table has, and their places in the table.

        The first words of each, and its last words, are n-grams of this length.
        """
        grams, keys, places = [], [], []
        own = self._key * TIMES_HASH
        for begin, last in self._pairs(path):
            first_word = self.gram[begin, 0]
            key = own[last] ^ (first_word.astype(np.uint64) + np.uint64(1)) * TIMES_WORD
            place = _places_of(table["key"], key, path)
            found = np.flatnonzero(place >= 0)
            grams.append(np.column_stack([first_word[found], self.gram[last[found]]]))
            keys.append(key[found])
            places.append(place[found])
        return _Level(np.concatenate(grams), np.concatenate(keys)), np.concatenate(places)

    def _pairs(self, path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """N-grams and those that may overlap them: all but the first word of one, all but the last."""
        size = self.gram.shape[1] - 1
        both = np.concatenate([self.gram[:, 1:], self.gram[:, :-1]])
        group = np.zeros(len(both), dtype=np.int64)
        if size:
            _, group = np.unique(both, axis=0, return_inverse=True)
            group = group.reshape(-1)
        begin_group, last_group = np.split(group, 2)
        by_group = np.argsort(begin_group, kind="stable")
        first = np.searchsorted(begin_group[by_group], last_group)
        count = np.searchsorted(begin_group[by_group], last_group, side="right") - first
        tried = np.cumsum(count)
        if tried[-1] > MOST_TRIED:
            raise ValueError(
                f"{path} must be read from hash tables with {tried[-1]:,} trials, but at most "
                f"{MOST_TRIED:,} are made; give the ARPA file, or build a trie"
            )
        start = 0
        while start < len(count):
            # at least one, however many it may overlap
            before = tried[start - 1] if start else 0
            end = max(start + 1, int(np.searchsorted(tried, before + MOST_PAIRS)))
            some = count[start:end]
            last = np.repeat(np.arange(start, end), some)
            place = np.arange(len(last)) - np.repeat(np.cumsum(some) - some, some)
            yield by_group[first[last] + place], last
            start = end


def _places_of(table: np.ndarray, key: np.ndarray, path: Path) -> np.ndarray:
    """Where keys [n] are in a table of linear probing; -1: not there."""
    size = np.uint64(len(table))
    place = (key % size).astype(np.int64)
    result = np.full(len(key), -1, dtype=np.int64)
    open_ = np.arange(len(key))
    for _ in range(MOST_PLACES):
        held = table[place]
        is_found = held == key[open_]
        result[open_[is_found]] = place[is_found]
        goes_on = ~is_found & (held != 0)
        if not goes_on.any():
            return result
        open_, place = open_[goes_on], (place[goes_on] + 1) % len(table)
    raise ValueError(
        f"{path} must have an empty place among {MOST_PLACES:,} of a table of n-grams, but has none; give "
        "the ARPA file"
    )
