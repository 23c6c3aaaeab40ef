"""Captured steps on a GPU: the same results, with arrays that grow and decoders that come and go.

`make gpu-test` runs this file last, in a process of its own: a failed capture may break what follows.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.export import convert_fireredasr
from pybeam.models import load_model
from pybeam.models.transformer.sources import SharedFeatures
from support.device_loop import REQUESTS, assert_alike
from support.example_model import LINES, assert_agree
from support.fireredasr_files import save_published
from support.laws import ALGORITHMS
from support.on_a_gpu import as_in_production
from support.paths import MODEL
from support.speech_models import random_features, save_tiny_speech_model
from support.tiny_models import save_tiny_model

pytestmark = pytest.mark.graphs
LONG = pybeam.fixed_beam(4, min_length=70, max_length=80)


@pytest.fixture
def on_gpu(device, tmp_path):
    if device.type != "cuda":
        pytest.skip("needs a GPU (--device cuda)")
    save_tiny_model(tmp_path, "m2m_100", max_position_embeddings=128)  # those of `LONG`, and more
    with as_in_production():
        yield load_model(tmp_path, device=device)


def num_graphs(decoder: pybeam.Decoder) -> int:
    return sum(len(workspace.graphs) for workspace in decoder._idle)


def test_nothing_synchronises(on_gpu):
    """But the host's waiting for the events of its own copies."""
    decoder = pybeam.Decoder(on_gpu, ALGORITHMS["variable"], pybeam.Fifo(5), graphs=False)
    expected = decoder.decode(REQUESTS)  # compiles what is needed
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = decoder.decode(REQUESTS, on_error="return")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for result in found:
        if result.error is not None:
            # its traceback shows where
            raise result.error
    assert_alike(found, expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_results_are_the_same(on_gpu, name):
    results = []
    for graphs in (False, True):
        decoder = pybeam.Decoder(on_gpu, ALGORITHMS[name], pybeam.Fifo(5), graphs=graphs)
        decoder.decode(REQUESTS)
        results.append(decoder.decode(REQUESTS))
    assert num_graphs(decoder) > 0
    assert_alike(*results)


@pytest.mark.parametrize("schedule", [pybeam.Fifo(4), pybeam.Streaming(4)], ids=["fifo", "stream"])
def test_long_outputs_outgrow_graphs(on_gpu, schedule):
    plain = pybeam.Decoder(on_gpu, LONG, schedule, graphs=False).decode(REQUESTS)
    decoder = pybeam.Decoder(on_gpu, LONG, schedule, graphs=True)
    for _ in range(3):
        assert_alike(decoder.decode(REQUESTS), plain)
    assert num_graphs(decoder) > 0


@pytest.mark.parametrize("kind", ["Whisper", "Speech2Text", "FireRedASR"])
def test_sound_is_encoded_as_without_graphs(on_gpu, tmp_path, kind):
    """Few recordings and many, of many lengths, some of which requests share."""
    if kind == "FireRedASR":
        save_published(tmp_path / "published", seed=14, eos_nats=3.0)
        convert_fireredasr(tmp_path / "published", tmp_path / kind)
    else:
        save_tiny_speech_model(tmp_path / kind, kind=kind)
    model = load_model(tmp_path / kind, device=on_gpu.device)
    sources = random_features(20, num_features=model.config.sound.num_features)
    plain = pybeam.Decoder(model, ALGORITHMS["fixed"], pybeam.Fifo(5), graphs=False).decode(sources)
    decoder = pybeam.Decoder(model, ALGORITHMS["fixed"], pybeam.Fifo(5), graphs=True)
    for _ in range(3):
        shared = [SharedFeatures(source) for source in sources[:3]]
        assert_alike(decoder.decode([*shared, *sources[3:], *shared]), plain + plain[:3])
    kept = {key[0] for workspace in decoder._idle for key in workspace.graphs._graphs}
    assert "encode" in kept


def test_decoders_take_turns(on_gpu):
    """Graphs of one are dropped while another replays its own."""
    algorithms = ALGORITHMS["fixed"], ALGORITHMS["variable"], LONG
    plain = [pybeam.Decoder(on_gpu, a, graphs=False).decode(REQUESTS) for a in algorithms]
    decoders = [pybeam.Decoder(on_gpu, a, graphs=True) for a in algorithms]
    for _ in range(3):
        for decoder, expected in zip(decoders, plain, strict=True):
            assert_alike(decoder.decode(REQUESTS), expected)
    decoders.pop(0)
    gc.collect()
    torch.cuda.empty_cache()
    for decoder, expected in zip(decoders, plain[1:], strict=True):
        assert_alike(decoder.decode(REQUESTS), expected)


@pytest.mark.parametrize("schedule", [pybeam.Fifo(6), pybeam.Streaming(6)], ids=["fifo", "stream"])
def test_the_example_model_translates_as_on_a_cpu(on_gpu, device, schedule):
    tokenizer = pybeam.load_tokenizer(MODEL)
    sources = [tokenizer.encode(line) for line in LINES] * 8
    algorithm = pybeam.fixed_beam(5, n_best=5, max_length=60)
    models = [load_model(MODEL, device=d, dtype="float32") for d in (device, "cpu")]
    found, expected = (pybeam.Decoder(m, algorithm, schedule).decode(sources) for m in models)
    assert_agree(found, expected)


@pytest.mark.parametrize("is_seen", [True, False], ids=["raises", "breaks"])
def test_a_capture_that_fails_breaks_nothing_else(on_gpu, is_seen):
    """It waits for the stream that is captured, or ends before another stream has been joined."""
    # those of this priority are no decoder's
    side = torch.cuda.Stream(on_gpu.device, priority=-1)

    def fails(logits, rows):
        if torch.cuda.is_current_stream_capturing():
            if is_seen:
                torch.cuda.current_stream().synchronize()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                logits.add(1)
        return logits

    own = processors.from_function(fails, can_capture=True)
    algorithm = pybeam.fixed_beam(4, n_best=4, max_length=15, processors=[own])
    plain = pybeam.Decoder(on_gpu, algorithm, pybeam.Fifo(5), graphs=False).decode(REQUESTS)
    decoder = pybeam.Decoder(on_gpu, algorithm, pybeam.Fifo(5), graphs=True)
    with pytest.warns(RuntimeWarning, match="without graphs: .*AcceleratorError: CUDA error"):
        found = [decoder.decode(REQUESTS) for _ in range(3)]
    for results in found:
        assert_alike(results, plain)
    assert num_graphs(decoder) == 0
    # the allocator would refuse, had it not been told that the capture is over
    torch.cuda.empty_cache()
    another = pybeam.Decoder(on_gpu, ALGORITHMS["fixed"], pybeam.Fifo(5), graphs=True)
    for _ in range(2):
        assert_alike(another.decode(REQUESTS), plain)
    assert num_graphs(another) > 0


@pytest.mark.parametrize("collects", [False, True], ids=["by itself", "by force"])
def test_a_decoder_that_is_garbage_takes_no_graphs_from_another(on_gpu, collects):
    """Its graphs do not die in a capture. If they are made to, the capture is tried again."""
    gone = pybeam.Decoder(on_gpu, ALGORITHMS["fixed"], pybeam.Fifo(5), graphs=True)
    for _ in range(2):
        gone.decode(REQUESTS)
    assert num_graphs(gone) > 0
    held, left, found = [gone], weakref.WeakSet([gone]), []
    del gone

    def leaves_garbage(logits, rows):
        if held and torch.cuda.is_current_stream_capturing():
            # as the engines of a service
            cycle = [held.pop()]
            cycle.append(cycle)
            del cycle
            # more than a collection waits for
            kept = [[] for _ in range(10 * gc.get_threshold()[0])]
            if collects:
                gc.collect()
            # an error here would be one of the capture
            found.append((len(kept) > 0, len(left)))
        return logits.add(0)

    own = processors.from_function(leaves_garbage, can_capture=True)
    algorithm = pybeam.fixed_beam(4, n_best=4, max_length=15, processors=[own])
    plain = pybeam.Decoder(on_gpu, algorithm, pybeam.Fifo(5), graphs=False).decode(REQUESTS)
    decoder = pybeam.Decoder(on_gpu, algorithm, pybeam.Fifo(5), graphs=True)
    for _ in range(2):
        assert_alike(decoder.decode(REQUESTS), plain)
    assert found == [(True, 0 if collects else 1)]
    assert num_graphs(decoder) > 0
