"""The news of a stream while a search still runs is never taken back, and is all that can be said."""

from __future__ import annotations

import threading

import pytest
import torch

import pybeam
from pybeam import backends, processors
from pybeam.engine.engine import Engine, StreamOptions
from pybeam.engine.partials import best_rows
from pybeam.engine.stats import Stats
from pybeam.engine.streaming import Stream
from pybeam.engine.workspace import Workspace
from pybeam.request import Partial
from support.laws import ALGORITHMS, SOURCES, essence, schedules
from support.laws import decoded as plainly_decoded
from support.random_searches import ALGORITHMS as SEARCHES
from support.random_searches import LENGTH, NUM_SLOTS, Searches
from support.search_models import EOS, random_model

SCORED = {
    "short": pybeam.fixed_beam(4, n_best=2, max_length=15, scoring=pybeam.scoring.power(-0.7)),
    "long": pybeam.variable_beam(4, 3.0, max_length=15, scoring=pybeam.scoring.reward(1.0)),
    "end": pybeam.shrinking_beam(
        4, max_length=15, stop=pybeam.stopping.end(), scoring=pybeam.scoring.gnmt(1.5)
    ),
}
REQUESTS = [
    pybeam.Request(source, prefix=[3, 2, 2][: i % 4], id=f"r{i}", width=1 + i % 3 or None)
    for i, source in enumerate(SOURCES)
]

CPU = torch.device("cpu")


def streamed(model, algorithm, schedule, backend, requests=SOURCES, **options):
    """The results by index, and what was said of each request before it: the tokens, call by call."""
    workspace = Workspace(model, algorithm, backends.load(backend))
    engine = Engine(workspace, schedule, Stats(), StreamOptions(partials=True, **options))
    results, said = {}, {}
    for item in Stream(engine.run(requests), CPU):
        if isinstance(item, Partial):
            assert item.index not in results
            said.setdefault(item.index, []).append(item.tokens)
            if isinstance(requests[item.index], pybeam.Request):
                assert item.id == requests[item.index].id
        else:
            results[item.index] = item
    return [results[index] for index in sorted(results)], said


def assert_never_taken_back(results, said) -> int:
    """Returns how many tokens were said before their results."""
    total = 0
    for index, lines in said.items():
        if not results[index].hypotheses:
            continue  # what was certain to begin it never ended
        best = results[index].hypotheses[0].tokens
        for before, after in zip([[], *lines], [*lines, best], strict=True):
            assert after[: len(before)] == before
        lengths = [len(tokens) for tokens in lines]
        assert lengths == sorted(set(lengths)), "one that says nothing new"
        total += lengths[-1]
    return total


# the reference backend walks every path in Python
BACKEND = "native" if "native" in backends.available() else "reference"


