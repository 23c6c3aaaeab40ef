"""Abilities that some systems lack are named in `pybeam/platforms` alone, and pybeam works without them."""

import ast
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import pybeam
from pybeam.platforms import system as of_programs
from pybeam.platforms.decoding import at_fork
from pybeam.platforms.system import ONLY_LINUX_FORKS, hold, link
from support.paths import MODEL, ROOT
from support.server_process import running

# run only where `can_fork` says that this is Linux
FORKED = {"engine_process", "fork_server", "forked_decoder", "sound_process"}
FORKED = {f"pybeam/serving/{name}.py" for name in FORKED}
MODULES = {"ctypes", "fcntl", "grp", "msvcrt", "pwd", "resource", "select", "termios", "winreg"}
# of these modules, all that Windows and macOS have as well
KNOWN = {
    "mmap": {"ACCESS_COPY", "ACCESS_READ", "ALLOCATIONGRANULARITY", "mmap"},
    "signal": {"SIGINT", "SIGTERM", "SIG_DFL", "SIG_IGN", "Signals"}
    | {"default_int_handler", "getsignal", "signal"},
}
LACKING = {
    "os": {
        *(
            "O_CLOEXEC",
            "O_DIRECT",
            "O_DIRECTORY",
            "WNOHANG",
            "chown",
            "fchmod",
            "fork",
            "forkpty",
            "geteuid",
        ),
        *("getloadavg", "getpgid", "getppid", "getuid", "killpg", "memfd_create", "mkfifo"),
        *("name", "nice", "posix_fadvise", "posix_spawn", "pread", "preadv", "pwrite"),
        *("register_at_fork", "sched_getaffinity", "sched_setaffinity", "sendfile", "setpgid"),
        *("setsid", "statvfs", "symlink", "sync", "uname"),
    },
    "sys": {"platform", "getwindowsversion"},
    "socket": {"AF_UNIX", "SCM_RIGHTS", "recv_fds", "send_fds"},
}


def asks(node: ast.AST) -> bool:
    """Whether this names something that a system may lack, or asks which system this is."""
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in MODULES for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        unknown = names - KNOWN[node.module] if node.module in KNOWN else set()
        room = (node.module or "").partition(".")[0]
        return room in MODULES or bool(unknown | names & LACKING.get(node.module, set()))
    if isinstance(node, ast.Attribute):
        if node.attr in ("symlink_to", "hardlink_to"):
            return True
        module = node.value.id if isinstance(node.value, ast.Name) else ""
        unknown = module in KNOWN and node.attr not in KNOWN[module]
        return unknown or node.attr in LACKING.get(module, ())
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
        return getattr(node.args[0], "id", "") in {*KNOWN, *LACKING}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.startswith(("/dev/", "/proc", "/sys/"))
    return False


def places(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT).as_posix()
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    yield from (f"{name}:{node.lineno}" for node in nodes if asks(node))


def test_one_room_asks_which_system_this_is():
    paths = [*(ROOT / "pybeam").rglob("*.py"), *(ROOT / "packages/client").rglob("*.py")]
    found = [one for path in paths for one in places(path)]
    outside = [one for one in found if not one.startswith("pybeam/platforms/")]
    assert {one.partition(":")[0] for one in outside} <= FORKED, outside
    # so the search finds what there is
    assert len(found) - len(outside) > 10


@pytest.mark.parametrize(
    "line",
    [
        "from fcntl import flock",
        "import json, fcntl",
        "import ctypes.util",
        "from ctypes.util import find_library",
        "f'/proc/{name}'",
        "os.sync()",
    ],
)
def test_a_question_is_found(line):
    assert any(asks(node) for node in ast.walk(ast.parse(line)))


