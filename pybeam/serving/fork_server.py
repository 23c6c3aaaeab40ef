"""`ForkServer`: a process that has models and no threads, and becomes engines."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import stat
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import NoReturn

log = logging.getLogger("pybeam.serving")

NUMBER_BYTES = 4


class ForkServer:
    """A process from which others begin as copies, so that all have the same weights in the same memory.

    It is a copy of the process that starts it, and does nothing else. It has one thread, beside those
    that a library starts anew in every copy, as OpenTelemetry does, and takes no lock that another thread may
    have held. It has none of the sockets and pipes, but for standard input, output and errors.
    Its copies begin within milliseconds, and as often as they are asked for. All of them end when the server
    is stopped, or when the process that started it ends and no other copy of that process is left.

    Args:
        serve: is called in each new process with a number and a connection, and ends the process when it
            returns.
    """

    def __init__(self, serve: Callable[[int, Connection], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._pid = 0
        self._is_over = False

    def start(self) -> None:
        """Begin now, as a copy of the present; otherwise the first `fork` begins it.

        Raises:
            OSError: it has been stopped.
        """
        with self._lock:
            self._start_unless_alive()

    def fork(self, number: int) -> tuple[Connection, int]:
        """Begin a process that serves this number. Returns the connection to it, and its id.

        Raises:
            OSError: it has been stopped, or there is no room for another process.
        """
        with self._lock:
            self._start_unless_alive()
            assert self._control is not None
            ours, theirs = socket.socketpair()
            with ours, theirs:
                socket.send_fds(self._control, [_bytes(number)], [theirs.fileno()])
                pid = _number(self._control.recv(NUMBER_BYTES))
                if not pid:
                    raise OSError("no process could be made; is there memory left?")
                return Connection(ours.detach()), pid

    def stop(self) -> None:
        """End all processes. They are gone when it returns."""
        with self._lock:
            self._is_over = True
            self._hang_up()
            self._is_alive(may_wait=True)

    def _is_alive(self, *, may_wait: bool = False) -> bool:
        """Return whether the server runs, after it has ended if this may wait."""
        # it may have ended before, if the program ignores what becomes of children, or waits for all of them
        with contextlib.suppress(ChildProcessError):
            if self._pid and os.waitpid(self._pid, 0 if may_wait else os.WNOHANG) == (0, 0):
                return True
        self._pid = 0  # the number may now be that of another child
        return False

    def _hang_up(self) -> None:
        if self._control is not None:
            hang_up(self._control)
            self._control = None

    def _start_unless_alive(self) -> None:
        if self._is_over:
            raise OSError("the processes of this service have been stopped")
        if self._is_alive():
            return
        self._hang_up()
        ours, theirs = socket.socketpair()
        # OpenMP keeps threads for each thread that computes, and a copy would wait for them for ever; a new
        # thread has none
        thread = threading.Thread(target=self._begin, args=[theirs])
        thread.start()
        thread.join()
        theirs.close()
        self._control = ours

    def _begin(self, control: socket.socket) -> None:
        with warnings.catch_warnings():
            # the copy uses nothing that another thread may hold
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            _end_behind(lambda: self._run(control))

    def _run(self, control: socket.socket) -> None:
        """Begin processes until the other side is closed. This is the life of the server."""
        signal.set_wakeup_fd(-1)
        # a terminal or a service manager sends them to all processes; the first one decides what they mean
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _close_all_but(control.fileno())
        # to look for garbage in what all share would copy it
        gc.freeze()
        pids: set[int] = set()
        signal.signal(signal.SIGCHLD, lambda *_: _reap(pids))
        with contextlib.suppress(ConnectionError):  # the other side has ended in the middle
            while self._begin_another(control, pids):
                pass
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for pid in pids:
            # a process that decodes has nothing to put in order
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _begin_another(self, control: socket.socket, pids: set[int]) -> bool:
        """Begin a process if the other side asks for one. Returns whether it does."""
        asked, files, _, _ = socket.recv_fds(control, NUMBER_BYTES, 1)
        if not files:
            return False
        try:
            pid = os.fork()
        except OSError:
            pid = 0  # which says so
        else:
            if not pid:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                _end_behind(partial(self._serve, _number(asked), Connection(files[0])))
            pids.add(pid)
            # it may have ended before it was known
            _reap(pids)
        os.close(files[0])
        control.sendall(_bytes(pid))
        return True


def _end_behind(act: Callable[[], None]) -> NoReturn:
    """End this process when the function has returned or raised; nothing that its maker began is ended."""
    status = 1
    try:
        act()
        status = 0
    except BaseException:
        log.exception("a process that `os.fork` made failed")
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)
    raise AssertionError


def hang_up(connection: Connection | socket.socket) -> None:
    """Close a connection. Its other end notices, though a copy of this process may have it as well."""
    with contextlib.suppress(OSError):  # the other end is closed
        own = socket.socket(fileno=connection.fileno())
        try:
            own.shutdown(socket.SHUT_RDWR)
        finally:
            own.detach()
    connection.close()


def _reap(pids: set[int]) -> None:
    """Forget those of the processes that have ended, and say so if something ended them.

    It is called at a signal, which may come while it runs.
    """
    for pid in list(pids):
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            found, status = pid, 0  # another call has found it
        if found:
            pids.discard(pid)
        if status:
            log.error("process %d has ended with status %d", pid, os.waitstatus_to_exitcode(status))


def _close_all_but(kept: int) -> None:
    """Close all sockets and pipes but one, and standard input, output and errors.

    They are the maker's, and whoever is at the other end waits until all copies are closed. Their numbers
    stay taken, so that objects that still name them close nothing else.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/dev/fd")):
        if number in {0, 1, 2, kept}:
            continue
        with contextlib.suppress(OSError):  # that of the folder itself is gone
            mode = os.fstat(number).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                os.dup2(nothing, number)


def _bytes(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big")


def _number(found: bytes) -> int:
    return int.from_bytes(found, "big")
