"""Automata of sequences of words, each spelt by tokens (Mohri, Pereira and Riley 2002)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pybeam.automata.automaton import Automaton
from pybeam.automata.vocabulary import Vocabulary
from pybeam.text.tokenizer import Tokenizer

MAX_EDGES = 2**26
ROOT, FIRST = 0, 1

Spelling = Sequence[int]
Children = dict[int, int]


def lexicon_automaton(words: Iterable[Spelling], first: Iterable[Spelling] = ()) -> Automaton:
    """Return the automaton of all outputs that are words one behind another, or none.

    The words form a tree with equal ends shared. Behind each word the tree begins anew, so a state is a set
    of places in the tree: where one word begins another, both the longer one and a new one may go on.

    Args:
        words: the tokens of each word.
        first: those of words that an output may begin with besides.

    Raises:
        ValueError: there is no word, a word has no tokens, or there are too many edges.
    """
    tree = _Tree()
    for kind, spellings in ((ROOT, words), (FIRST, first)):
        for spelling in spellings:
            tree.add(kind, spelling)
    if not tree.has_words:
        raise ValueError("`words` must have at least one word, but has none")
    return _Walk(*tree.shared()).automaton()


class SpeltWords(NamedTuple):
    """How words are spelt behind others, and how besides where an output begins."""

    words: Sequence[Spelling]
    first: Sequence[Spelling]

    @classmethod
    def of(cls, words: Iterable[str], tokenizer: Tokenizer) -> SpeltWords:
        """Spell words as a tokenizer does between spaces.

        Raises:
            ValueError: the tokenizer has no tokens for a word.
        """
        vocabulary = Vocabulary.of(tokenizer)
        behind: list[Spelling] = []
        first: list[Spelling] = []
        for word in words:
            ids = tokenizer.encode_target(word)
            if not _text(vocabulary, ids, word).startswith(b" "):
                # where texts begin, no space is written
                first.append(ids)
                ids = tokenizer.encode_target(f" {word}")
                _text(vocabulary, ids, word)
            behind.append(ids)
        return cls(behind, first)


def _text(vocabulary: Vocabulary, ids: Sequence[int], word: str) -> bytes:
    """Return the text of a word behind another one."""
    texts = [vocabulary.tokens[token] for token in ids]
    if None in texts or not ids:
        raise ValueError(f"`words` must be words that the tokenizer can spell, but has {word!r}")
    return b"".join(text for text in texts if text is not None)


class _Tree:
    """Two trees in one list: of all words, and of words at the beginning."""

    def __init__(self) -> None:
        self._children: list[Children] = [{}, {}]
        self._ends = [False, False]

    @property
    def has_words(self) -> bool:
        return bool(self._children[ROOT])

    def add(self, node: int, spelling: Spelling) -> None:
        if not len(spelling):
            raise ValueError("`words` must be spelt by tokens, but a spelling has none")
        for token in spelling:
            behind = self._children[node].setdefault(token, len(self._ends))
            if behind == len(self._ends):
                self._children.append({})
                self._ends.append(False)
            node = behind
        self._ends[node] = True

    def shared(self) -> tuple[list[Children], list[bool]]:
        """Return the children of nodes and whether words end there, nodes that are alike being one."""
        numbers: dict[Any, int] = {}
        number = [0] * len(self._ends)
        children: list[Children] = [{}, {}]
        ends = [False, False]
        # children stand behind their parents
        for node in reversed(range(len(self._ends))):
            own = {token: number[child] for token, child in self._children[node].items()}
            if node in (ROOT, FIRST):
                children[node] = own
                continue
            key = self._ends[node], frozenset(own.items())
            number[node] = numbers.setdefault(key, len(ends))
            if number[node] == len(ends):
                children.append(own)
                ends.append(self._ends[node])
        return children, ends


class State(NamedTuple):
    """Where an output may be."""

    within: frozenset[int]  # nodes of words that have begun
    is_between: bool  # whether a word may begin, or the output end


class _Walk:
    def __init__(self, children: list[Children], ends: list[bool]) -> None:
        self._children, self._ends = children, ends
        self._numbers: dict[State, int] = {}
        self._todo: deque[State] = deque()
        root = children[ROOT]
        self._tokens = np.array(sorted(root), dtype=np.int64)
        start = State(frozenset([FIRST] if children[FIRST] else []), True)
        self._number(start)
        self._targets = np.array(
            [self._number(self._state([root[token]])) for token in self._tokens.tolist()],
            dtype=np.int64,
        )

    def automaton(self) -> Automaton:
        first, tokens, targets, is_final = [0], [], [], []
        while self._todo:
            state = self._todo.popleft()
            token, target = self._edges(state)
            tokens.append(token)
            targets.append(target)
            first.append(first[-1] + len(token))
            is_final.append(state.is_between)
            if first[-1] > MAX_EDGES:
                raise ValueError(
                    f"`words` must need at most {MAX_EDGES:,} edges of an automaton, but need more; leave "
                    "out rare words"
                )
        source = np.repeat(np.arange(len(is_final)), np.diff(first))
        return Automaton.build(
            np.array(is_final),
            source=source,
            token=np.concatenate(tokens),
            target=np.concatenate(targets),
        )

    def _number(self, state: State) -> int:
        if state not in self._numbers:
            self._numbers[state] = len(self._numbers)
            self._todo.append(state)
        return self._numbers[state]

    def _state(self, nodes: list[int]) -> State:
        within = frozenset(node for node in nodes if self._children[node])
        return State(within, any(self._ends[node] for node in nodes))

    def _edges(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        behind: dict[int, list[int]] = defaultdict(list)
        for node in state.within:
            for token, child in self._children[node].items():
                behind[token].append(child)
        root = self._children[ROOT] if state.is_between else {}
        for token, nodes in behind.items():
            if token in root:
                nodes.append(root[token])
        tokens = np.fromiter(behind, dtype=np.int64, count=len(behind))
        targets = np.array(
            [self._number(self._state(nodes)) for nodes in behind.values()], np.int64
        )
        if not root:
            return tokens, targets
        # what begins a word, and goes on with none
        is_other = ~np.isin(self._tokens, tokens)
        return (
            np.concatenate([tokens, self._tokens[is_other]]),
            np.concatenate([targets, self._targets[is_other]]),
        )