def test_a_lock_of_windows(monkeypatch, tmp_path):
    locked: dict[int, int] = {}

    def locking(fd: int, mode: int, num: int) -> None:
        place = os.lseek(fd, 0, os.SEEK_CUR)
        if place in locked.values():
            raise PermissionError
        locked[fd] = place

    monkeypatch.setitem(sys.modules, "fcntl", None)
    fake = types.SimpleNamespace(LK_NBLCK=2, locking=locking)
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with path.open("rb") as mine, path.open("rb") as other:
        assert mine.read(3) == b"con"
        assert hold(mine.fileno())
        assert not hold(other.fileno())
        assert min(locked.values()) > path.stat().st_size
        assert other.read() == b"content" and mine.read() == b"tent"


def test_a_system_without_links_and_copies_of_processes(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "symlink")
    monkeypatch.delattr(os, "register_at_fork")
    at_fork(lambda: None)
    (tmp_path / "file").write_bytes(b"content")
    link(tmp_path / "copy", tmp_path / "file")
    assert not (tmp_path / "copy").is_symlink()
    assert (tmp_path / "copy").read_bytes() == b"content"
    with pytest.raises(FileExistsError):
        link(tmp_path / "copy", tmp_path / "file")


def test_only_a_missing_privilege_makes_a_copy(monkeypatch, tmp_path):
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"content")
    other.write_bytes(b"other")
    with pytest.raises(FileExistsError):
        link(other, path)
    assert other.read_bytes() == b"other" and not other.is_symlink()

    def refused(target: Path, path: Path) -> None:
        error = OSError("refused")
        error.winerror = code
        raise error

    monkeypatch.setattr(os, "symlink", refused)
    code = 5
    with pytest.raises(OSError, match="refused"):
        link(tmp_path / "copy", path)
    code = 1314
    link(tmp_path / "copy", path)
    assert (tmp_path / "copy").read_bytes() == b"content"


def test_a_service_has_processes_on_linux_alone(monkeypatch):
    monkeypatch.setattr(of_programs, "sys", types.SimpleNamespace(platform="darwin"))
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), pybeam.greedy())
    with pytest.raises(ValueError, match=f"`processes` .*{ONLY_LINUX_FORKS}; let threads decode"):
        pybeam.Service(decoder, processes=True)


def elsewhere(system: str, *arguments: str, **settings) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PRETEND": system, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-X", "warn_default_encoding", "-m", "support.other_system"]
    return subprocess.run(
        [*command, *arguments], env=env, cwd=ROOT, capture_output=True, text=True, **settings
    )


@pytest.fixture(params=["win32", "darwin"])
def system(request) -> str:
    return request.param


@pytest.mark.slow
def test_every_module_is_imported_there(system):
    done = elsewhere(system, "imports")
    assert not done.returncode, done.stderr


@pytest.mark.slow
def test_lines_are_translated_there(system, tmp_path):
    options = ["translate", "--model", str(MODEL)]
    lines = "Jesús lloró.\nDios es amor.\n"
    done = elsewhere(system, *options, input=lines)
    assert not done.returncode, done.stderr
    here = subprocess.run(
        [sys.executable, "-m", "pybeam", *options],
        input=lines,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == here.stdout
    (tmp_path / "lines").write_text(lines, "utf-8")
    files = ["--input", str(tmp_path / "lines"), "--output-dir", str(tmp_path / "out")]
    done = elsewhere(system, *options, *files, "--processes", "2")
    assert done.returncode and ONLY_LINUX_FORKS in done.stderr
    done = elsewhere(system, *options, *files, "--processes", "auto", "--part-lines", "1")
    assert not done.returncode, done.stderr
    parts = sorted((tmp_path / "out").glob("part-*"))
    assert "".join(part.read_text("utf-8") for part in parts) == here.stdout


@pytest.mark.slow
def test_a_server_answers_there(system):
    import httpx

    where = {"PRETEND": system, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    with running(models=[MODEL], module="support.other_system", **where) as server:
        asked = {"q": "Jesús lloró.", "source": "es", "target": "en"}
        answer = httpx.post(f"{server.url}/translate", json=asked)
        assert answer.json()["translatedText"] == "Jesus wept."
        assert server.stop() == 0
