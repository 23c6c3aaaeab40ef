"""`NGrams`: a language model with back-off, and the automaton that gives its scores exactly."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pybeam.automata.automaton import NOWHERE, Automaton

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
# log10 of an unknown word's probability where a model does not know the word, as in KenLM
MISSING = -100.0
LN10 = math.log(10.0)
ROOT = 0
NO_WORD = -2  # the word of a token that is none, such as EOS


class Order(NamedTuple):
    """The n-grams of one length. Numbers are log10, as files have them."""

    gram: np.ndarray  # [n, k] int32, words
    log_prob: np.ndarray  # [n] float32, of the last word behind the others
    back_off: np.ndarray  # [n] float32, added where a longer n-gram is missing


class NGrams(NamedTuple):
    """A language model with back-off (Katz 1987)::

        log p(w | c) = log_prob(c w)                   if the n-gram c w is there
                       back_off(c) + log p(w | c')     otherwise, with c' = c without its first word

    Words that the model lacks are `<unk>`.
    """

    words: list[str]
    orders: list[Order]  # of 1 to N words

    def __repr__(self) -> str:
        counts = " + ".join(f"{len(order.gram):,}" for order in self.orders)
        return f"NGrams({len(self.words):,} words, {counts} n-grams)"

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: i for i, word in enumerate(self.words)}

    @property
    def has_unknown_in_ngrams(self) -> bool:
        """Whether an n-gram of two words or more holds `<unk>`."""
        unknown = self.numbers.get(UNKNOWN, NO_WORD)
        return any(bool((order.gram == unknown).any()) for order in self.orders[1:])

    def automaton(self, word_of: np.ndarray, weight: float = 1.0) -> Automaton:
        """Return the automaton whose weights are ``weight * log p``, in nats, `</s>` at the end.

        States are the contexts that differ. A context without longer n-grams and without back-off is the
        shorter one. So weights of an output sum to what KenLM gives the sentence between `<s>` and `</s>`.

        Args:
            word_of: [V] int32, the word that each token is; -1: one that the model lacks; -2: none, such as
                EOS. A token that is none, and one from V on, has the back-off of an unknown word, and no
                n-gram with it.
            weight: factor of all weights.

        Raises:
            ValueError: the model has an n-gram without the n-gram before its last word, or the automaton
                would have too many states.
        """
        return _Contexts(self).automaton(word_of, LN10 * weight)


class _Contexts:
    """The n-grams as a tree: node 0 is the empty one, and node e + 1 is n-gram e, in the order of its key.

    The key of an n-gram is the node of all but its last word, times the number of words, plus that word.
    Nodes are numbered by length and then by key, so keys ascend over all lengths.
    """

    def __init__(self, model: NGrams) -> None:
        self._index, self._num_words = model.numbers, len(model.words)
        self._key = np.zeros(0, dtype=np.int64)
        log_probs, back_offs, starts = [], [np.zeros(1)], [0, 1]
        for order in model.orders:
            key = self._keys_of(order, model.words)
            by_key = np.argsort(key, kind="stable")
            self._key = np.concatenate([self._key, key[by_key]])
            log_probs.append(order.log_prob[by_key].astype(np.float64))
            back_offs.append(order.back_off[by_key].astype(np.float64))
            starts.append(starts[-1] + len(key))
        self._log_prob, self._back_off = np.concatenate(log_probs), np.concatenate(back_offs)
        self._starts = starts  # the first node of each length, then the number of nodes
        self._parent, self._word = self._key // self._num_words, self._key % self._num_words
        if (np.diff(self._key) == 0).any():
            raise ValueError("a language model must have each n-gram once, but has one twice")

    def _keys_of(self, order: Order, words: list[str]) -> np.ndarray:
        node = np.zeros(len(order.gram), dtype=np.int64)
        for column in order.gram.T[:-1]:
            node = self._child(node, column)
            if (node == NOWHERE).any():
                gram = " ".join(words[i] for i in order.gram[int(np.argmin(node))])
                raise ValueError(
                    f"a language model must have the beginning of each n-gram, but lacks that of {gram!r}"
                )
        return node * self._num_words + order.gram[:, -1]

    def _child(self, node: np.ndarray, word: np.ndarray) -> np.ndarray:
        """The nodes [n] that words [n] lead to; -1 where there is none, or no node."""
        key = node * self._num_words + word
        place = np.searchsorted(self._key, key)
        is_there = (self._key[np.minimum(place, len(self._key) - 1)] == key) & (node != NOWHERE)
        return np.where(is_there, place + 1, NOWHERE)

    def _node_of(self, word: str) -> int:
        number = self._index.get(word, NOWHERE)
        if number == NOWHERE:
            return NOWHERE
        return int(self._child(np.array([ROOT]), np.array([number]))[0])

    def _suffixes(self) -> np.ndarray:
        """[nodes], the longest suffix of each node that is a node; the root's is the root."""
        suffix = np.zeros(len(self._key) + 1, dtype=np.int64)
        for first, end in zip(self._starts[2:-1], self._starts[3:], strict=True):
            edge = np.arange(first - 1, end - 1)
            shorter = suffix[self._parent[edge]]
            found = self._child(shorter, self._word[edge])
            # the root is the suffix where not even the last word is there
            while (is_open := (found == NOWHERE) & (shorter != ROOT)).any():
                shorter[is_open] = suffix[shorter[is_open]]
                found[is_open] = self._child(shorter[is_open], self._word[edge[is_open]])
            suffix[first:end] = np.where(found == NOWHERE, ROOT, found)
        return suffix

    def automaton(self, word_of: np.ndarray, factor: float) -> Automaton:
        num_nodes, longest = len(self._key) + 1, self._starts[-2]
        suffix = self._suffixes()
        is_state = self._back_off != 0
        is_state[self._parent] = True
        is_state[longest:] = False
        is_state[ROOT] = True
        state = np.cumsum(is_state) - 1
        for first, end in zip(self._starts[1:-1], self._starts[2:], strict=True):
            own = np.arange(first, end)[~is_state[first:end]]
            state[own] = state[suffix[own]]
        nodes = np.flatnonzero(is_state)
        failure = state[suffix[nodes]]
        failure[ROOT] = NOWHERE
        other_weight = self._back_off[nodes]
        other = np.full(len(nodes), NOWHERE)
        unknown = self._node_of(UNKNOWN)
        other[ROOT] = ROOT if unknown == NOWHERE else state[unknown]
        other_weight[ROOT] = MISSING if unknown == NOWHERE else self._log_prob[unknown - 1]
        edge, token = self._edges_of(word_of)
        begin = self._node_of(BEGIN)
        return Automaton.build(
            factor * self._ends(nodes, failure),
            source=state[self._parent[edge]],
            token=token,
            target=state[np.arange(1, num_nodes)][edge],
            weight=factor * self._log_prob[edge],
            failure=failure,
            other=other,
            other_weight=factor * other_weight,
            start=0 if begin == NOWHERE else int(state[begin]),
            allows_cuts=True,
        )

    def _edges_of(self, word_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The edges [E] between nodes, once for every token [E] that is the edge's word."""
        unknown = self._index.get(UNKNOWN, NOWHERE)
        word = np.where(word_of == NOWHERE, unknown, word_of)
        tokens = np.argsort(word, kind="stable")
        first = np.searchsorted(word[tokens], np.arange(self._num_words + 1))
        count = np.diff(first)[self._word]
        # other tokens lead where an unknown word leads behind nothing
        count[(self._word == unknown) & (self._parent == ROOT)] = 0
        edge = np.repeat(np.arange(len(self._key)), count)
        place = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count)
        return edge, tokens[first[self._word[edge]] + place]

    def _ends(self, nodes: np.ndarray, failure: np.ndarray) -> np.ndarray:
        """[states], log10 of the probability of `</s>`."""
        end = self._index.get(END, NOWHERE)
        if end == NOWHERE:
            return np.zeros(len(nodes))
        found = self._child(nodes, np.full(len(nodes), end))
        ends = np.where(found == NOWHERE, 0.0, self._log_prob[np.maximum(found - 1, 0)])
        for first, last in zip(self._starts[:-2], self._starts[1:-1], strict=True):
            some = np.arange(*np.searchsorted(nodes, [first, last]))
            some = some[found[some] == NOWHERE]
            shorter = np.where(failure[some] == NOWHERE, MISSING, ends[failure[some]])
            ends[some] = self._back_off[nodes[some]] + shorter
        return ends
