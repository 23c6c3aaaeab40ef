"""Read constituency trees, make derivations of trees and back, and count brackets as EVALB does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SHIFT, COMBINE, NAME = range(3)
# EVALB leaves out these tags (COLLINS.prm), and takes two labels for one
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
SAME = {"PRT": "ADVP"}
TRACE = "-NONE-"
# tags of one kind begin alike, as NN, NNS and NNP do
KIND_LETTERS = 2

Span = tuple[int, int]  # words from a number on, up to another one
Action = tuple[int, str]  # a kind and, for NAME, the label or nothing


class Tree(NamedTuple):
    """Words with what their tags begin with and their tags, and what spans are called.

    The labels of a span are joined by `+`, the outermost first.
    """

    words: list[str]
    upos: list[str]
    xpos: list[str]
    labels: dict[Span, str]


def read(text: str) -> list[Tree]:
    """Read trees in brackets, without traces, functions of labels (NP-SBJ, NP=2) and what is empty then.

    Raises:
        ValueError: a bracket is missing.
    """
    trees: list[Tree] = []
    # of every open bracket: its label and its first word
    opened: list[tuple[str, int]] = []
    tree = Tree([], [], [], {})
    for bracket, label, tag, word in re.findall(
        r"(\)|\((?=\s*\())|\(([^\s()]+)(?=\s*\()|\(([^\s()]+)\s+([^\s()]+)\s*\)", text
    ):
        if tag:
            if tag != TRACE:
                tree.words.append(word)
                tree.upos.append(tag[:KIND_LETTERS])
                tree.xpos.append(tag)
        elif bracket != ")":
            opened.append((_without_function(label), len(tree.words)))
        else:
            if not opened:
                raise ValueError("`text` has a bracket that closes nothing; give whole trees")
            label, first = opened.pop()
            span = first, len(tree.words)
            if label and span[0] < span[1]:
                inner = tree.labels.get(span)
                tree.labels[span] = f"{label}+{inner}" if inner else label
            if not opened:
                trees.append(tree)
                tree = Tree([], [], [], {})
    if opened:
        raise ValueError("`text` ends in a tree that has not; give whole trees")
    return trees


def _without_function(label: str) -> str:
    return label if label.startswith("-") else re.split("[-=]", label)[0]


def derivation(tree: Tree) -> list[Action]:
    """Return the 4n - 2 actions that build a tree of n words.

    SHIFT puts the next word on a stack of spans, COMBINE joins the two spans on top. Each is followed by
    NAME, with the label of the span on top, or with nothing where the tree has none. Spans are combined as
    soon as they can be. See Cross and Huang 2016.
    """
    num_words = len(tree.words)
    actions, stack = [], []  # first words
    end = 0
    while len(actions) < 4 * num_words - 2:
        begin = stack[-1] if stack else end
        around = [
            (last - first, first)
            for first, last in [*tree.labels, (0, num_words)]
            if first <= begin and end <= last and last - first > end - begin
        ]
        # the smallest span around the one on top begins before it, or with it
        if stack and min(around)[1] < begin:
            stack.pop()
            actions.append((COMBINE, ""))
        else:
            stack.append(end)
            end += 1
            actions.append((SHIFT, ""))
        actions.append((NAME, tree.labels.get((stack[-1], end), "")))
    return actions


def built(actions: Sequence[Action]) -> dict[Span, str]:
    """Return the labels of spans that a derivation gives."""
    stack, end = [], 0
    labels = {}
    for kind, label in actions:
        if kind == SHIFT:
            stack.append(end)
            end += 1
        elif kind == COMBINE:
            stack.pop()
        elif label:
            labels[stack[-1], end] = label
    return labels


def brackets(labels: dict[Span, str], tags: Sequence[str]) -> Counter[tuple[str, int, int]]:
    """Count the labelled brackets that EVALB sees: without punctuation, what is empty then, and TOP."""
    before = [0]  # words that count before each word
    for tag in tags:
        before.append(before[-1] + (tag not in PUNCTUATION))
    found: Counter[tuple[str, int, int]] = Counter()
    for (first, end), chain in labels.items():
        if before[first] < before[end]:
            for label in chain.split("+"):
                found[SAME.get(label, label), before[first], before[end]] += label != "TOP"
    return +found


def counts(tree: Tree, labels: dict[Span, str]) -> tuple[int, int]:
    """Return twice the brackets that are right, and all of both trees: F1 is the one by the other."""
    gold, own = brackets(tree.labels, tree.xpos), brackets(labels, tree.xpos)
    return 2 * (gold & own).total(), gold.total() + own.total()
