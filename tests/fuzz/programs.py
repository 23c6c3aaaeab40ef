"""Random programs over one decoder: whatever is done to it, it then gives known bits for known requests."""

from __future__ import annotations

import copy
import dataclasses
import random
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

import pybeam
from fuzz.corpus import valid
from fuzz.odd import VALUES, Refused
from pybeam import processors
from pybeam.models import FunctionModel
from support.laws import ALGORITHMS, SOURCES, essence, schedules
from support.search_models import random_model

# a request may be wrong; what the library says then, and what a value of the caller's raises
SAID = (ValueError, TypeError, Refused)
KINDS = ("function", "rnn", "m2m_100", "causal-llama")
OPTIONS = (
    *("width", "threshold", "max_candidates", "relative_threshold", "local_threshold", "n_best"),
    *(
        "keep_ties",
        "min_length",
        "max_length",
        "scoring",
        "ended_only",
        "processors",
        "prefix",
        "start",
        "target",
    ),
    *("source_id", "id"),
)
# legal values, so that overrides meet each other
PLAIN: dict[str, list[Any]] = {
    "width": [1, 2, 5, 9, [2, 5]],
    "threshold": [0.5, 3.0],
    "keep_ties": [True, False],
    "max_candidates": [1, 3],
    "n_best": [1, 2],
    "min_length": [0, 2],
    "max_length": [1, 4, 9],
    "scoring": [pybeam.scoring.power(0.7), pybeam.scoring.reward(0.3)],
    "ended_only": [True, False],
    "processors": [[processors.temperature(0.7)], [processors.suppress_tokens([3])]],
    "prefix": [[], [3], [4, 5]],
    "target": [[3], [4, 5, 3]],
}


class Planned(Exception):
    """Raised by models and iterables of the caller's."""


