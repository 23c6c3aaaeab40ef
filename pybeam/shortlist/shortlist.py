"""`Shortlist`: which target tokens may translate the tokens of a source."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pybeam.arguments import LARGEST_INT32, ArgumentError, flag, ids, real, whole
from pybeam.shortlist import files
from pybeam.shortlist.vocabularies import Vocabularies, named_ids

Grams = tuple[int, ...]
# tokens of a rule; a source is looked through once for each length that rules have
LONGEST_RULE = 16
# lines of a table that are kept until pairs that came again are taken out
FOLDED_LINES = 1 << 22


class Shortlist:
    """Rules that say which target tokens may translate a source.

    `pybeam.shortlist.allowed_translations` puts it into an algorithm. It does not change, and any number of
    decoders and threads may share it. `from_lexical_table` and `from_vmap` read those of Marian and of
    CTranslate2, `load` either. Where they are told the folder of a model, no list holds what its files name
    as start, end or padding. A service of several processes sends a shortlist that a request brings to a
    process whole, with each request, so a large one belongs in the algorithm.

    Args:
        rules: target ids, by the neighbouring source ids that they may translate: one, or up to 16.
        always: target ids that may stand in every output, such as the most frequent ones.
        without: ids that no list holds: EOS, which is allowed anyway, and what no output has, such as the
            start token and padding.

    Raises:
        TypeError, ValueError: something is no token id, or a rule has no source token or too many.
    """

    def __init__(
        self,
        rules: Mapping[Grams, Iterable[int]],
        always: Iterable[int] = (),
        *,
        without: Iterable[int] = (),
    ) -> None:
        self._without = frozenset(ids("without", without))
        self._always = self._listed("always", always)
        self._rules = {
            ids("rules", source): self._listed("rules", own) for source, own in rules.items()
        }
        self._sizes = sorted(set(map(len, self._rules)))
        wrong = [size for size in self._sizes if not 1 <= size <= LONGEST_RULE]
        if wrong:
            raise ValueError(
                f"`rules` must be of 1 to {LONGEST_RULE} source tokens, but one is of {wrong[0]}"
            )
        # all ids of all lists, for checks that each request asks for
        self._every_id = np.unique(np.concatenate((self._always, *self._rules.values())))
        has_any = len(self._every_id) > 0
        self._smallest = int(self._every_id[0]) if has_any else LARGEST_INT32
        self._largest = int(self._every_id[-1]) if has_any else -1

    def _listed(self, name: str, tokens: Iterable[int]) -> np.ndarray:
        """Return ids as they are kept: ascending, each once."""
        return np.array(sorted({*ids(name, tokens)} - self._without), dtype=np.int32)

    def __repr__(self) -> str:
        return f"Shortlist({len(self._rules):,} rules, {len(self._always):,} always)"

    @classmethod
    def load(cls, path: str | os.PathLike[str], vocabularies: Vocabularies) -> Shortlist:
        """Read a file of Marian or of CTranslate2, as `from_lexical_table` or `from_vmap` does by default.

        Args:
            path: a lexical table, or a `vmap.txt`, whose first line has one tab.
            vocabularies: the folder of the model, or the ids of source and of target tokens, by token.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not sound.
        """
        read = cls.from_vmap if files.is_vocabulary_map(path) else cls.from_lexical_table
        return read(path, vocabularies)

    @classmethod
    def from_lexical_table(
        cls,
        path: str | os.PathLike[str],
        vocabularies: Vocabularies,
        first: int = 100,
        best: int = 100,
        *,
        always: Iterable[int] = (),
        least: float = 0.0,
        without: Iterable[int] = (),
        copies: bool = False,
    ) -> Shortlist:
        """Read a lexical table of Marian, such as `lex.s2t.gz`.

        A line is a target token, a source token, and the probability of the target token given that of the
        source. Lines of tokens that a vocabulary lacks, such as NULL, say nothing.

        Args:
            path: a text file; it is unpacked if its name ends in `.gz`.
            vocabularies: the folder of the model, or the ids of source and of target tokens, by token.
            first: ids below this one are always allowed. Vocabularies are often ordered by frequency.
            best: so many target tokens of each source token are kept, the most probable ones.
            least: probabilities must be greater.
            always, without: see `Shortlist`.
            copies: whether a source token may be copied, if the target vocabulary has it. Marian copies where
                both sides have one vocabulary.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not sound, or no line has tokens of the vocabularies.
        """
        whole("first", first, 0)
        whole("best", best, 0)
        real("least", least)
        flag("copies", copies)
        source_ids, target_ids, unwritten = named_ids(vocabularies)
        without = unwritten.union(ids("without", without))
        # 16 bytes a pair, or a line of a few million
        pairs, probabilities, most = array("q"), array("d"), FOLDED_LINES
        for target, source, probability in files.lexical_table(path):
            source_id, target_id = source_ids.get(source), target_ids.get(target)
            if source_id is not None and target_id is not None:
                pairs.append(source_id << 32 | target_id)
                probabilities.append(probability)
                if len(pairs) >= most:
                    pairs, probabilities = _last_of_each(pairs, probabilities)
                    most = max(FOLDED_LINES, 2 * len(pairs))
        if not pairs:
            raise ValueError(
                f"{path} must have lines with tokens of the vocabularies, but has none; is it of this model, "
                "and of this direction?"
            )
        rules = _most_likely(np.array(pairs), np.array(probabilities), best, least, without)
        if copies:
            for token in source_ids.keys() & target_ids.keys():
                rules.setdefault((source_ids[token],), []).append(target_ids[token])
        always = [*ids("always", always), *(one for one in target_ids.values() if one < first)]
        return cls(rules, always, without=without)

    @classmethod
    def from_vmap(
        cls,
        path: str | os.PathLike[str],
        vocabularies: Vocabularies,
        *,
        without: Iterable[int] = (),
    ) -> Shortlist:
        """Read a `vmap.txt` of CTranslate2: lines of source tokens, a tab, and target tokens.

        Rules of tokens that the source vocabulary lacks say nothing, nor do target tokens that are not known.
        The rule of no source token says what is always allowed.

        Args:
            path: the file.
            vocabularies: the folder of the model, or the ids of source and of target tokens, by token.
            without: see `Shortlist`.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not sound.
        """
        source_ids, target_ids, unwritten = named_ids(vocabularies)
        rules: dict[Grams, list[int]] = {}
        for number, source, targets in files.vocabulary_map(path):
            gram = [source_ids.get(token, -1) for token in source.split()]
            if len(gram) > LONGEST_RULE:
                raise ValueError(
                    f"{path}, line {number}: must have at most {LONGEST_RULE} source tokens, but has "
                    f"{len(gram)}"
                )
            if min(gram, default=0) >= 0:
                rules[tuple(gram)] = [target_ids[one] for one in targets if one in target_ids]
        always = rules.pop((), [])
        return cls(rules, always, without=unwritten.union(ids("without", without)))

    def tokens_of(self, source: Sequence[int]) -> list[int]:
        """Return the target ids [n] that may stand in outputs of a source, ascending, without EOS.

        Raises:
            TypeError, ValueError: `source` is no list, array or tensor [S] of token ids.
        """
        return self.listed(source).tolist()

    def listed(self, source: Sequence[int]) -> np.ndarray:
        """Return the tokens of `tokens_of(source)` as an array [n] int32."""
        source, lists = ids("source", source), [self._always]
        for size in self._sizes:
            grams = set(zip(*(source[i:] for i in range(size)), strict=False))
            lists += [self._rules[gram] for gram in grams if gram in self._rules]
        tokens = np.sort(np.concatenate(lists))
        is_first = np.ones(len(tokens), dtype=np.bool_)
        np.not_equal(tokens[1:], tokens[:-1], out=is_first[1:])
        return tokens[is_first]

    def check(self, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """Check whether the lists fit a model.

        Args:
            vocab_size, eos_ids: those of the model.

        Raises:
            ValueError: an id is not in the vocabulary, one is EOS, or the model has several EOS.
        """
        if self._largest >= vocab_size:
            raise ArgumentError(
                "shortlist",
                f"must hold ids of the model's vocabulary, 0 to {vocab_size - 1}, but holds {self._largest}; "
                "is it of this model?",
            )
        if len(eos_ids) > 1:
            raise ArgumentError(
                "shortlist",
                f"needs a model with one EOS, but this one has {list(eos_ids)}; say with `eos_id` which one "
                "counts",
            )
        [eos_id] = eos_ids
        if eos_id in self._every_id:
            raise ArgumentError(
                "shortlist",
                f"must not hold EOS ({eos_id}), which is allowed anyway; make it with `without=[{eos_id}]`",
            )

    def is_behind(self, eos_id: int) -> bool:
        """Whether all ids that a list may hold are greater than `eos_id`."""
        return eos_id < self._smallest

    def is_on_one_side(self, eos_id: int) -> bool:
        """Whether all ids that a list may hold are greater than `eos_id`, or all are less."""
        return self.is_behind(eos_id) or self._largest < eos_id


def _last_of_each(pairs: array[int], probabilities: array[float]) -> tuple[array, array]:
    """Return every pair once, with the probability of its last line."""
    pair, line = np.unique(np.array(pairs)[::-1], return_index=True)
    kept = np.array(probabilities)[::-1][line]
    return array("q", pair.tobytes()), array("d", kept.tobytes())


def _most_likely(
    pairs: np.ndarray, probabilities: np.ndarray, best: int, least: float, without: frozenset[int]
) -> dict[Grams, list[int]]:
    """Return the `best` targets of each source. A pair [L] is ``source << 32 | target``."""
    # the last line of a pair counts
    pair, line = np.unique(pairs[::-1], return_index=True)
    probability, source, target = probabilities[::-1][line], pair >> 32, pair & LARGEST_INT32
    likely = (probability > least) & ~np.isin(target, list(without))
    probability, source, target = probability[likely], source[likely], target[likely]
    # of equally probable ones Marian prefers the larger id
    order = np.lexsort((-target, -probability, source))
    source, target = source[order], target[order]
    found, first = np.unique(source, return_index=True)
    own = np.split(target, first[1:])
    return {
        (one,): targets[:best].tolist() for one, targets in zip(found.tolist(), own, strict=False)
    }
