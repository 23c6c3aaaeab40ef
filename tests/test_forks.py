"""After `fork` the child decodes, or is told at once that it cannot."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

import pytest
import torch

import pybeam
from pybeam.serving import Service, ServiceClosed
from support.search_models import random_model
from support.tiny_models import save_tiny_model

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]
ALGORITHM = pybeam.fixed_beam(5, max_length=12)
# a function is asked about this number, whatever came before
REQUEST = pybeam.Request([1], source_id=1)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Threads of torch that are there when the process is forked."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1 << 20).exp()
    yield
    torch.set_num_threads(before)


def in_child(act: Callable[[], object]) -> bool:
    """Act in a forked child. Returns whether it has ended without an error, within some seconds."""
    child = os.fork()
    if child == 0:
        # who waits for a thread that does not exist ends so
        signal.alarm(20)
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return status == 0


def test_a_child_decodes_on_one_thread(two_threads, tmp_path):
    save_tiny_model(tmp_path, "m2m_100")
    model = pybeam.load_model(tmp_path, device="cpu")
    decoder = pybeam.Decoder(model, ALGORITHM)
    # so many rows that two threads share them
    sources = [[5, 6, 7, 2]] * 32
    expected = decoder.decode(sources)

    def again() -> None:
        assert torch.get_num_threads() == 1
        assert decoder.decode(sources) == expected
        assert pybeam.Decoder(model, ALGORITHM).decode(sources) == expected

    assert in_child(again)
    assert torch.get_num_threads() == 2
    assert decoder.decode(sources) == expected


def test_a_stream_is_not_continued_in_a_child():
    decoder = pybeam.Decoder(random_model(1), ALGORITHM, pybeam.Fifo(1))
    stream = decoder.stream(iter([[1]] * 20))
    next(stream)

    def go_on() -> None:
        with pytest.raises(
            RuntimeError, match=r"in a thread of process .* start a stream in this process"
        ):
            list(stream)
        stream.close()
        assert decoder.decode([[1]])

    assert in_child(go_on)
    assert len(list(stream)) == 19


def test_a_queue_is_not_copied():
    decoder = pybeam.Decoder(random_model(1), ALGORITHM)
    queue = pybeam.RequestQueue()
    queue.put(REQUEST)
    # as another thread may at the time
    with queue._changed:

        def use() -> None:
            for act in (lambda: queue.put(REQUEST), lambda: list(decoder.stream(queue))):
                with pytest.raises(
                    RuntimeError, match=r"belongs to process .* open a queue in this"
                ):
                    act()
            queue.close()
            own = pybeam.RequestQueue()
            own.put(REQUEST)
            own.close()
            assert len(list(decoder.stream(own))) == 1

        assert in_child(use)
    queue.close()
    assert len(list(decoder.stream(queue))) == 1


def test_a_service_is_not_copied():
    decoder = pybeam.Decoder(random_model(1), ALGORITHM)
    with Service(decoder) as service:
        expected = service.submit(REQUEST).result().result.hypotheses

        def ask() -> None:
            assert not service.is_ready
            with pytest.raises(ServiceClosed, match=r"is a copy that os.fork made, .* start one"):
                service.submit(REQUEST)
            service.close()
            with Service(decoder) as own:
                assert own.submit(REQUEST).result().result.hypotheses == expected

        assert in_child(ask)
        assert service.submit(REQUEST).result().result.hypotheses == expected


def test_graphs_with_threads_say_where_they_can_run(two_threads, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx_ir")
    save_tiny_model(tmp_path / "floats", "m2m_100")
    pybeam.export.export_onnx(
        pybeam.load_model(tmp_path / "floats", device="cpu"), tmp_path / "graphs"
    )
    decoder = pybeam.Decoder(pybeam.load_model(tmp_path / "graphs"), ALGORITHM)
    decoder.decode([[5, 6, 2]])

    def again() -> None:
        [result] = decoder.decode([[5, 6, 2]], on_error="return")
        assert "load the model in this process" in str(result.error)

    assert in_child(again)
