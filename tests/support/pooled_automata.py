"""The operators of automata on pools, against `Automaton.step`."""

from __future__ import annotations

import math
import random

import torch

from pybeam import backends
from pybeam.automata.runs import widths
from pybeam.backends.torch_automata import PoolArrays
from pybeam.contracts import ColumnRules, Normalise
from pybeam.processors.automaton_pool import AutomatonPool
from support.random_automata import KINDS, random_automaton

V, EOS = 12, 1
TOKENS = range(2, V)
AUTOMATA = [random_automaton(seed, TOKENS, 7, KINDS[seed % 3]) for seed in range(12)]
SPARSE = AUTOMATA[::3]


def ints(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def pool_of(automata) -> tuple[PoolArrays, list[int]]:
    """A pool, and where the states of each automaton begin in it."""
    pool = AutomatonPool(automata[0], torch.device("cpu"))
    pool.line = torch.zeros(len(automata), dtype=torch.int32)
    pool.open(range(len(automata)), automata)
    begins = [int(line) - one.start for line, one in zip(pool.line, automata, strict=True)]
    return PoolArrays(*pool.tables), begins


def places(rng: random.Random, automata, begins, num: int):
    """Rows in states of automata, or outside: the automaton, its state, and that of the pool."""
    found = []
    for _ in range(num):
        i = rng.randrange(len(automata))
        state = rng.randrange(-1, automata[i].num_states)
        found.append((automata[i], state, begins[i] + state if state >= 0 else -1))
    return found


def shaped(row, automaton, state, room):
    """The row, with everything forbidden that may not follow a state, by the plain step."""
    out = [-math.inf] * V
    if state < 0:
        return out
    for token in range(V):
        target, weight = automaton.step(state, token)
        if target >= 0 and automaton.needed[target] < room:
            out[token] = row[token] + weight
    out[EOS] = row[EOS] + float(automaton.final[state])
    return out


def logits_of(num: int) -> torch.Tensor:
    torch.manual_seed(num)
    # weights are eighths, so sums are exact
    return (16 * torch.randn(num, V + 3)).round()[:, 1 : V + 1] / 8


def rows_of(seed: int, automata, num: int = 20):
    rng = random.Random(seed)
    pool, begins = pool_of(automata)
    rows = places(rng, automata, begins, num)
    room = [rng.randrange(5) for _ in rows]
    return pool, rows, ints(own for *_, own in rows), ints(room)


def check_columns(name):
    pool, rows, node, room = rows_of(2, SPARSE)
    logits = logits_of(len(rows))
    num = max(int(widths(automaton).max()) for automaton in SPARSE)
    for columns, normalise in ((0, Normalise.NOTHING), (num + 3, Normalise.VOCABULARY)):
        rules = ColumnRules(EOS, True, columns, normalise)
        found = backends.load(name).automaton_columns(pool, logits, node, room, rules)
        for line, row, (automaton, state, own), limit in zip(
            found, logits, rows, room.tolist(), strict=True
        ):
            norm = row.logsumexp(0) if normalise else torch.zeros(())
            every = shaped(row.tolist(), automaton, state, limit)
            begin, end = pool.first[own : own + 2].tolist() if state >= 0 else (0, 0)
            expected = [every[EOS], *(every[token] for token in pool.token[begin:end].tolist())]
            expected += [-math.inf] * (len(line) - len(expected))
            torch.testing.assert_close(line, torch.tensor(expected) - norm, atol=1e-5, rtol=1e-5)


def check_walk(name):
    """Every row stands on a node of its own, whose parent has the state to go on from. It is shaped, too."""
    pool, begins = pool_of(AUTOMATA)
    rng = random.Random(3)
    num_slots = len(AUTOMATA)
    parent = torch.zeros(num_slots, 2, dtype=torch.int32) - ints([1, 0])
    parent[:, 1] = 0
    line = ints(
        b + a.start if i % 4 else 0 for i, (a, b) in enumerate(zip(AUTOMATA, begins, strict=True))
    )
    for _ in range(3):
        before = [rng.randrange(-1, automaton.num_states) for automaton in AUTOMATA]
        state = torch.full((num_slots, 2), 10**9, dtype=torch.int32)
        # nobody reads the states of those that start where everything is allowed
        some = [b + s if s >= 0 else -1 for b, s in zip(begins, before, strict=True)]
        state[:, 0] = torch.where(line > 0, ints(some), 10**9)
        token = rng.choices(range(V), k=num_slots)
        done, prefix = (
            rng.choices(range(-1, 4), k=num_slots),
            ints(rng.choices(range(3), k=num_slots)),
        )
        slots, node = ints(range(num_slots)), ints([1] * num_slots)
        position, limit = ints(done) + prefix, ints([4] * num_slots)
        given = slots, node, ints(token), position, line, prefix, limit
        logits, shapes = logits_of(num_slots), backends.load(name).automaton_logits
        for op in "walk", "logits":
            noted, found = state.clone(), logits.clone()
            if op == "walk":
                found = backends.load(name).automaton_walk(pool, parent, noted, *given)
            else:
                shapes(found, pool, parent, noted, *given, (EOS,))
            for i, automaton in enumerate(AUTOMATA):
                own, room = int(line[i]), 4 - done[i] - 1
                here = own - begins[i] if own else None
                if done[i] > 0 and own:
                    here = -1 if before[i] < 0 else automaton.step(before[i], token[i]).state
                    own = begins[i] + here if here >= 0 else -1
                assert int(noted[i, 1]) == own
                is_free = done[i] < 0 or here is None
                if op == "walk":
                    assert found[:, i].tolist() == [0 if is_free else own, room]
                    continue
                row = logits[i].tolist()
                assert found[i].tolist() == (row if is_free else shaped(row, automaton, here, room))
