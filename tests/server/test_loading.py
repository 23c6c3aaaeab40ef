"""Models on their way: where they may be, what they take, and how far they are."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import click
import pytest

from pybeam.cli import main
from pybeam.cli.loading import Setup
from pybeam.cli.serve import ServeOptions, load_models, parse_bytes
from pybeam.cli.serve import serve as command
from pybeam.server.loading import Loading, ModelFolders, in_thread, in_words
from support.paths import MODEL

needs_counts = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="this system does not count what a thread reads"
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("1000B", 1000),
        ("2 KB", 2000),
        ("1.5KiB", 1536),
        ("8GiB", 8 << 30),
        ("8G", 8 * 10**9),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 PiB", "0", "0.1", "1e9", "8gib"])
def test_what_is_no_size(text, capsys):
    with pytest.raises(ValueError):
        parse_bytes(text)
    assert main(["serve", "--model", str(MODEL), "--memory-budget", text]) == 2
    assert "must be a size of memory, such as 8GiB" in capsys.readouterr().err


def test_sizes_in_words():
    words = [in_words(one) for one in (0, 1023, 1536, 2.5 * (1 << 30), 1 << 50)]
    assert words == ["0 bytes", "1023 bytes", "1.5 KiB", "2.5 GiB", "1024 TiB"]


def test_a_server_whose_models_do_not_fit_reads_none():
    setup = Setup.take(command.make_context("serve", ["--model", str(MODEL)]).params)
    models = {"a": str(MODEL), "b": str(MODEL)}
    with pytest.raises(click.ClickException) as caught:
        load_models(models, setup, ServeOptions(), budget=20 << 20)
    sizes = "is 20 MiB, but weights need 28.91 MiB (a 14.46 MiB, b 14.46 MiB)"
    assert sizes in caught.value.message


def test_folders_that_cannot_be_read_are_left_out(tmp_path, monkeypatch):
    """Root reads every folder, so the system's answer is made here."""
    for name in ("a", "b", "closed"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "model.safetensors").touch()
    (tmp_path / "models" / "file").touch()
    (tmp_path / "closed").mkdir()
    iterdir = Path.iterdir

    def refuse(folder):
        if folder.name == "closed":
            raise PermissionError(13, "Permission denied", str(folder))
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    roots = [str(tmp_path / name) for name in ("models", "closed", "none")]
    assert ModelFolders(roots).names() == ["a", "b"]


@needs_counts
def test_the_share_that_has_been_read(tmp_path):
    path, half, rest = tmp_path / "weights", threading.Event(), threading.Event()
    path.write_bytes(bytes(2 << 20))
    loading = Loading("here")
    assert (loading.phase, loading.progress) == ("waiting", 0.0)

    def read():
        with path.open("rb") as file:
            loading.begin_to_read(2 << 20)
            file.read(1 << 20)
            half.set()
            assert rest.wait(10)
            file.read()
        return loading.progress

    async def act():
        whole = asyncio.ensure_future(in_thread(read))
        await asyncio.to_thread(half.wait, 10)
        assert loading.progress == pytest.approx(0.5, abs=0.05)
        rest.set()
        assert await whole == 1.0
        loading.phase = "warming up"
        assert loading.progress == 1.0

    asyncio.run(act())


def test_what_a_thread_raises_is_raised():
    async def act():
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0)

    asyncio.run(act())
