"""The step is a program for the device: nothing is read back in it and no size depends on data."""

from __future__ import annotations

import dataclasses
import gc
import warnings

import pytest
import torch

import pybeam
from pybeam import backends, processors
from pybeam.backends.waiting import HostReadGuard, NoWaiting, Waits
from pybeam.engine.buckets import bucket, last_bucket
from pybeam.engine.cuda_graphs import MAX_GRAPHS, StepGraphs, capture_between_steps
from pybeam.engine.source import Source
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from pybeam.speech import whisper_timestamps
from support.device_loop import (
    REQUESTS,
    assert_alike,
    run,
    torch_beams,
)
from support.graph_memory import Replays
from support.laws import ALGORITHMS, essence, shares, some_schedules
from support.random_automata import KINDS, random_automaton
from support.recipes import RECIPES
from support.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("m2m_100")
    save_tiny_model(directory, "m2m_100")
    return load_model(directory)


DIVERSE = pybeam.diverse(pybeam.fixed_beam(2, max_length=15), 3, 0.5)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("twelfth", shares(4))
def test_a_step_never_waits(name, twelfth, transformer, guard):
    """The host reads one report a step, and results once for all sources that leave together."""
    algorithm = ALGORITHMS[name]
    for schedule in some_schedules(name, twelfth, num=12):
        guard.steps = guard.reads = 0
        workspace = Workspace(transformer, algorithm, torch_beams())
        options = dict(reads_late=True, partials=True)
        results, stats = run(workspace, schedule, **options)
        results = [result for result in results if isinstance(result, pybeam.Result)]
        assert not any(result.error for result in results)
        assert guard.steps == stats.steps
        assert guard.reads <= stats.steps - 1 + len(results)


@pytest.mark.slow
def test_a_step_of_groups_never_waits(transformer, guard):
    """Each group has results of its own, and what it chose is read with them."""
    for schedule in (pybeam.Fifo(5), pybeam.Streaming(4), pybeam.Batch(4, row_budget=5)):
        guard.steps = guard.reads = 0
        workspace = Workspace(transformer, DIVERSE, torch_beams())
        results, stats = run(workspace, schedule, reads_late=True)
        assert [result.stop_reason for result in results] == ["groups"] * len(REQUESTS)
        assert guard.steps == stats.steps
        assert guard.reads <= stats.steps - 1 + 2 * DIVERSE.num_groups * len(results)


def colder(logits, rows):
    return logits * (1 + (rows.position % 2)[:, None])


PROCESSORS = (
    processors.temperature(1.5),
    colder,
    processors.allowed_tokens(lambda rows: rows.num_generated[:, None] % 7 != torch.arange(45)),
    processors.suppress_tokens_at_start([2, 5]),
    processors.suppress_sequences([[9], [7, 8]]),
    processors.sequence_bias({(9,): 1.0, (7, 8): -1.0}),
    processors.encoder_repetition_penalty(1.2, [5, 7]),
    processors.repetition_penalty(1.3),
    processors.count_penalty(0.2, 0.1),
    processors.no_repeat_ngram(2),
    processors.encoder_no_repeat_ngram(2, [5, 7, 9]),
    whisper_timestamps(40),
    processors.top_k(30),
    processors.top_p(0.99),
    processors.min_p(0.001),
    processors.suppress_tokens([12], stage="log_probs"),
    processors.eos_penalty(0.9),
    processors.biased_prefix(0.2, [6, 7]),
)
TRIE = processors.allowed_sequences([[i % 45, i % 7 + 3, i % 31 + 3] for i in range(3, 400)])

