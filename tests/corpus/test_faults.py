"""Whatever happens to a run, the final output is that of a run to which nothing happened."""

import ctypes
import errno
import fcntl
import gzip
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest

from pybeam.cli import main
from support.corpus_runs import Forked, command, contents, corpus_bytes, run, write_corpus
from support.paths import ROOT


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    code, said = run(command(source, folder / "out"), folder / "log")
    assert (code, said) == (0, "pybeam: 1 line failed; errors.jsonl says why\n")
    return contents(folder / "out")


@pytest.mark.slow
def test_nothing_is_there_but_parts_and_errors(expected):
    assert list(expected) == ["errors.jsonl", *(f"part-{i:05}.txt" for i in range(8))]
    text = b"".join(expected[name] for name in list(expected)[1:])
    assert text.count(b"\n") == 22
    assert b'{"line": 8, "error": "expected UTF-8, but byte 5 is 0xe9' in expected["errors.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--processes=2"]], ids=["one", "pool"])
@pytest.mark.parametrize(
    "num_kills", [2, pytest.param(50, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_killed_at_random_moments(source, expected, tmp_path, options, num_kills):
    rng = random.Random(num_kills)
    log, num_folders = tmp_path / "log", 0
    while num_kills > 0:
        folder, code = tmp_path / f"out{num_folders}", None
        num_folders += 1
        while code != 0:
            process = Forked(lambda folder=folder: main(command(source, folder, *options)), log)
            if num_kills > 0:
                time.sleep(rng.uniform(0, 0.4))
                process.kill()
                num_kills -= 1
            code = process.wait()
            assert code in (0, -signal.SIGKILL), log.read_text("utf-8")
        assert contents(folder) == expected
        # it is done, and says so at once
        assert run(command(source, folder, *options), log)[0] == 0
        assert contents(folder) == expected


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_end(source, expected, tmp_path, number):
    folder, log = tmp_path / "out", tmp_path / "log"
    process = Forked(lambda: main(command(source, folder)), log)
    while not (folder / "part-00000.txt").exists():
        time.sleep(0.005)
    process.kill(number)
    code = process.wait()
    assert code in (0, 128 + number)
    assert "Traceback" not in log.read_text("utf-8")
    assert ("start again to go on" in log.read_text("utf-8")) == (code != 0)
    assert run(command(source, folder), log)[0] == 0
    assert contents(folder) == expected


@pytest.mark.slow
def test_processes_end_with_the_run_that_is_killed(source, tmp_path):
    folder, log = tmp_path / "out", tmp_path / "log"
    process = Forked(lambda: main(command(source, folder, "--processes=2")), log)
    while not (folder / "part-00000.txt").exists():
        time.sleep(0.005)
    process.kill()
    process.wait()
    # the lock is free at once, and nobody is left in the session
    with open(folder / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    deadline = time.monotonic() + 20
    while _session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _session(process.pid)


def _session(pid: int) -> list[str]:
    """The living processes of a session."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,stat=", "-s", str(pid)], capture_output=True, text=True
    )
    return [line for line in listed.stdout.splitlines() if "Z" not in line]


@pytest.mark.slow
def test_a_disk_that_is_full(source, expected, tmp_path):
    folder, log = tmp_path / "out", tmp_path / "log"

    def limited() -> int:
        # parts fit, the manifest does not
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
        return main(command(source, folder))

    assert Forked(limited, log).wait() == 1
    assert "cannot write" in log.read_text("utf-8") and "File too large" in log.read_text("utf-8")
    assert run(command(source, folder), log)[0] == 0
    assert contents(folder) == expected


@pytest.mark.slow
@pytest.mark.parametrize("call", [3, pytest.param(6, marks=pytest.mark.slow), 9])
@pytest.mark.parametrize("name", ["write", "fsync", "replace"])
def test_no_space_in_the_middle(source, expected, tmp_path, name, call):
    """The n-th call of the system fails, and all later ones."""
    folder, log = tmp_path / "out", tmp_path / "log"

    def failing() -> int:
        if name == "write":
            import pybeam.corpus.folder as module

            module.open = lambda *arguments: _Full(open(*arguments), counted)
        else:
            real = getattr(os, name)

            def fail(*arguments):
                counted()
                return real(*arguments)

            setattr(os, name, fail)
        return main(command(source, folder))

    num_calls = 0

    def counted() -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls >= call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert Forked(failing, log).wait() == 1
    said = log.read_text("utf-8")
    assert "No space left on device" in said and "start again" in said and "Traceback" not in said
    assert not list(folder.glob("*.unfinished"))
    assert run(command(source, folder), log)[0] == 0
    assert contents(folder) == expected


class _Full:
    """A file on a disk that is full after some writes."""

    def __init__(self, file, counted) -> None:
        self._file, self._counted = file, counted

    def write(self, content):
        if "w" in self._file.mode:
            self._counted()
        return self._file.write(content)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self._file.close()


def test_a_folder_that_cannot_be_written(source, tmp_path):
    (tmp_path / "file").write_text("")
    code, said = run(command(source, tmp_path / "file" / "out"), tmp_path / "log")
    assert code == 1 and "cannot write into" in said and "Not a directory" in said


@pytest.mark.slow
def test_a_folder_that_is_read_only(source, expected, tmp_path):
    """Root may write whatever the mode, but not what is mounted to be read."""
    folder, log = tmp_path / "out", tmp_path / "log"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 1, None) != 0:
            pytest.skip(f"root writes everywhere, and mount says {os.strerror(ctypes.get_errno())}")
    else:
        folder.chmod(0o500)
    try:
        code, said = run(command(source, folder), log)
        assert code == 1 and "cannot write into" in said and "Traceback" not in said
    finally:
        if os.geteuid() == 0:
            libc.umount(bytes(folder))
        else:
            folder.chmod(0o700)
    assert run(command(source, folder), log)[0] == 0
    assert contents(folder) == expected


@pytest.mark.slow
def test_an_input_that_changes_between_runs(source, expected, tmp_path):
    path, folder, log = tmp_path / "corpus.es.gz", tmp_path / "out", tmp_path / "log"
    path.write_bytes(source.read_bytes())
    _interrupt_after_a_part(path, folder, log)
    path.write_bytes(gzip.compress(corpus_bytes() + b"otro\n", mtime=0))
    code, said = run(command(path, folder), log)
    assert code == 1 and "has changed since the run began" in said and "--force" in said
    path.write_bytes(source.read_bytes())
    assert run(command(path, folder), log)[0] == 0
    assert contents(folder) == expected


@pytest.mark.slow
def test_a_line_that_changes_between_runs(expected, tmp_path):
    path, folder, log = tmp_path / "corpus.es", tmp_path / "out", tmp_path / "log"
    text = corpus_bytes()
    path.write_bytes(text)
    _interrupt_after_a_part(path, folder, log)
    path.write_bytes(text.replace(b"Dios", b"Juan", 1))
    code, said = run(command(path, folder), log)
    assert (
        code == 1
        and "the input has changed since the run began: its lines 1 to 3 are others" in said
    )
    path.write_bytes(text)
    assert run(command(path, folder), log)[0] == 0
    assert contents(folder) == expected


def _interrupt_after_a_part(path, folder, log) -> None:
    process = Forked(lambda: main(command(path, folder)), log)
    # the manifest tells of a part before the next one is written
    while not (folder / "part-00001.txt").exists():
        time.sleep(0.002)
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_file_that_is_cut(source, expected, tmp_path):
    """The lines before the cut are kept, and the run goes on when the file is whole."""
    path, folder, log = tmp_path / "corpus.es.gz", tmp_path / "out", tmp_path / "log"
    # stored and not packed, so that the first lines can be read
    whole = gzip.compress(corpus_bytes(), compresslevel=0, mtime=0)
    path.write_bytes(whole[: len(whole) // 2])
    code, said = run(command(path, folder), log)
    assert code == 1 and f"{path} cannot be read behind line" in said and "cut" in said
    path.write_bytes(whole)
    code, said = run([*command(path, folder), "--scores"], log)
    assert code == 1 and "--scores" in said
    assert run(command(path, folder), log)[0] == 0
    assert contents(folder) == expected


@pytest.mark.slow
def test_two_runs_in_one_folder(source, expected, tmp_path):
    folder, log = tmp_path / "out", tmp_path / "log"
    process = Forked(lambda: main(command(source, folder)), log)
    while not (folder / "manifest.json").exists():
        time.sleep(0.002)
    process.kill(signal.SIGSTOP)
    code, said = run(command(source, folder), tmp_path / "second")
    assert code == 1 and "another run is writing into" in said
    process.kill(signal.SIGCONT)
    assert process.wait() == 0
    assert contents(folder) == expected


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_renames", [1, 2, 4, 7])
def test_a_power_cut(source, expected, tmp_path, num_renames):
    """Names that were not put on the disk are lost, and so is what was not put there before its name."""
    folder, log = tmp_path / "out", tmp_path / "log"

    def cut_off() -> int:
        real_replace, real_sync = os.replace, os.fsync
        names: list[tuple[str, bytes | None]] = []
        synced: set[str] = set()

        def sync(fd):
            real_sync(fd)
            path = os.readlink(f"/proc/self/fd/{fd}")
            if os.path.isdir(path):
                names.clear()
                if sync.renames >= num_renames:
                    os._exit(77)
            synced.add(path)

        sync.renames = 0

        def replace(old, new):
            if str(old) not in synced:
                open(old, "wb").close()
            before = open(new, "rb").read() if os.path.exists(new) else None
            real_replace(old, new)
            names.append((str(new), before))
            sync.renames += 1
            if sync.renames == num_renames and num_renames % 2:
                # the power goes before the name is on the disk
                for name, content in reversed(names):
                    os.unlink(name)
                    if content is not None:
                        with open(name, "wb") as file:
                            file.write(content)
                os._exit(77)

        os.replace, os.fsync = replace, sync
        return main(command(source, folder))

    assert Forked(cut_off, log).wait() == 77, log.read_text("utf-8")
    assert run(command(source, folder), log)[0] == 0
    assert contents(folder) == expected


@pytest.mark.slow
def test_commands_as_a_shell_starts_them(source, expected, tmp_path):
    folder = tmp_path / "out"
    rng = random.Random(0)
    for attempt in range(4):
        process = subprocess.Popen(
            [sys.executable, "-m", "pybeam", *command(source, folder)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
        if attempt < 3:
            time.sleep(rng.uniform(1, 4))
            process.kill()
        errors = process.communicate()[1].decode()
        assert process.returncode in (0, -signal.SIGKILL), errors
    assert process.returncode == 0
    assert contents(folder) == expected