SOME = ("batch, budget", "streaming, impatient")


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", [SOME, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.parametrize("name", [*(name for name in ALGORITHMS if name != "wide"), *SCORED])
def test_never_taken_back(name, chosen):
    """By no algorithm or schedule, whenever the host reads; and results are what they are without."""
    algorithm, total = {**ALGORITHMS, **SCORED}[name], 0
    available = schedules(algorithm.max_rows)
    for seed, schedule in enumerate(chosen or available):
        model = random_model(seed, 9, levels=[None, 3][seed % 2], eos_bonus=seed % 5 - 1)
        requests = REQUESTS if seed % 3 == 0 and algorithm.n_best == 1 else SOURCES
        args = model, algorithm, available[schedule], BACKEND, requests
        results, said = streamed(*args, reads_late=seed % 3 > 0)
        total += assert_never_taken_back(results, said)
        if not seed:
            assert essence(results) == essence(plainly_decoded(*args))
    assert total > (0 if algorithm.perturbs else 20)


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("name", [*(name for name in ALGORITHMS if name != "wide"), *SCORED])
def test_all_that_can_be_said_is_said(name, monkeypatch):
    """Against paths walked in plain Python after every step: rows, held ones, the best finished one."""
    algorithm = {**ALGORITHMS, **SCORED}[name]
    expected: dict[int, list[list[int]]] = {}
    advance = Engine._advance

    def watched(self):
        advance(self)
        state = self._work.state
        for source in self._live:
            slot, beams = source.slot, state.beams
            if int(beams.reason[slot]):
                continue
            nodes = state.tree.row_node[slot, : int(beams.num_entries[slot])].tolist()
            finished = range(int(beams.num_finished[slot]))
            if finished:
                finals = beams.finished_final[slot, : len(finished)].tolist()
                nodes.append(int(beams.finished_node[slot, finals.index(max(finals))]))
            paths = [path(state.tree, slot, node) for node in nodes]
            shared = []
            for tokens in zip(*paths, strict=False):
                if len(set(tokens)) > 1:
                    break
                shared.append(tokens[0])
            lines = expected.setdefault(source.index, [])
            if len(shared) > (len(lines[-1]) if lines else len(source.prefix)):
                lines.append(shared)

    monkeypatch.setattr(Engine, "_advance", watched)
    for seed, requests in enumerate([SOURCES[:9], REQUESTS[:9]]):
        if requests is REQUESTS and algorithm.n_best > 1:
            continue
        expected.clear()
        model = random_model(seed, 9, eos_bonus=0.5)
        _, said = streamed(model, algorithm, pybeam.Fifo(5), BACKEND, requests)
        assert said == {index: lines for index, lines in expected.items() if lines}


def path(tree, slot: int, node: int) -> list[int]:
    tokens = []
    while node > 0:
        tokens.append(int(tree.token[slot, node]))
        node = int(tree.parent[slot, node])
    return tokens[::-1]


def test_greedy_says_every_token_at_once(backend):
    model = random_model(3, 9)
    results, said = streamed(model, pybeam.greedy(max_length=9), pybeam.Fifo(3), backend)
    for result in results:
        tokens = result.hypotheses[0].tokens
        # the last one comes with the result if it ends the search
        assert said.get(result.index, []) == [tokens[:n] for n in range(1, min(len(tokens), 8) + 1)]


def test_a_stream_of_a_decoder():
    """Targets say nothing, requests may come while others run, and without being asked none comes."""
    model = random_model(5, 9)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=12))
    requests = [*REQUESTS, pybeam.Request([1], target=[4, 5, 6])]
    plain = list(decoder.stream(requests))
    assert all(isinstance(item, pybeam.Result) for item in plain)
    queue = pybeam.RequestQueue()
    threading.Thread(target=lambda: [queue.put(r) for r in requests] and queue.close()).start()
    items = list(decoder.stream(queue, partial=True))
    results = [item for item in items if isinstance(item, pybeam.Result)]
    partials = [item for item in items if isinstance(item, pybeam.Partial)]
    key = lambda result: result.index  # noqa: E731
    assert essence(sorted(results, key=key)) == essence(sorted(plain, key=key))
    assert len(partials) > 20
    assert max(item.index for item in partials) < len(REQUESTS)


def test_a_search_that_comes_to_nothing_may_have_said_something():
    chain = [
        lambda logits, rows: logits.masked_fill((rows.position >= 3)[:, None], -float("inf")),
        processors.suppress_tokens([EOS]),
    ]
    decoder = pybeam.Decoder(random_model(5, 9), pybeam.greedy(processors=chain))
    *partials, result = decoder.stream([[1]], partial=True)
    assert (len(partials), result.stop_reason, result.hypotheses) == (3, "empty_beam", [])


def test_a_slot_without_rows_has_no_best_row():
    searches = Searches(SEARCHES["held"], seed=9)
    searches.open()
    searches.step()
    state = searches.states[0]
    slots = list(range(1, NUM_SLOTS + 1))
    has_rows = [int(state.beams.num_entries[slot]) > 0 for slot in slots]
    assert len(set(has_rows)) == 2
    best = best_rows(state, slots, LENGTH + 1)
    assert [bool((line >= 0).any()) for line in best] == has_rows