FREE = (processors.constraint(),)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    "chain", [PROCESSORS, (TRIE,), FREE], ids=["processors", "trie", "constraints"]
)
def test_processors_and_requests_of_their_own_never_wait(transformer, guard, chain):
    algorithm = pybeam.variable_beam(
        5, 2.0, n_best=2, min_length=2, max_length=15, processors=chain
    )
    requests = [
        pybeam.Request(source, width=2 + i % 3, n_best=1, prefix=[4] * (i % 3), threshold=1 + i)
        for i, source in enumerate(REQUESTS)
    ]
    if chain is PROCESSORS:
        ids = processors.suppress_tokens([3, 4, 6, 8], stage="log_probs")
        requests.append(pybeam.Request([8, 9], processors=[processors.temperature(0.5), ids]))
    if chain is FREE:
        # each brings an automaton of its own, and the last ones make the pool grow
        own = [random_automaton(i, range(3, 45), 3 + i, KINDS[i % 3]) for i in range(len(requests))]
        requests = [
            dataclasses.replace(request, processors=[processors.constraint(automaton)])
            for request, automaton in zip(requests, own, strict=True)
        ]
    workspace = Workspace(transformer, algorithm, torch_beams())
    options = dict(requests=requests, log_probs=True)
    results, _ = run(workspace, pybeam.Fifo(5), reads_late=True, **options)
    exact = Workspace(transformer, algorithm, torch_beams())
    expected, _ = run(exact, pybeam.Fifo(5), **options)
    assert_alike(results, expected)


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_with_prefixes_never_wait(transformer, guard, name):
    requests = [
        pybeam.Request(source, prefix=[4 + i % 5] * (i % 3)) for i, source in enumerate(REQUESTS)
    ]
    workspace = Workspace(transformer, RECIPES[name], torch_beams())
    options = dict(requests=requests, log_probs=True)
    results, _ = run(workspace, pybeam.Fifo(5), reads_late=True, **options)
    exact = Workspace(transformer, RECIPES[name], backends.load("native"))
    expected, _ = run(exact, pybeam.Fifo(5), **options)
    assert_alike(results, expected)
    for result in results:
        for hypothesis in result.hypotheses:
            # of what is scored: all but a prefix that is not
            total = sum(hypothesis.log_probs)
            assert hypothesis.score == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("program", ["nonzero", "tolist", "boolean index", "repeat_interleave"])
def test_the_guard_sees_who_waits(program):
    x = torch.arange(3)
    programs = {
        "nonzero": lambda: (x > 1).nonzero(),
        "tolist": lambda: x.tolist(),
        "boolean index": lambda: x[x > 1],
        "repeat_interleave": lambda: x.repeat_interleave(x),
    }
    with pytest.raises(Waits, match="waits"), NoWaiting(), HostReadGuard():
        programs[program]()


CAPTURED = {
    **ALGORITHMS,
    "processors": pybeam.fixed_beam(4, n_best=4, max_length=15, processors=PROCESSORS),
    "trie": pybeam.fixed_beam(4, n_best=4, max_length=15, processors=(TRIE,)),
    "diverse": DIVERSE,
}


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    ("most", "every"), [(32, 1), (2, 1), (32, 3)], ids=["", "two graphs", "three steps a report"]
)
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_steps_give_the_same_results(
    transformer, name, most, every, graph_memory, monkeypatch
):
    algorithm = CAPTURED[name]
    plain = Workspace(transformer, algorithm, torch_beams())
    expected, _ = run(plain, pybeam.Fifo(5))
    workspace = Workspace(transformer, algorithm, torch_beams())
    capture = Replays(workspace)
    capture_between_steps(workspace)
    for schedule in (pybeam.Fifo(5), pybeam.Streaming(4), pybeam.Fifo(3, row_budget=80)):
        # a decoder has one schedule, which its graphs have as a constant
        workspace.graphs = StepGraphs(capture, most)
        options = dict(
            reads_late=True,
            reports_every=(every, 0),
            partials=schedule == pybeam.Streaming(4) and name != "diverse",
        )
        results, _ = run(workspace, schedule, **options)
        results = [result for result in results if isinstance(result, pybeam.Result)]
        assert_alike(results, expected)
        assert len(workspace.graphs) <= most
    assert capture.num_replays > capture.num_captures > 0


