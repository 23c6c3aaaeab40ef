"""Covering arrays: few cases in which all values of any two, or three, axes meet that may.

Rows are built one by one: each begins with values that have not met yet, and every other axis gets the
value that meets most of those that are there for the first time: of several, any one that is not dear. The
best of some such rows stays.
Values may be late: they meet others in the last rows. (Of PyPI's libraries, allpairspy leaves out pairs
where there are exclusions, and covertable takes half a minute.)
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Mapping, Sequence
from functools import reduce

import numpy as np

from law.exclusions import EXCLUSIONS, Exclusion

SEED = 23
# cases with them take three times as long as others
DEAR = ("reference", "Service, two processes")
NUM_TRIES = 20
# where values are late, each early row is the best of so many
NUM_CHOICES = 4


class CoveringArray:
    """The rows of one array.

    Args:
        axes: the values of each axis.
        strength: of so many axes all values meet.
        late: values that meet others behind the first `num_early` rows. Each is in one of these at least.
        plain: by axis: values that stand beside each late value in one of these rows, if they may; the
            first axes are chosen first.

    Attributes:
        rows: a value of each axis.
        num_early: so many rows are enough for all other values to meet.
        impossible: tuples of values, by axis, that no row can have though no exclusion says so.
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[str]],
        strength: int,
        late: Collection[str] = (),
        plain: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._axes = {name: list(values) for name, values in axes.items()}
        self._names, self._strength = list(axes), strength
        self._random = random.Random(SEED)
        shape = [len(values) for values in self._axes.values()]
        # by places of axes, in order: which of their values have not met
        self._missing = {
            places: np.ones([shape[p] for p in places], dtype=bool)
            for places in itertools.combinations(range(len(shape)), strength)
        }
        self._forbidden = self._compiled(EXCLUSIONS)
        self.rows: list[dict[str, str]] = []
        self.impossible: list[dict[str, str]] = []
        is_early = [
            np.array([value not in late for value in values]) for values in self._axes.values()
        ]
        # those of the missing that the next rows are made for
        self._wanted = {
            places: reduce(np.multiply.outer, [is_early[p] for p in places])
            for places in self._missing
        }
        # by place of the axis: which of its late values no row has yet
        self._unseen = {
            place: np.array([value in late for value in values])
            for place, values in enumerate(self._axes.values())
        }
        self._plain = plain or {}
        self._num_choices = NUM_CHOICES if late else 1
        for place, unseen in sorted(self._unseen.items(), key=lambda item: -item[1].sum()):
            for value in map(int, np.flatnonzero(unseen)):
                if unseen[value]:
                    self._add_row({place: value})
        self._plain = {}
        self._cover()
        self.num_early = len(self.rows)
        self._wanted, self._num_choices = self._missing, 1
        self._cover()

    def _cover(self) -> None:
        """Add rows until nothing that is wanted is missing."""
        for places, wanted in self._wanted.items():
            while wanted.any():
                first = np.unravel_index(self._random.choice(np.flatnonzero(wanted)), wanted.shape)
                self._add_row(dict(zip(places, map(int, first), strict=True)))

    def _compiled(self, exclusions: Sequence[Exclusion]) -> list[list[dict[int, set[int]]]]:
        """Exclusions by the axes that they name: places of their values by place of the axis."""
        by_axis: list[list[dict[int, set[int]]]] = [[] for _ in self._names]
        for one in exclusions:
            rule = {
                self._names.index(name): {
                    i for i, value in enumerate(self._axes[name]) if value in values
                }
                for name, values in one.values.items()
            }
            for place in rule:
                by_axis[place].append(rule)
        return by_axis

    def _banned(self, row: dict[int, int], place: int) -> set[int]:
        """The values that an axis may not have beside those that are there."""
        banned: set[int] = set()
        for rule in self._forbidden[place]:
            if all(row.get(p) in some for p, some in rule.items() if p != place):
                banned |= rule[place]
        return banned

    def _add_row(self, first: dict[int, int]) -> None:
        """Add a row that begins with these values, or strike them out if there is none."""
        made = (row for _ in range(NUM_TRIES) if (row := self._filled(first)) is not None)
        if rows := list(itertools.islice(made, self._num_choices)):
            row = max(rows, key=self._num_met)
            self._note(row)
            names, values = self._names, list(self._axes.values())
            self.rows.append({names[p]: values[p][row[p]] for p in range(len(names))})
            return
        self._strike_out(tuple(first), tuple(first.values()))
        found = {self._names[p]: self._axes[self._names[p]][v] for p, v in first.items()}
        if not any(one.holds(found) for one in EXCLUSIONS if set(one.values) <= set(found)):
            self.impossible.append(found)

    def _filled(self, first: dict[int, int]) -> dict[int, int] | None:
        row: dict[int, int] = {}
        for place, value in first.items():
            if value in self._banned(row, place):
                return None
            row[place] = value
        others = [p for p in range(len(self._names)) if p not in first]
        self._random.shuffle(others)
        order = {name: i for i, name in enumerate(self._plain)}
        others.sort(key=lambda p: order.get(self._names[p], len(order)))
        for place in others:
            values, banned = self._axes[self._names[place]], self._banned(row, place)
            can = [v for v in range(len(values)) if v not in banned]
            if not can:
                return None
            plain = self._plain.get(self._names[place], ())
            can = [v for v in can if values[v] in plain] or can
            # many late values in few rows: the others do not meet there
            gains = np.where(self._unseen[place], np.inf, self._gains(row, place))[can]
            best = [can[i] for i in np.flatnonzero(gains == gains.max())]
            row[place] = self._random.choice([v for v in best if values[v] not in DEAR] or best)
        return row

    def _gains(self, row: dict[int, int], place: int) -> np.ndarray:
        """How many tuples each value of an axis meets for the first time, with those that are there."""
        total = np.zeros(len(self._axes[self._names[place]]), dtype=int)
        for others in itertools.combinations(row, self._strength - 1):
            places = tuple(sorted((*others, place)))
            index = tuple(slice(None) if p == place else row[p] for p in places)
            total += self._wanted[places][index]
        return total

    def _num_met(self, row: dict[int, int]) -> int:
        """How many tuples that are wanted a row has."""
        return sum(
            int(wanted[tuple(row[p] for p in places)]) for places, wanted in self._wanted.items()
        )

    def _note(self, row: dict[int, int]) -> None:
        for place, value in row.items():
            self._unseen[place][value] = False
        for places in self._missing:
            self._strike_out(places, tuple(row[p] for p in places))

    def _strike_out(self, places: tuple[int, ...], values: tuple[int, ...]) -> None:
        self._missing[places][values] = self._wanted[places][values] = False