class Fault:
    """Raises in the calls of a model of the caller's, once it is armed: `Planned` or KeyboardInterrupt."""

    def __init__(self) -> None:
        self.calls_left, self.error = -1, Planned

    def trip(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise self.error("as planned")


fault = Fault()


@cache
def model_of(kind: str) -> pybeam.Model:
    if kind != "function":
        return pybeam.load_model(valid(kind))
    inner = random_model(7, eos_bonus=0.3)

    def fn(*rows: torch.Tensor) -> torch.Tensor:
        fault.trip()
        return inner.fn(*rows)

    return FunctionModel(fn, inner.vocab_size, inner.start_id, inner.eos_id)


def known_requests(kind: str) -> list[pybeam.Request]:
    """Their source numbers do not depend on what they stand among."""
    if kind == "function":
        return [pybeam.Request(source, source_id=i) for i, source in enumerate(SOURCES[:6])]
    contents = [[5, 6, 2], [7, 2], [8, 9, 10, 11, 2], [12, 2], [5, 5, 5, 2]]
    return [pybeam.Request(source) for source in contents]


@cache
def known_results(kind: str, name: str) -> list:
    return outcome(pybeam.Decoder(model_of(kind), ALGORITHMS[name], pybeam.Batch(1)), kind)


def outcome(decoder: pybeam.Decoder, kind: str) -> list:
    return essence(decoder.decode(known_requests(kind)))


def case(seed: int, kinds: tuple[str, ...] = KINDS) -> None:
    """Make a decoder, do something with it one to four times, and decode the known requests each time."""
    chance = random.Random(seed)
    kind = chance.choice(kinds)
    name = chance.choice(sorted(ALGORITHMS))
    if ALGORITHMS[name].draft is not None and not model_of(kind).can_draft:
        name = "greedy"
    torch.set_num_threads(chance.choice([1, 1, 2, 3]))
    fault.calls_left = -1
    known = known_results(kind, name)
    schedule = chance.choice(list(schedules(ALGORITHMS[name].max_rows).values()))
    decoder = pybeam.Decoder(model_of(kind), ALGORITHMS[name], schedule)
    done = []
    for _ in range(chance.randint(1, 4)):
        action = chance.choice(ACTIONS)
        done.append(action.__name__)
        try:
            action(Scene(decoder, kind, name, chance))
            fault.calls_left = -1
            assert outcome(decoder, kind) == known, "the known requests have other results"
        except Exception as error:
            told = f"{kind}, {name}, {schedule!r}: {', '.join(done)}"
            raise AssertionError(f"{told}: {error!r}") from error


@dataclasses.dataclass
class Scene:
    """A decoder, what is known of it, and what decides what happens to it."""

    decoder: pybeam.Decoder
    kind: str
    name: str
    chance: random.Random

    def requests(self) -> tuple[list[Any], dict[int, int]]:
        """Odd and legal requests among known ones; the places of the known ones, and which they are."""
        known = known_requests(self.kind)
        mixed: list[Any] = []
        places: dict[int, int] = {}
        for i, request in enumerate(known):
            # a list that begins with a number would be a single source
            places[len(mixed)] = i
            mixed.append(request)
            mixed += [self.other() for _ in range(self.chance.choice([0, 0, 1, 2]))]
        return mixed, places

    def other(self) -> Any:
        chance = self.chance
        if chance.random() < 0.2:
            return chance.choice(VALUES)
        request = chance.choice(known_requests(self.kind))
        changes = {}
        for option in chance.sample(OPTIONS, chance.randint(1, 3)):
            is_odd = chance.random() < 0.5 or option not in PLAIN
            changes[option] = chance.choice(VALUES if is_odd else PLAIN[option])
        if chance.random() < 0.1:
            changes["source"] = chance.choice(VALUES)
        return dataclasses.replace(request, **changes)

    def check(self, results: list[Any], places: dict[int, int]) -> None:
        """Known requests give what they give alone; the others may fail, each with an error of its own."""
        known = known_results(self.kind, self.name)
        for result in results:
            if isinstance(result, pybeam.Partial):
                continue
            if result.index in places:
                [(_, *rest)] = essence([result])
                _, *expected = known[places[result.index]]
                assert rest == expected, f"request {result.index} has another result beside others"
            elif result.error is not None:
                if not isinstance(result.error, SAID):
                    raise AssertionError(f"request {result.index} failed") from result.error


def decodes(scene: Scene) -> None:
    requests, places = scene.requests()
    results = scene.decoder.decode(requests, on_error="return")
    assert [result.index for result in results] == list(range(len(requests)))
    scene.check(results, places)


def streams_and_leaves(scene: Scene) -> None:
    """A stream that is read to its end, closed early, or forgotten."""
    requests, places = scene.requests()
    wants_partials = scene.chance.random() < 0.5
    given = iter(requests) if scene.chance.random() < 0.5 else requests
    stream = scene.decoder.stream(given, partial=wants_partials)
    how_many = scene.chance.choice([0, 1, 3, 10**9])
    scene.check([result for result, _ in zip(stream, range(how_many), strict=False)], places)
    if scene.chance.random() < 0.7:
        stream.close()


def reads_a_broken_iterable(scene: Scene) -> None:
    requests, places = scene.requests()
    breaks_at = scene.chance.randrange(len(requests) + 1)

    def broken() -> Iterator[Any]:
        for i, request in enumerate(requests):
            if i == breaks_at:
                raise Planned("as planned")
            yield request

    found = []
    try:
        found.extend(scene.decoder.stream(broken()))
        assert breaks_at == len(requests), "the iterable's error was lost"
    except Planned:
        pass
    scene.check(found, places)


def fails_in_the_model(scene: Scene) -> None:
    """The caller's own model raises in a step, or the user presses Ctrl-C in it."""
    if scene.kind != "function":
        return
    fault.calls_left = scene.chance.randint(1, 12)
    fault.error = scene.chance.choice([Planned, KeyboardInterrupt])
    requests = known_requests(scene.kind)
    try:
        results = scene.decoder.decode(requests, on_error="return")
        assert all(result.error is None or isinstance(result.error, Planned) for result in results)
    except (Planned, KeyboardInterrupt):
        pass


def uses_a_queue(scene: Scene) -> None:
    requests, places = scene.requests()
    queue = pybeam.RequestQueue()

    def put() -> None:
        for request in requests:
            queue.put(request)
        queue.close()

    thread = threading.Thread(target=put)
    thread.start()
    results = list(scene.decoder.stream(queue))
    thread.join()
    assert len(results) == len(requests)
    scene.check(results, places)


def scores(scene: Scene) -> None:
    """Outputs get the scores that they were decoded with; other targets may fail."""
    requests = known_requests(scene.kind)
    targets = [scene.chance.choice([[3], [4, 3], *VALUES]) for _ in requests]
    try:
        results = scene.decoder.score(requests, targets, on_error="return")
    except SAID:
        return
    scene.check(results, {})


def asks_for_alternatives(scene: Scene) -> None:
    num = scene.chance.choice([1, 3, *VALUES])
    try:
        scene.check(
            scene.decoder.alternatives(known_requests(scene.kind), num, on_error="return"), {}
        )
    except SAID:
        pass


def gives_odd_arguments(scene: Scene) -> None:
    """Anything that takes arguments either takes them or says what is wrong with them."""
    chance, odd = scene.chance, scene.chance.choice(VALUES)
    makers: list[Callable[[], Any]] = [
        lambda: pybeam.fixed_beam(odd),
        lambda: pybeam.fixed_beam(
            3, **{chance.choice(["n_best", "min_length", "max_length"]): odd}
        ),
        lambda: pybeam.fixed_beam(3, **{chance.choice(["scoring", "processors", "stop"]): odd}),
        lambda: pybeam.variable_beam(3, *[chance.choice([None, odd]) for _ in range(4)]),
        lambda: pybeam.optimal_beam(3, odd),
        lambda: pybeam.stochastic_beam(3, seed=odd),
        lambda: pybeam.sample(
            1, **{chance.choice(["temperature", "top_k", "top_p", "min_p", "seed"]): odd}
        ),
        lambda: pybeam.jacobi(odd),
        lambda: pybeam.scoring.power(odd),
        lambda: pybeam.scoring.reward(0.1, odd),
        lambda: pybeam.Fifo(odd),
        lambda: pybeam.Streaming(4, odd),
        lambda: pybeam.Batch(tokens=odd),
        lambda: pybeam.Decoder(scene.decoder.model, scene.decoder.algorithm, odd),
        lambda: pybeam.Decoder(scene.decoder.model, scene.decoder.algorithm, backend=odd),
        lambda: pybeam.Decoder(scene.decoder.model, scene.decoder.algorithm, memory_limit=odd),
        lambda: scene.decoder.decode(odd),
        lambda: scene.decoder.decode([[1]], on_error=odd),
        lambda: scene.decoder.score(odd, [[3]]),
        lambda: list(scene.decoder.stream(odd)),
        lambda: processors.temperature(odd),
        lambda: processors.repetition_penalty(odd),
        lambda: processors.no_repeat_ngram(odd),
        lambda: processors.suppress_tokens(odd),
        lambda: processors.sequence_bias(odd),
        lambda: processors.encoder_repetition_penalty(1.2, odd),
        lambda: processors.suppress_sequences(odd),
        lambda: processors.allowed_sequences(odd),
        lambda: pybeam.Catalogue.build(odd),
    ]
    try:
        chance.choice(makers)()
    except (*SAID, pybeam.DecodeError):
        pass


def releases(scene: Scene) -> None:
    scene.decoder.release()


def copies(scene: Scene) -> None:
    twin = copy.copy(scene.decoder)
    assert outcome(twin, scene.kind) == known_results(scene.kind, scene.name)


def runs_two_streams(scene: Scene) -> None:
    requests, places = scene.requests()
    first, second = (scene.decoder.stream(requests) for _ in range(2))
    found: list[list[Any]] = [[], []]
    for one, other in zip(first, second, strict=True):
        found[0].append(one)
        found[1].append(other)
    for results in found:
        scene.check(results, places)


ACTIONS = (
    *(decodes, decodes, decodes, streams_and_leaves, reads_a_broken_iterable, fails_in_the_model),
    *(
        uses_a_queue,
        scores,
        asks_for_alternatives,
        gives_odd_arguments,
        gives_odd_arguments,
        releases,
    ),
    *(copies, runs_two_streams),
)
