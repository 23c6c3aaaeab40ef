"""Processes, signals, locks, links and limits: what programs and services ask of a system."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import sys
from pathlib import Path

# the signals that end a process
ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
#: tells a server to read files again; None: this system has no such signal
HANGUP = getattr(signal, "SIGHUP", None)
# of prctl, on Linux
PR_SET_PDEATHSIG = 1
# the place of a lock on Windows, which keeps others from reading the byte: few files are as long, and
# msvcrt counts in 32 bits
BEYOND = 0x7FFFFFFE
# ERROR_PRIVILEGE_NOT_HELD, of Windows
NOT_PRIVILEGED = 1314
# of Linux's tcp_info: milliseconds since bytes came, counted in ticks of the system, the longest of which
# is that of 100 a second
LAST_BYTES, TICK_MS = slice(52, 56), 10
#: why several processes are refused where `can_fork` says no
ONLY_LINUX_FORKS = "only on Linux can copies of a process compute"


def can_fork() -> bool:
    """Whether a copy of this process may compute. On macOS, libraries of the system forbid it."""
    return sys.platform == "linux" and hasattr(os, "fork")


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def give_way(nice: int) -> None:
    """Add to the niceness of this thread, and so of those that it starts. Only Linux has one for a thread."""
    if nice and sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + nice))


def belong_to_parent() -> None:
    """Leave Ctrl-C and a closed terminal to the process that forked this one, and end with that process.

    A process that is killed cannot end its children, so the system does it.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def seconds_unread(descriptor: int) -> float:
    """Return for how long the last bytes of a TCP connection have been here, less a tick; 0: nobody knows."""
    if sys.platform != "linux":
        return 0.0
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_BYTES.stop)
    except OSError:  # it is no TCP
        return 0.0
    finally:
        # the descriptor is that of another object
        connection.detach()
    return max(0, int.from_bytes(known[LAST_BYTES], sys.byteorder) - TICK_MS) / 1000


def lines_of_proc(name: str) -> list[str]:
    """Return the lines of a file in Linux's /proc; elsewhere none."""
    try:
        return Path("/proc", name).read_text("utf-8").splitlines()
    except OSError:
        return []


def hold(fd: int) -> bool:
    """Lock an open file until it is closed. Returns False if another process has locked it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return _hold_on_windows(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _hold_on_windows(fd: int) -> bool:
    import msvcrt

    place = os.lseek(fd, 0, os.SEEK_CUR)
    os.lseek(fd, BEYOND, os.SEEK_SET)
    try:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except PermissionError:
        return False
    finally:
        os.lseek(fd, place, os.SEEK_SET)
    return True


def sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk. Windows opens no folder, and does so itself."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def link(path: Path, target: Path) -> None:
    """Make `path` a link to a file, or a copy where only an administrator makes links.

    Raises:
        OSError: the file cannot be made, or is there.
    """
    try:
        if hasattr(os, "symlink"):
            os.symlink(target, path)
            return
    except OSError as error:
        if getattr(error, "winerror", None) != NOT_PRIVILEGED:
            raise
    with open(target, "rb") as source, open(path, "xb") as copy:
        shutil.copyfileobj(source, copy)


def is_ready(fd: int, seconds: float) -> bool:
    """Whether a file, a pipe or a terminal can be read within this time."""
    if sys.platform == "win32":  # select knows only sockets there
        return True
    return bool(select.select([fd], [], [], seconds)[0])


def raise_file_limit() -> int:
    """Let this process open as many files as it may; the usual limit is 1024. Returns how many."""
    try:
        import resource
    except ImportError:  # not on Windows
        return sys.maxsize
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS may name a limit that it does not grant
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    granted, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if granted == resource.RLIM_INFINITY else granted
