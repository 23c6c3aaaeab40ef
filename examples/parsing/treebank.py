"""Read dependency trees, and turn trees into derivations and back, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SHIFT, LEFT, RIGHT = range(3)

Action = tuple[int, str]  # a kind and, for an arc, its relation


class Sentence(NamedTuple):
    """A sentence with words 1 to n. Number 0 is the root, the head of exactly one word.

    A sentence to be parsed has neither heads nor relations.
    """

    words: list[str]
    upos: list[str]
    xpos: list[str]
    heads: Sequence[int] = ()  # head of every word, 0 to n
    # relation of every word to its head, without subtypes, as the evaluation of CoNLL 2018 compares them
    relations: Sequence[str] = ()


def read(path: Path) -> list[Sentence]:
    """Read the sentences of a CoNLL-U file. Parts of a multiword token are words, empty nodes are not."""
    sentences = []
    for block in path.read_text("utf-8").strip().split("\n\n"):
        lines = [line.split("\t") for line in block.splitlines() if not line.startswith("#")]
        lines = [line for line in lines if line[0].isdecimal()]
        columns = [list(column) for column in zip(*lines, strict=True)]
        heads = [int(head) for head in columns[6]]
        relations = [relation.partition(":")[0] for relation in columns[7]]
        sentences.append(Sentence(columns[1], columns[3], columns[4], heads, relations))
    return sentences


def is_projective(heads: Sequence[int]) -> bool:
    """Whether no two arcs cross, the arc from the root included."""
    arcs = [tuple(sorted(arc)) for arc in enumerate(heads, 1)]
    return not any(a < c < b < d for a, b in arcs for c, d in arcs)


def derivation(sentence: Sentence) -> list[Action]:
    """Return the 2n actions that build a projective tree (arc-hybrid).

    With the stack s and the buffer b: SHIFT pushes b0. LEFT makes s0 a dependent of b0, RIGHT makes it
    a dependent of s1, and both pop s0. A word gets its head as soon as it has all of its own dependents.

    Raises:
        ValueError: arcs cross.

    See Kuhlmann, Gómez-Rodríguez and Satta 2011.
    """
    num_words = len(sentence.heads)
    head = [-1, *sentence.heads]
    missing = [0] * (num_words + 1)  # dependents that a word still needs
    for h in sentence.heads:
        missing[h] += 1
    stack, first, actions = [0], 1, []
    while first <= num_words or len(stack) > 1:
        top = stack[-1]
        kind = SHIFT
        if top and not missing[top]:
            if head[top] == first:
                kind = LEFT
            elif head[top] == stack[-2] and (head[top] or first > num_words):
                kind = RIGHT
        if kind == SHIFT:
            if first > num_words:
                raise ValueError("`sentence` must be projective, but arcs cross")
            stack.append(first)
            first += 1
            actions.append((SHIFT, ""))
            continue
        stack.pop()
        missing[head[top]] -= 1
        actions.append((kind, sentence.relations[top - 1]))
    return actions


def tree(num_words: int, actions: list[Action]) -> tuple[list[int], list[str]]:
    """Return the heads and relations that a derivation builds."""
    stack, first = [0], 1
    heads, relations = [0] * num_words, [""] * num_words
    for kind, relation in actions:
        if kind == SHIFT:
            stack.append(first)
            first += 1
            continue
        top = stack.pop()
        heads[top - 1] = first if kind == LEFT else stack[-1]
        relations[top - 1] = relation
    return heads, relations


def num_correct(sentence: Sentence, heads: Sequence[int], relations: Sequence[str]) -> int:
    """Count words with the right head and relation, punctuation included, as LAS does."""
    of_words = zip(heads, relations, sentence.heads, sentence.relations, strict=True)
    return sum((head, own) == (gold, right) for head, own, gold, right in of_words)