@pytest.mark.slow
@pytest.mark.thinned(most=1)
def test_decoders_with_graphs_take_turns(transformer, graph_memory, monkeypatch):
    """One loses its graphs while another goes on with its own; then a third begins."""

    def decode(workspace: Workspace) -> list:
        return run(workspace, pybeam.Fifo(2), REQUESTS[:2], reads_late=True)[0]

    def started() -> Workspace:
        workspace = Workspace(transformer, pybeam.greedy(max_length=8), torch_beams())
        workspace.graphs = StepGraphs(Replays(workspace))
        assert_alike(decode(workspace), expected)
        return workspace

    expected = decode(Workspace(transformer, pybeam.greedy(max_length=8), torch_beams()))
    first, second = started(), started()
    for _ in range(2):
        assert_alike(decode(second), expected)
        first.graphs._clear()
        assert_alike(decode(second), expected)
        assert_alike(decode(first), expected)
    del first
    gc.collect()
    third = started()
    assert_alike(decode(second), expected)
    assert_alike(decode(third), expected)


@pytest.mark.slow
def test_no_graph_is_replayed_with_room_for_more_tokens(transformer, graph_memory):
    """A wide search has had as many nodes as a narrow one that is longer, so that no array is replaced."""
    chain = (processors.no_repeat_ngram(2),)
    algorithm = pybeam.greedy(min_length=9, max_length=10, processors=chain)
    wide, long = pybeam.Request([5, 7], width=20, max_length=3, min_length=0), [5, 7]
    expected, _ = run(Workspace(transformer, algorithm, torch_beams()), pybeam.Fifo(1), [long])
    workspace = Workspace(transformer, algorithm, torch_beams())
    capture = Replays(workspace)
    workspace.graphs = StepGraphs(capture)
    run(workspace, pybeam.Fifo(1), [wide], reads_late=True)
    # it checks that the room is that of the capture
    results, _ = run(workspace, pybeam.Fifo(1), [long], reads_late=True)
    assert_alike(results, expected)
    assert capture.num_replays > 0


@pytest.mark.thinned(most=1)
def test_a_step_that_waits_is_never_captured(transformer, graph_memory):
    def waits(logits, rows):
        return logits + 0.0 * float(logits.max())

    chain = processors.from_function(waits, can_capture=True)
    algorithm = pybeam.fixed_beam(4, max_length=8, processors=(chain,))
    expected, _ = run(Workspace(transformer, algorithm, torch_beams()), pybeam.Fifo(5))
    workspace = Workspace(transformer, algorithm, torch_beams())
    capture = Replays(workspace)
    workspace.graphs = StepGraphs(capture)
    with pytest.warns(RuntimeWarning, match=r"without graphs: Tensor.__float__ waits"):
        # the step is committed: its report must not be lost
        warnings.simplefilter("error")
        results, _ = run(workspace, pybeam.Fifo(5), reads_late=True)
    assert_alike(results, expected)
    assert capture.num_captures == 0


def test_buckets_are_few_and_near():
    assert list(map(bucket, (1, 3, 5, 9, 10, 13, 17, 25))) == [1, 3, 6, 12, 12, 16, 24, 32]
    sizes = range(1, 5000)
    assert all(size <= bucket(size) < 1.5 * size for size in sizes)
    assert all(bucket(bucket(size)) == bucket(size) for size in sizes)
    assert all(bucket(size) < size + 16 for size in range(129, 512))
    assert all(bucket(size) <= 17 / 16 * size + 1 for size in sizes if size > 256)
    assert [bucket(beams * 5) for beams in (64, 128, 256)] == [320, 640, 1280]
    assert len({bucket(size) for size in sizes}) <= MAX_GRAPHS


