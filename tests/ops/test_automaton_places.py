"""`automaton_places`: which continuations get a place of their beam, against plain Python."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
import torch

from pybeam import backends
from pybeam.automata.runs import widths
from pybeam.backends.torch_automata import PoolArrays
from pybeam.backends.torch_places import PlacesInputs
from pybeam.contracts import SelectOptions
from pybeam.processors.automaton_pool import AutomatonPool
from support import phrases as oracle
from support.random_automata import random_automaton

V, EOS, WIDTH = 70, (1, 4), 6
NODES = 9


def ints(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


class Beams:
    """Beams of up to `WIDTH` entries, of which some are held, in states of automata of their own."""

    def __init__(self, seed: int, num_beams: int, levels: int) -> None:
        rng = self.rng = random.Random(seed)
        tokens = [token for token in range(2, 12) if token not in EOS]
        # every token leads on
        self.automata = [
            dataclasses.replace(
                one, target=np.maximum(one.target, 0), other=np.maximum(one.other, 0)
            )
            for one in (random_automaton(seed + i, tokens, 7, "others") for i in range(num_beams))
        ]
        pool = AutomatonPool(self.automata[0], torch.device("cpu"))
        pool.line = torch.zeros(num_beams, dtype=torch.int32)
        pool.open(range(num_beams), self.automata)
        self.arrays = PoolArrays(*pool.tables)
        starts = [int(line) - one.start for line, one in zip(pool.line, self.automata, strict=True)]
        most = max(int(widths(one).max()) for one in self.automata)
        child = torch.arange(most, dtype=torch.int32).repeat(num_beams, 1)
        # the last one has no edges to divide by
        child[-1] = -1
        self.held = [[rng.random() < 0.2 for _ in range(rng.randint(0, WIDTH))] for _ in starts]
        self.prefix = [rng.choice([0, 0, 0, 3]) for _ in starts]
        self.width = [rng.choice([WIDTH, WIDTH, 4, 1, 0]) for _ in starts]
        places = [
            (a, e)
            for a, own in enumerate(self.held)
            for e, is_held in enumerate(own)
            if not is_held
        ]
        self.rows = places
        self.states = [rng.randrange(-1, self.automata[a].num_states) for a, _ in places]
        state = torch.full((num_beams, NODES), 10**9, dtype=torch.int32)
        for (a, entry), own in zip(places, self.states, strict=True):
            state[a, entry + 1] = starts[a] + own if own >= 0 else -1
        draw = torch.Generator().manual_seed(seed)
        score = torch.randint(-levels, 0, (num_beams, WIDTH), generator=draw) / 2
        self.log_probs = torch.randint(-levels, 0, (len(places), V), generator=draw) / 2
        self.log_probs[torch.rand(self.log_probs.shape, generator=draw) < 0.1] = -math.inf
        self.log_probs[ints(self.states) < 0] = -math.inf
        self.score = score
        counts = [sum(not one for one in own) for own in self.held]
        self.offset = ints([0, *torch.tensor(counts).cumsum(0)])
        self.inputs = PlacesInputs(
            state,
            child,
            ints(a for a, _ in places),
            ints(e + 1 for _, e in places),
            ints(e for _, e in places),
            ints([2] * len(places)),
            self.offset,
            ints(self.prefix),
            score,
            ints([0, *torch.tensor([len(own) for own in self.held]).cumsum(0)]),
            ints(self.width),
        )

    def best(self, name):
        """What `select` finds, held hypotheses among them."""
        inputs = self.inputs
        entries = [self.score[a, e] for a, own in enumerate(self.held) for e in range(len(own))]
        options = SelectOptions(
            WIDTH,
            EOS,
            normalise=False,
            is_ended=torch.tensor([one for own in self.held for one in own], dtype=torch.bool),
            ban_eos=torch.ones(len(self.held), dtype=torch.bool),
        )
        score = torch.tensor(entries, dtype=torch.float32)
        given = self.log_probs, score, inputs.entries, inputs.width
        chosen = backends.load(name).select(*given, options)
        return chosen.token, chosen.parent

    def expected(self):
        """The rows that are left, by the rules of `must_contain`."""
        out = self.log_probs.clone()
        for a, own in enumerate(self.held):
            rows = [i for i, (b, _) in enumerate(self.rows) if b == a]
            places = self.width[a] - sum(own)
            if places < 2 or self.prefix[a] > 2 or a == len(self.held) - 1:
                continue
            kept = oracle.with_places(self.banks(rows, a, places), places, EOS)
            for row in rows:
                if self.states[row] >= 0 and self.edges(row):
                    left = [token for other, token in kept if other == row]
                    out[row] = -math.inf
                    out[row, left] = self.log_probs[row, left]
        return out

    def edges(self, row):
        """Those of the pool, where a state may have edges for tokens that lead on without one."""
        own = self.inputs.state[self.rows[row][0], self.rows[row][1] + 1]
        begin, end = self.arrays.first[own : own + 2].tolist()
        return self.arrays.token[begin:end].tolist()

    def banks(self, rows, a, places):
        score = [float(self.score[self.rows[row]]) for row in rows]
        every = sorted(
            (-(score[i] + float(x)), row, -float(x), token)
            for i, row in enumerate(rows)
            for token, x in enumerate(self.log_probs[row])
            if x > -math.inf
        )
        goes_on = [one for one in every if one[3] not in EOS]
        firsts = [
            min(own, key=lambda one: one[2:])
            for row in rows
            if (own := [one for one in goes_on if one[1] == row])
        ]
        chosen = {*goes_on[:places], *firsts}
        banks = {}
        for one in every:
            _, row, _, token = one
            target = (
                self.automata[a].step(self.states[row], token).state
                if self.states[row] >= 0
                else -1
            )
            needed = self.automata[a].needed
            missing = needed[target] if target >= 0 else 2**31 - 1
            is_nearer = self.states[row] >= 0 and token in self.edges(row)
            is_nearer = is_nearer and missing < needed[self.states[row]] and token not in EOS
            if one in chosen or is_nearer or token in EOS:
                banks.setdefault(int(missing), []).append((row, token))
        return banks


def divided(name, beams, best):
    """What a backend returns, or leaves where the rows were."""
    rows = beams.log_probs.clone()
    divide = backends.load(name).automaton_places
    found = divide(rows, beams.arrays, beams.inputs, *best, EOS)
    return rows if found is None else found


def check(name, seed, num_beams=5, levels=9):
    beams = Beams(seed, num_beams, levels)
    found = divided(name, beams, beams.best(name))
    expected = beams.expected()
    assert torch.equal(found, expected)
    return beams, found


@pytest.mark.thinned()
@pytest.mark.parametrize("seed", range(6))
def test_as_in_plain_python(kernel, seed):
    check(kernel, seed, levels=9 if seed % 3 else 2)


def test_the_reference():
    checked = [check("reference", seed) for seed in range(6)]
    assert sum(not torch.equal(found, beams.log_probs) for beams, found in checked) == 5


def test_padding_and_infinities_stay(kernel):
    """A NaN or +inf ends its source behind the operator, so it may not get lost."""
    beams = Beams(1, 5, 9)
    beams.log_probs[::3, 50] = torch.tensor([math.nan, math.inf]).repeat(99)[
        : len(beams.log_probs[::3])
    ]
    found = divided(kernel, beams, beams.best("reference"))
    assert torch.equal(found[::3, 50].isnan(), beams.log_probs[::3, 50].isnan())
    assert torch.equal(found == math.inf, beams.log_probs == math.inf)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("state", torch.full((5, NODES), 10**9, dtype=torch.int32), "`state` must hold states"),
        ("row_slot", 5, "`row_slot`, `node` and `entry`"),
        ("node", NODES, "`row_slot`, `node` and `entry`"),
        ("entry", -1, "`row_slot`, `node` and `entry`"),
        ("offset", ints([0, 0, 0, 0, 0, 99]), "`offset` must ascend"),
        ("child", ints([0]), "`child` must have 2"),
        ("score", torch.zeros(5, WIDTH).double(), "`score` must be float32"),
        ("width", ints([0]), "`offset` must be"),
    ],
)
def test_wrong_arguments(name, value, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    beams = Beams(1, 5, 9)
    given = getattr(beams.inputs, name)
    value = torch.full_like(given, value) if isinstance(value, int) else value
    inputs, best = beams.inputs._replace(**{name: value}), beams.best("native")
    with pytest.raises((ValueError, RuntimeError), match=message):
        native.automaton_places(beams.log_probs, beams.arrays, inputs, *best, EOS)
