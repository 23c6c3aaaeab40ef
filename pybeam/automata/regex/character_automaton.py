"""Deterministic automata over characters."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from pybeam.automata.automaton import NOWHERE


@dataclass(frozen=True, eq=False)
class CharacterAutomaton:
    """The smallest deterministic automaton of a language. State 0 is the start, and every state can end.

    Attributes:
        class_of: [0x110000] int32, the class of each character, from 1 on; 0: no output has the character.
        target: [F, classes + 1] int32, the state behind a character of each class; -1: nowhere. Class 0 is
            no character: its target is the state itself.
        accepts: [F] bool, whether a text may end there.
    """

    class_of: np.ndarray
    target: np.ndarray
    accepts: np.ndarray

    @classmethod
    def smallest(
        cls, class_of: np.ndarray, target: np.ndarray, accepts: np.ndarray
    ) -> CharacterAutomaton:
        """Leave out states without an end, and merge those behind which the same texts may follow.

        Raises ValueError if no text is accepted.
        """
        source, character = np.nonzero(target != NOWHERE)
        into: list[list[tuple[int, int]]] = [[] for _ in target]  # (class, source) of each target
        for s, c, t in zip(
            source.tolist(), character.tolist(), target[source, character].tolist(), strict=True
        ):
            into[t].append((c, s))
        lives = set(np.flatnonzero(accepts).tolist())
        todo = list(lives)
        while todo:
            for _, s in into[todo.pop()]:
                if s not in lives:
                    lives.add(s)
                    todo.append(s)
        if 0 not in lives:
            raise ValueError("`pattern` must match some text, but matches none")
        block = _blocks([[(c, s) for c, s in one if s in lives] for one in into], accepts, lives)
        # the start is first
        first: dict[int, int] = {}
        for s in sorted(lives):
            first.setdefault(block[s], s)
        numbers = {one: i for i, one in enumerate(first)}
        # the last number is that of nowhere
        number = np.full(len(target) + 1, NOWHERE, dtype=np.int32)
        for s in lives:
            number[s] = numbers[block[s]]
        states = np.array(list(first.values()))
        merged = number[target[states]]
        merged[:, 0] = np.arange(len(states))
        return cls(class_of, merged, accepts[states])


def _blocks(
    into: list[list[tuple[int, int]]], accepts: np.ndarray, lives: set[int]
) -> dict[int, int]:
    """Return the block of each state: the coarsest that no character tells apart (Hopcroft 1971)."""
    ends = {s for s in lives if accepts[s]}
    blocks = [one for one in (ends, lives - ends) if one]
    block = {s: i for i, one in enumerate(blocks) for s in one}
    todo = set(range(len(blocks)))
    while todo:
        sources: dict[int, set[int]] = defaultdict(set)
        for t in blocks[todo.pop()]:
            for c, s in into[t]:
                sources[c].add(s)
        for reaching in sources.values():
            split: dict[int, set[int]] = defaultdict(set)
            for s in reaching:
                split[block[s]].add(s)
            for i, part in split.items():
                if len(part) == len(blocks[i]):
                    continue
                rest = blocks[i]
                rest -= part
                # of a block that waits both parts wait now, of another one the smaller part is enough
                blocks[i], new = (rest, part) if len(part) <= len(rest) else (part, rest)
                blocks.append(new)
                block.update(dict.fromkeys(new, len(blocks) - 1))
                todo.add(len(blocks) - 1)
    return block
