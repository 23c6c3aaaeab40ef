"""`AutomatonPool`: the automata of all slots in few arrays on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.automata.automaton import MAX_STATES, NOWHERE, Automaton
from pybeam.automata.runs import Runs, widths
from pybeam.backends import poison
from pybeam.backends.arrays import resized
from pybeam.backends.torch_automata import NEEDED, NUMBERS, PoolArrays
from pybeam.backends.transfer import to_device

# arrays of this size are never made smaller; larger ones are, behind so many slots
KEPT_BYTES, LOOK_AFTER = 16 << 20, 256
# state 0 of every pool: whoever is there stays there, and may end
ANYTHING = Automaton.build([True], other=[0], allows_cuts=True)


class Place(NamedTuple):
    """Where an automaton lies: its first state and its first edge."""

    automaton: Automaton
    state: int
    edge: int
    num_edges: int

    @property
    def states(self) -> tuple[int, int]:
        """The states, the second exclusive; a line behind them says where the last edges end."""
        return self.state, self.state + self.automaton.num_states + 1

    @property
    def edges(self) -> tuple[int, int]:
        return self.edge, self.edge + self.num_edges

    def lines(self) -> list[np.ndarray]:
        """Return its lines of `PoolArrays`, along the last dimension of edges and the first of states."""
        own, runs = self.automaton, Runs.of(self.automaton)

        def moved(states: np.ndarray) -> np.ndarray:
            return np.where(states == NOWHERE, NOWHERE, states + np.int32(self.state))

        weights = own.other_weight.view(np.int32), own.final.view(np.int32)
        # where an output may be cut, EOS needs no room
        needed = np.stack((own.needed, runs.most_needed), 1) - np.int32(own.allows_cuts)
        state = np.full((own.num_states + 1, NUMBERS), NOWHERE, dtype=np.int32)
        state[:-1, :NEEDED] = np.stack((moved(own.failure), moved(own.other), *weights), 1)
        state[:-1, NEEDED:] = needed
        edge = np.stack((moved(runs.target), runs.weight.view(np.int32)))
        return [runs.token, runs.first + np.int32(self.edge), edge, state]


class AutomatonPool:
    """Automata on the device, each once, whoever uses it.

    A slot uses its automaton until it is closed. An automaton that no slot uses gives its place to others
    when there is no room. An automaton never moves, so states that are noted for rows stay what they are.
    The arrays are replaced when they grow, to twice their size at least. If they have more than `KEPT_BYTES`,
    and `LOOK_AFTER` slots in a row are opened while nothing that slots use lies behind their first quarter,
    they are replaced by others of half their size or less.

    Attributes:
        line: [S] int32, the start of every slot's automaton, to be replaced by a longer one; 0 is
            `ANYTHING`.
    """

    def __init__(self, own: Automaton, device: torch.device) -> None:
        self._device = device
        self.line = torch.zeros(0, dtype=torch.int32, device=device)
        ints = self.line.new_zeros
        self._arrays = PoolArrays(ints(1), ints(0), ints(2, 1), ints(0, NUMBERS))
        self._places: dict[int, Place] = {}  # by the automaton's id
        self._used: dict[int, Automaton] = {}  # by slot
        self._num_small = 0  # slots in a row that were opened while little was used
        # the automaton of an algorithm stays, as slots come back to it
        self._own = [ANYTHING, own]
        for automaton in self._own:
            self._find(automaton)

    @property
    def tables(self) -> list[Tensor]:
        """Those of `PoolArrays` as they are now."""
        return [*self._arrays]

    def open(self, slots: Sequence[int], automata: Sequence[Automaton]) -> None:
        """Put these slots at the starts of their automata."""
        for slot in slots:
            self._used.pop(slot, None)
        self._used.update(zip(slots, automata, strict=True))
        starts = [self._find(automaton).state + automaton.start for automaton in automata]
        place = to_device(slots, torch.long, self._device)
        self.line[place] = to_device(starts, torch.int32, self._device)
        self._look(len(slots))

    def close(self, slots: Sequence[int]) -> None:
        """Let these slots use nothing."""
        for slot in slots:
            self._used.pop(slot, None)

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self._arrays)

    def _look(self, num_opened: int) -> None:
        """Make the arrays smaller if so many slots needed little of them."""
        if self.num_bytes <= KEPT_BYTES:
            self._num_small = 0
            return
        places = [self._places[key] for key in self._in_use()]
        num_states = max(place.states[1] for place in places)
        num_edges = max(place.edges[1] for place in places)
        token, first, edge, state = self._arrays
        is_small = 4 * num_states <= len(first) or 4 * num_edges <= len(token)
        self._num_small = self._num_small + num_opened if is_small else 0
        if self._num_small < LOOK_AFTER:
            return
        self._num_small = 0
        self._drop_unused()
        states, edges = min(2 * num_states, len(first)), max(1, min(2 * num_edges, len(token)))
        # copies, which do not hold what they are parts of
        self._arrays = PoolArrays(
            token[:edges].clone(),
            first[:states].clone(),
            edge[:, :edges].clone(),
            state[:states].clone(),
        )

    def _in_use(self) -> set[int]:
        """The ids of the automata that stay."""
        return {id(automaton) for automaton in (*self._own, *self._used.values())}

    def _find(self, automaton: Automaton) -> Place:
        known = self._places.get(id(automaton))
        if known is not None:
            return known
        place = self._place_for(automaton)
        arrays = self._arrays
        if place.states[1] > len(arrays.first) or place.edges[1] > len(arrays.token):
            self._drop_unused()
            place = self._place_for(automaton)
            self._grow(place.states[1], place.edges[1])
        self._places[id(automaton)] = place
        for own, lines in zip(self._own_parts(place), place.lines(), strict=True):
            own.copy_(to_device(lines, torch.int32, self._device))
        return place

    def _own_parts(self, place: Place) -> list[Tensor]:
        """The parts of the arrays that an automaton has."""
        token, first, edge, state = self._arrays
        states, edges = slice(*place.states), slice(*place.edges)
        return [token[edges], first[states], edge[:, edges], state[states]]

    def _place_for(self, automaton: Automaton) -> Place:
        places = self._places.values()
        state = _gap((place.states for place in places), automaton.num_states + 1)
        num_edges = int(widths(automaton).sum())
        edge = _gap((place.edges for place in places), num_edges)
        return Place(automaton, state, edge, num_edges)

    def _drop_unused(self) -> None:
        used = self._in_use()
        for key in [key for key in self._places if key not in used]:
            poison.forget(self._own_parts(self._places.pop(key)))

    def _grow(self, num_states: int, num_edges: int) -> None:
        if max(num_states, num_edges) > MAX_STATES:
            raise ValueError(
                f"automata of all requests must have at most {MAX_STATES:,} states and edges together, but "
                f"have {max(num_states, num_edges):,}; let fewer requests run at once"
            )
        token, first, edge, state = self._arrays
        if num_states > len(first):
            num_states = max(num_states, 2 * len(first))
            first, state = resized(first, (num_states,)), resized(state, (num_states, 0))
        if num_edges > len(token):
            num_edges = max(num_edges, 2 * len(token))
            token, edge = resized(token, (num_edges,)), resized(edge, (0, num_edges))
        self._arrays = PoolArrays(token, first, edge, state)


def _gap(spans: Iterable[tuple[int, int]], size: int) -> int:
    """Return where the first gap of this size between spans begins, or the end of the last one."""
    begin = 0
    for first, last in sorted(spans):
        if first - begin >= size:
            break
        begin = last
    return begin