def test_the_last_steps_of_a_stream_have_fewer_sizes():
    """None of them is larger than the one before, and all are buckets."""
    before, found = bucket(3200), []
    for size in range(3200, 0, -1):
        before = last_bucket(size, before)
        assert size <= before < 1.5 * size + 1 and bucket(before) == before
        found.append(before)
    assert found == sorted(found, reverse=True)
    assert sorted(set(found))[-8:] == [1024, 1280, 1536, 1792, 2048, 2560, 3072, 3200]


def source_of(algorithm) -> Source:
    """One of 9 positions."""
    request = pybeam.Request([5] * 8)
    return Source(
        index=0, request=request, content=None, algorithm=algorithm, source_length=9, prefix=[]
    )


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("late", [False, True])
def test_sources_wait_for_memory(transformer, late):
    algorithm = ALGORITHMS["variable"]
    free = Workspace(transformer, algorithm, torch_beams())
    expected, stats = run(free, pybeam.Fifo(8), reads_late=late)
    one = free.room.max_bytes(source_of(algorithm))
    limited = Workspace(transformer, algorithm, torch_beams(), memory_limit=2 * one)
    encode, encoded = limited.session.encode, []
    limited.session.encode = lambda sources, *args: (
        encoded.append(len(sources)),
        encode(sources, *args),
    )
    results, limited_stats = run(limited, pybeam.Fifo(8), reads_late=late)
    assert_alike(results, expected)
    assert max(encoded) <= 2  # none ahead that would not fit
    assert limited_stats.steps > stats.steps
    page_bytes = limited.session.max_bytes(16, 0)
    assert limited.tree.max_pages == 2 * one // page_bytes
    assert limited.state.tree.num_total_pages * page_bytes <= 2 * one


def test_a_request_that_can_never_fit_fails_alone(transformer):
    algorithm = pybeam.fixed_beam(4, max_length=15)
    small = Workspace(transformer, algorithm, torch_beams())
    limit = small.room.max_bytes(source_of(algorithm))
    decoder = pybeam.Decoder(transformer, algorithm, memory_limit=limit)
    requests = [[5, 6], pybeam.Request([5, 6], width=30), [7]]
    results = decoder.decode(requests, on_error="return")
    assert [result.stop_reason == "error" for result in results] == [False, True, False]
    message = str(results[1].error)
    assert "30 rows of 16 tokens" in message
    assert "`memory_limit`" in message
    assert "lower `width`" in message


def test_a_decoder_that_is_warm_has_memory_for_all(transformer):
    decoder = pybeam.Decoder(transformer, ALGORITHMS["fixed"], pybeam.Fifo(4))
    decoder.warm_up()
    (kept,) = decoder._idle
    before = [buffer.data_ptr() for buffer in kept.buffers()]
    assert not any(result.error for result in decoder.decode(REQUESTS[:4]))
    assert [buffer.data_ptr() for buffer in kept.buffers()] == before


def test_memory_is_kept_and_given_back(transformer):
    decoder = pybeam.Decoder(transformer, ALGORITHMS["fixed"])
    first = decoder.decode(REQUESTS)
    (kept,) = decoder._idle
    pages = decoder.stats.pages
    assert essence(decoder.decode(REQUESTS)) == essence(first)
    assert decoder._idle == [kept]
    assert decoder.stats.pages == pages
    assert int(kept.state.tree.num_free_pages) == pages
    stream = decoder.stream(REQUESTS)
    next(stream)
    stream.close()  # what it has half done goes with it
    assert decoder._idle == []
    assert essence(decoder.decode(REQUESTS)) == essence(first)
    decoder.release()
    assert decoder._idle == []


def test_graphs_need_a_gpu(transformer):
    with pytest.raises(ValueError, match=r"`graphs` needs a GPU .* the model is on cpu"):
        pybeam.Decoder(transformer, ALGORITHMS["fixed"], graphs=True)
    with pytest.raises(ValueError, match="`memory_limit` must be at least 1"):
        pybeam.Decoder(transformer, ALGORITHMS["fixed"], memory_limit=0)
    assert pybeam.Decoder(transformer, ALGORITHMS["fixed"], graphs=False)
