"""Nondeterministic automata over characters, in which parts of patterns are put together."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from pybeam.automata.automaton import NOWHERE
from pybeam.automata.regex.character_automaton import CharacterAutomaton
from pybeam.automata.regex.character_sets import CharacterSet, classes_of

NEWLINE: CharacterSet = ((10, 11),)
MAX_NODES, MAX_CHARACTER_STATES = 200_000, 20_000

Ends = tuple[int, int]  # the node where a part of a pattern begins, and that where it ends


class Guard(Enum):
    """Where a way without a character is open."""

    NONE = auto()
    START = auto()  # ^ and \A
    END = auto()  # \Z
    LAST_LINE = auto()  # $: at the end, and before a newline that ends the text


class Ahead(Enum):
    """The promise of a guard about the rest of the text."""

    ANYTHING = auto()
    NEWLINE = auto()
    NOTHING = auto()


Place = tuple[int, Ahead]


@dataclass
class Nfa:
    """Nodes, ways between them with a character of a set, and ways without one."""

    sets: dict[CharacterSet, int] = field(default_factory=dict)
    ways: list[list[tuple[int, int]]] = field(default_factory=list)  # (set, node)
    free: list[list[tuple[Guard, int]]] = field(default_factory=list)

    def node(self) -> int:
        if len(self.ways) == MAX_NODES:
            raise ValueError(
                f"`pattern` must have at most {MAX_NODES:,} parts, each repeat counted, but has more"
            )
        self.ways.append([])
        self.free.append([])
        return len(self.ways) - 1

    def read(self, characters: CharacterSet) -> Ends:
        begin, end = self.node(), self.node()
        self.ways[begin].append((self.sets.setdefault(characters, len(self.sets)), end))
        return begin, end

    def guard(self, guard: Guard) -> Ends:
        if guard is Guard.LAST_LINE:
            self.sets.setdefault(NEWLINE, len(self.sets))
        begin, end = self.node(), self.node()
        self.join(begin, end, guard)
        return begin, end

    def join(self, begin: int, end: int, guard: Guard = Guard.NONE) -> None:
        self.free[begin].append((guard, end))

    def behind(self, place: Place, is_start: bool) -> Iterator[Place]:
        """Yield the places that a place leads to without a character."""
        node, ahead = place
        for guard, target in self.free[node]:
            if guard is Guard.NONE or (guard is Guard.START and is_start):
                yield target, ahead
            elif guard is Guard.END and ahead is not Ahead.NEWLINE:
                yield target, Ahead.NOTHING
            elif guard is Guard.LAST_LINE:
                yield target, Ahead.NOTHING if ahead is Ahead.ANYTHING else ahead
                if ahead is Ahead.ANYTHING:
                    yield target, Ahead.NEWLINE

    def closure(self, places: Iterable[Place], is_start: bool = False) -> frozenset[Place]:
        found = set(places)
        open_ = list(found)
        while open_:
            for place in self.behind(open_.pop(), is_start):
                if place not in found:
                    found.add(place)
                    open_.append(place)
        return frozenset(found)

    def automaton(self, ends: Ends) -> CharacterAutomaton:
        """Return the automaton of the texts on ways from the first of these nodes to the second.

        Its states are sets of places (Rabin and Scott 1959).

        Raises:
            ValueError: there are too many states, or no text is on such a way.
        """
        begin, end = ends
        class_of, classes = classes_of(list(self.sets))
        start = self.closure([(begin, Ahead.ANYTHING)], is_start=True)
        numbers = {start: 0}
        accepts: list[bool] = []
        edges: list[tuple[int, int, int]] = []
        todo = deque([start])
        while todo:
            places = todo.popleft()
            accepts.append(any(n == end and ahead is not Ahead.NEWLINE for n, ahead in places))
            for behind, of in self._steps(places, classes).items():
                if behind not in numbers:
                    numbers[behind] = len(numbers)
                    todo.append(behind)
                edges += [(numbers[places], character, numbers[behind]) for character in of]
            if len(numbers) > MAX_CHARACTER_STATES:
                raise ValueError(
                    f"`pattern` must need at most {MAX_CHARACTER_STATES:,} states, but needs more; shorten "
                    "its repeats, or what may overlap in them"
                )
        num_classes = max((c for one in classes for c in one), default=0)
        target = np.full((len(numbers), num_classes + 1), NOWHERE, dtype=np.int32)
        if edges:
            source, character, into = np.array(edges).T
            target[source, character] = into
        return CharacterAutomaton.smallest(class_of, target, np.array(accepts))

    def _steps(
        self, places: frozenset[Place], classes: list[list[int]]
    ) -> dict[frozenset[Place], list[int]]:
        """Return the sets of places behind one character, and the classes of characters that lead there."""
        reached: dict[int, set[Place]] = defaultdict(set)
        for node, ahead in places:
            if ahead is Ahead.NOTHING:
                continue
            is_last = ahead is Ahead.NEWLINE
            rest = Ahead.NOTHING if is_last else Ahead.ANYTHING
            for one, target in self.ways[node]:
                for character in classes[one]:
                    if not is_last or character in classes[self.sets[NEWLINE]]:
                        reached[character].add((target, rest))
        alike: dict[frozenset[Place], list[int]] = defaultdict(list)
        for character, ways in reached.items():
            alike[frozenset(ways)].append(character)
        steps: dict[frozenset[Place], list[int]] = defaultdict(list)
        for directly, of in alike.items():
            steps[self.closure(directly)] += of
        return steps
