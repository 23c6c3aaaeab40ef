"""`automaton_places`: which continuations get a place of their beam, against plain Python."""

from __future__ import annotations

import dataclasses
import math
import random
from functools import partial

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


def ints(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


assert_same = partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)


class Beams:
    """Beams of up to so many entries, of which some are held, in states of automata of their own."""

    def __init__(self, seed, num_beams=5, levels=9, most=WIDTH, held=None) -> None:
        self.most = most
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
        num_children = max(int(widths(one).max()) for one in self.automata)
        child = torch.arange(num_children, dtype=torch.int32).repeat(num_beams, 1)
        # the last one has no edges to divide by
        child[-1] = -1
        self.held = held or [
            [rng.random() < 0.2 for _ in range(rng.randint(0, most))] for _ in starts
        ]
        self.prefix = [rng.choice([0, 0, 0, 3]) for _ in starts]
        self.width = [rng.choice([most, most, 4, 1, 0]) for _ in starts]
        places = [
            (a, e)
            for a, own in enumerate(self.held)
            for e, is_held in enumerate(own)
            if not is_held
        ]
        self.rows = places
        self.states = [rng.randrange(-1, self.automata[a].num_states) for a, _ in places]
        state = torch.full((num_beams, most + 3), 10**9, dtype=torch.int32)
        for (a, entry), own in zip(places, self.states, strict=True):
            state[a, entry + 1] = starts[a] + own if own >= 0 else -1
        draw = torch.Generator().manual_seed(seed)
        score = torch.randint(-levels, 0, (num_beams, most), generator=draw) / 2
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
        """The survivors of `select`, held hypotheses among them."""
        inputs = self.inputs
        entries = [self.score[a, e] for a, own in enumerate(self.held) for e in range(len(own))]
        options = SelectOptions(
            self.most,
            EOS,
            normalise=False,
            is_ended=torch.tensor([one for own in self.held for one in own], dtype=torch.bool),
            ban_eos=torch.ones(len(self.held), dtype=torch.bool),
        )
        score = torch.tensor(entries, dtype=torch.float32)
        log_probs = self.log_probs.nan_to_num(-math.inf, 1e6, -math.inf)
        given = log_probs, score, inputs.entries, inputs.width
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
        return torch.where(self.log_probs < math.inf, out, self.log_probs)

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


def divided(name, beams, best, eos_ids=EOS, **changes):
    """The rows that a backend returns, or leaves where they were."""
    rows = changes.pop("log_probs", beams.log_probs.clone())
    divide = backends.load(name).automaton_places
    found = divide(rows, beams.arrays, beams.inputs._replace(**changes), *best, eos_ids)
    return rows if found is None else found


def check(name, beams):
    found = divided(name, beams, beams.best(name))
    assert_same(found, beams.expected())
    return not torch.equal(found, beams.log_probs)


CASES = {f"seed {seed}": dict(seed=seed, levels=9 if seed % 3 else 2) for seed in range(6)}
# some edges lead nowhere; a beam has more than 64 rows; the last beam has none; there are none
CASES |= {
    "nowhere": dict(seed=41),
    "wide": dict(seed=0, num_beams=2, most=70, held=[[False] * 66, [False]]),
    "all held": dict(seed=1, num_beams=2, held=[[False, True, False], [True] * 3]),
    "no rows": dict(seed=1, num_beams=2, held=[[True] * 3, []]),
}


@pytest.mark.thinned()
@pytest.mark.parametrize("case", CASES)
def test_as_in_plain_python(kernel, case):
    check(kernel, Beams(**CASES[case]))


def test_the_reference():
    checked = {name: check("reference", Beams(**case)) for name, case in CASES.items()}
    assert not checked.pop("no rows")
    assert sum(checked.values()) > 6


def test_infinities_stay_and_padding_changes_nothing(kernel):
    """A NaN or +inf ends its source behind the operator, so it may not get lost."""
    beams = Beams(1)
    num_rows = len(beams.rows)
    beams.log_probs[::3, 50] = torch.tensor([math.nan, math.inf]).repeat(99)[: -(-num_rows // 3)]
    padding = {
        name: getattr(beams.inputs, name)[[*range(num_rows), 0, 1]]
        for name in ("row_slot", "node", "entry", "position")
    }
    for name in ("reference", kernel):
        rows = torch.cat((beams.log_probs, torch.zeros(2, V)))
        found = divided(name, beams, beams.best(name), log_probs=rows, **padding)
        assert_same(found[:num_rows], beams.expected())


def test_wrong_ends(kernel):
    beams = Beams(1)
    best, many = beams.best("reference"), "1 to 8 EOS ids|up to 8"
    wrong = {(): many, tuple(range(9)): many, (1, V): "0 to 69, but", (-1,): "eos_id"}
    for name in ("reference", kernel):
        for eos_ids, message in wrong.items():
            with pytest.raises(ValueError, match=message):
                divided(name, beams, best, eos_ids)


@pytest.mark.parametrize("name", ["reference", "native"])
def test_wrong_rows(name):
    if name == "native":
        pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    beams = Beams(1)
    offset, slots, best = beams.offset, beams.inputs.row_slot, beams.best("reference")
    shared = beams.log_probs[:1].expand(len(slots), V)
    with pytest.raises(ValueError, match="`log_probs` must not overlap"):
        divided(name, beams, best, log_probs=shared)
    for wrong in (offset.clamp(min=1), offset.flip(0), offset + offset.eq(offset[-1])):
        with pytest.raises(RuntimeError, match="`offset` must ascend from 0"):
            divided(name, beams, best, offset=wrong)
    with pytest.raises(RuntimeError, match="`row_slot` must be the same"):
        divided(name, beams, best, row_slot=torch.arange(len(slots)).int() % 5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("state", torch.full((5, WIDTH + 3), 10**9, dtype=torch.int32), "`state` must hold states"),
        ("row_slot", 5, "`row_slot`, `node` and `entry`"),
        ("node", WIDTH + 3, "`row_slot`, `node` and `entry`"),
        ("entry", -1, "`row_slot`, `node` and `entry`"),
        ("offset", ints([0, 0, 0, 0, 0, 99]), "`offset` must ascend"),
        ("child", ints([0]), "`child` must have 2"),
        ("score", torch.zeros(5, WIDTH).double(), "`score` must be float32"),
        ("width", ints([0]), "`offset` must be"),
    ],
)
def test_wrong_arguments(name, value, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    beams = Beams(1)
    given = getattr(beams.inputs, name)
    value = torch.full_like(given, value) if isinstance(value, int) else value
    inputs, best = beams.inputs._replace(**{name: value}), beams.best("native")
    with pytest.raises((ValueError, RuntimeError), match=message):
        native.automaton_places(beams.log_probs, beams.arrays, inputs, *best, EOS)
