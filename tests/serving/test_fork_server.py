"""The process that begins engine processes: how it ends, and what it has of its maker."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import time

from pybeam.serving.fork_server import ForkServer, _close_all_but, _reap
from pybeam.serving.forked_decoder import LONGEST_PAUSE, ForkedDecoder
from support.gates import WAIT_SECONDS
from support.served import decoder, is_alive, wait_for


def test_a_server_that_others_copy_or_wait_for():
    """A copy of the program holds the connections as well, and the program may ignore its children."""
    server = ForkServer(lambda number, connection: connection.recv_bytes())
    connection, pid = server.fork(0)
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[WAIT_SECONDS])
    process.start()
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        server.stop()
    finally:
        signal.signal(signal.SIGCHLD, before)
        connection.close()
    assert process.is_alive() and not is_alive(pid) and not server._pid
    process.kill()
    process.join()


def test_a_server_whose_maker_ends_before_it_hears_the_answer():
    server = ForkServer(lambda *_: signal.pause())
    connection, pid = server.fork(0)
    control, server._control = server._control, None
    socket.send_fds(control, [bytes(4)], [connection.fileno()])
    assert select.select([control], [], [], WAIT_SECONDS)[0]
    control.close()
    server.stop()
    connection.close()
    assert not is_alive(pid)


def test_a_server_forgets_those_that_have_ended():
    server = ForkServer(lambda *_: None)
    pids = []
    for number in range(5):
        connection, pid = server.fork(number)
        connection.close()
        pids.append(pid)
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    server.stop()
    # a signal may come while another is answered, so that this one finds nothing
    known = {os.getpid()}
    _reap(known)
    assert not known


def test_a_process_goes_on_to_write_errors():
    """A service manager may have connected standard error to a socket."""
    ours, theirs = socket.socketpair()

    def write():
        os.dup2(theirs.fileno(), 2)
        _close_all_but(-1)
        os.write(2, b"an error")
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    theirs.close()
    with ours:
        assert ours.recv(8) == b"an error"
    process.join()


def test_pauses_do_not_grow_for_ever(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    one = ForkedDecoder(decoder(), ForkServer(lambda *_: None), 0)
    one._num_losses = 5000
    one._lose()
    assert pauses == [LONGEST_PAUSE]
