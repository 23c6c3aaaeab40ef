"""A beam of 4,096 rows in a service: it may leave at any step, and its neighbours notice nothing."""

from __future__ import annotations

import random
import threading
from contextlib import closing

import pytest

import pybeam
from support.front_ends import sources
from support.gates import WAIT_SECONDS
from support.laws import essence
from support.tiny_models import save_tiny_model

NARROW = pybeam.fixed_beam(3, max_length=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("m2m_100")
    save_tiny_model(directory, "m2m_100")
    return pybeam.load_model(directory, device="cpu")


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_wide_beam_that_leaves_takes_nobody_along(model, seed):
    rng = random.Random(seed)
    requests = [pybeam.Request(one) for one in sources(4)]
    wide = pybeam.Request(requests[0].source, width=4096, n_best=4096, max_length=4)
    [whole] = pybeam.Decoder(model, NARROW).decode([wide])
    expected = [one[1:] for one in essence(pybeam.Decoder(model, NARROW).decode(requests))]
    service = pybeam.Service(pybeam.Decoder(model, NARROW, pybeam.Fifo(4))).start(warm_up=False)
    with closing(service):
        # at once, and at some step
        for seconds in (0.0, rng.random() / 10, rng.random() / 4):
            gone = service.submit(wide)
            futures = [service.submit(request) for request in requests]
            timer = threading.Timer(seconds, gone.cancel)
            timer.start()
            found = [future.result(WAIT_SECONDS).result for future in futures]
            assert [one[1:] for one in essence(found)] == expected
            timer.join()
            assert seconds or gone.cancelled()
        kept = service.submit(wide).result(WAIT_SECONDS).result
    assert essence([kept])[0][1:] == essence([whole])[0][1:]
    assert len(kept.hypotheses) > 1000
    status = service.status()
    assert (status.num_running, status.num_waiting, status.cache_use) == (0, 0, 0)
