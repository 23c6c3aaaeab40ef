"""An automaton of outputs that contain phrases: Aho and Corasick's, and how often each phrase was met."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pybeam.automata.automaton import Automaton
from pybeam.automata.kept import Kept

ROOT = 0
MAX_EDGES = 1 << 22
_KEPT = Kept(64, 1 << 27)

Phrase = tuple[int, ...]
# the spellings of a phrase, any of which will do
Spellings = tuple[Phrase, ...]


def phrases_automaton(phrases: Sequence[Spellings], most: int = MAX_EDGES) -> Automaton:
    """Build the automaton of all outputs in which each phrase ends at least as often as it is in the list.

    Occurrences may overlap, and one may lie in another: the tokens 1 2 3 contain both [1, 2] and [2, 3]. A
    state is a node of Aho and Corasick's trie (1975), which is the longest end of the output that a phrase
    begins with, and how often each phrase was met, up to what is asked for. So `Automaton.needed` is exact:
    it counts the fewest tokens in which all that is missing fits, overlaps included. Failures of the trie
    are followed here, because an automaton that has some may end everywhere.

    Args:
        phrases: the spellings of each, lists of tokens, none of them empty. The same phrase may stand in the
            list several times.
        most: edges that the automaton may have. An edge takes 12 bytes. A state takes 24, and has an edge.

    Raises:
        ValueError: there would be more edges. n phrases of T tokens in all, each another one, have about
            ``2**n * T * n``.

    The automata of the last phrases are remembered, in at most 128 MiB.
    """
    distinct = sorted(set(phrases))
    asked = np.array([phrases.count(phrase) for phrase in distinct], dtype=np.int64)
    num_counts = math.prod((asked + 1).tolist())
    # a trie of so many phrases may be larger than any memory
    steps, ends = _trie_of(distinct) if num_counts <= most else ([], [])
    num_edges = num_counts * sum(map(len, steps)) if steps else num_counts
    if num_edges > most:
        # the number itself may have thousands of digits
        found = f"{num_edges:,}" if steps else "more"
        raise ValueError(
            f"`phrases` must need at most {most:,} edges of an automaton, but these {len(phrases)} need "
            f"{found}; ask for fewer phrases, or join those that follow each other"
        )
    return _KEPT.get(tuple(sorted(phrases)), lambda: _automaton(asked, steps, ends))


def _automaton(
    asked: np.ndarray, steps: Sequence[dict[int, int]], ends: Sequence[list[int]]
) -> Automaton:
    """Return the automaton of so many of each phrase [n], and of their trie."""
    num_counts = math.prod((asked + 1).tolist())
    # a state's number is that of its counts, times the nodes of the trie, plus that of its node
    number = np.arange(num_counts)
    stride = np.cumprod([1, *asked[:-1] + 1])[: len(asked)]
    is_missing = number // stride[:, None] % (asked + 1)[:, None] < asked[:, None]  # [n, N]
    nothing = np.zeros(0, dtype=np.int64)
    sources, tokens, targets = [nothing], [nothing], [nothing]
    for node, follows in enumerate(steps):
        for token, target in follows.items():
            met = ends[target]
            more = number + stride[met] @ is_missing[met]
            sources.append(number * len(steps) + node)
            tokens.append(np.full(len(number), token))
            targets.append(more * len(steps) + target)
    return Automaton.build(
        np.repeat(~is_missing.any(0), len(steps)),
        source=np.concatenate(sources),
        token=np.concatenate(tokens),
        target=np.concatenate(targets),
        other=np.repeat(number * len(steps) + ROOT, len(steps)),
    )


def _trie_of(phrases: Sequence[Spellings]) -> tuple[list[dict[int, int]], list[list[int]]]:
    """Return, by node, where tokens lead other than to the root, and the phrases that end there."""
    spellings = sorted({one for phrase in phrases for one in phrase})
    longest = max(map(len, spellings), default=0)
    # by depth, so that what a node fails to stands before it
    texts = [()] + [p[:n] for n in range(1, longest + 1) for p in spellings if len(p) >= n]
    node_of: dict[Phrase, int] = {text: n for n, text in enumerate(dict.fromkeys(texts))}
    children: list[dict[int, int]] = [{} for _ in node_of]
    for text, node in node_of.items():
        if text:
            children[node_of[text[:-1]]][text[-1]] = node
    steps: list[dict[int, int]] = []
    ends: list[list[int]] = []
    for text, node in node_of.items():
        own = [i for i, phrase in enumerate(phrases) if text in phrase]
        if not text:
            steps.append(children[node])
            ends.append(own)
            continue
        failure = next(node_of[text[i:]] for i in range(1, len(text) + 1) if text[i:] in node_of)
        steps.append(steps[failure] | children[node])
        ends.append(sorted({*ends[failure], *own}))
    return steps, ends
