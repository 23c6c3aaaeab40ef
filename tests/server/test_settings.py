"""Options, the environment and a file say the same things."""

import inspect
from dataclasses import fields

import pytest
import torch

from pybeam.cli import main
from pybeam.cli import pybeam as commands
from pybeam.server import app, lifecycle
from pybeam.server.auth import Keys
from pybeam.server.key_file import table_of
from pybeam.server.settings import KeyLimits, Settings
from pybeam.serving import Service
from pybeam.serving.sound_process import SoundProcesses
from support.paths import MODEL


@pytest.fixture
def settings(monkeypatch):
    """The arguments with which a server would have been started with: its settings, models and keys."""
    found = {}

    def build_service(models, metrics, settings, **engines):
        found.update(models=models, settings=settings, **engines)
        raise _Stop

    monkeypatch.setattr(app, "build_service", build_service)
    monkeypatch.setattr(lifecycle, "serve", lambda start, settings, reload: start())
    monkeypatch.setattr(SoundProcesses, "are_possible", lambda: False)

    def run(*arguments):
        with pytest.raises(_Stop):
            main(["serve", *arguments])
        return found

    return run


class _Stop(BaseException):
    pass


def test_options_environment_and_file_in_this_order(settings, tmp_path, monkeypatch):
    path = tmp_path / "serve.toml"
    path.write_text(
        f'model = "es-en={MODEL}"\nport = 1\nmax-width = 3\n'
        + "width = 2\ntimeout = 7.5\ncors-origin = ['http://a', 'http://b']\n"
    )
    monkeypatch.setenv("PYBEAM_SERVE_MAX_WIDTH", "4")
    monkeypatch.setenv("PYBEAM_SERVE_HOST", "0.0.0.0")
    monkeypatch.setenv("PYBEAM_SERVE_OTLP_ENDPOINT", "http://c:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://d:4318")
    found = settings("--config", str(path), "--timeout", "9", "--width-by-load", "16:3")
    chosen = found["settings"]
    assert (chosen.port, chosen.host, chosen.max_width, chosen.timeout) == (1, "0.0.0.0", 4, 9)
    assert chosen.cors_origins == ("http://a", "http://b")
    assert chosen.width_by_load == ((16, 3),)
    assert chosen.otlp_endpoint == "http://c:4318"
    assert list(found["models"]) == ["es-en"]
    assert found["models"]["es-en"].decoder.algorithm.width == 2


@pytest.mark.parametrize(
    "name, languages",
    [
        ("es-en=", (("es",), ("en",))),
        ("opus-mt-de-fra=", (("de",), ("fra",))),
        ("", (("es",), ("en",))),
        ("mine=", (None, None)),
    ],
)
def test_names_and_languages(settings, name, languages):
    [model] = settings("--model", f"{name}{MODEL}")["models"].values()
    assert model.name == (name.rstrip("=") or "bible-es-en")
    assert tuple(model.languages) == languages


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        ([], 2, "--model"),
        (["--model", "./nothing"], 1, "no such folder"),
        (["--model", f"a={MODEL}", "--model", f"a={MODEL}"], 2, "another model is called 'a'"),
        (["--model", MODEL, "--config", "nothing"], 2, "No such file"),
        (["--model", MODEL, "--config", "TOML"], 2, "'prot' is no option"),
        (["--model", MODEL, "--config", "BROKEN"], 2, "must be a TOML file"),
        (["--model", MODEL, "--api-key-file", "EMPTY"], 1, "must have a key on each line"),
        (["--model", MODEL, "--api-key-file", "nothing"], 1, "No such file"),
        (["--model", MODEL, "--keys", "BROKEN"], 1, "must be a TOML file"),
        (["--model", MODEL, "--keys", "nothing"], 1, "No such file"),
        (["--model", MODEL, "--audit-log", "nothing/a"], 1, "No such file"),
        (["--model", MODEL, "--ray", "--keys", "KEYS"], 2, "for one process"),
        (["--model", MODEL, "--forwarded-allow-ips", "proxy"], 2, "such as 10.0.0.0/8"),
        (["--model", MODEL, "--width", "0"], 2, "--width"),
        (["--model", MODEL, "--width-by-load", "0:1"], 2, "must be two numbers, such as 16:3"),
        (
            ["--model", MODEL, "--otlp-endpoint", "collector:4317"],
            2,
            "such as http://localhost:4318",
        ),
        (["--model", MODEL, "--threshold", "1"], 2, "no meaning with --algorithm fixed"),
    ],
)
def test_what_is_wrong(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TOML").write_text("prot = 80\n")
    (tmp_path / "BROKEN").write_text("port = \n")
    (tmp_path / "EMPTY").write_text("# no key\n\n")
    (tmp_path / "KEYS").write_text(table_of("a", "b", KeyLimits()))
    assert main(["serve", *map(str, arguments)]) == code
    assert message in capsys.readouterr().err


def test_recordings_are_decoded_by_copies_from_before_there_are_keys(settings, monkeypatch):
    order = []
    load = Keys.load
    monkeypatch.setattr(Keys, "load", lambda *args: order.append("keys") or load(*args))
    monkeypatch.setattr(SoundProcesses, "are_possible", lambda: True)
    monkeypatch.setattr(SoundProcesses, "start", lambda self: order.append("copies"))
    settings("--model", str(MODEL))
    assert order == ["copies", "keys"]


def test_every_setting_has_an_option():
    context = commands.commands["serve"].make_context("serve", ["--model", str(MODEL)])
    for field in fields(Settings):
        assert (context.params[field.name] or None) == (field.default or None), field.name


def test_the_service_has_the_defaults_of_the_server():
    parameters = inspect.signature(Service).parameters
    shared = {one.name: one.default for one in fields(Settings) if one.name in parameters}
    # in a process of others what decodes is as nice as they are
    assert (shared.pop("nice"), parameters["nice"].default) == (10, 0)
    assert shared.keys() == {"max_waiting", "max_waiting_work", "width_by_load"}
    for name, default in shared.items():
        assert parameters[name].default == (default or None), name


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize(
    ("threads", "engines", "expected"),
    [
        (1, (), (1, 1)),
        (3, (), (3, 1)),
        (9, (), (4, 2)),
        (4, ("--engines", "1"), (1, 4)),
        (2, ("--engines", "5"), (5, 1)),
        (6, ("--processes", "3"), (3, 2)),
        (9, ("--processes", "auto"), (9, 1)),
    ],
)
def test_engines_share_the_threads(settings, threads, engines, expected):
    before = torch.get_num_threads()
    try:
        found = settings("--model", MODEL, "--threads", str(threads), *engines)
        assert (found["engines"], torch.get_num_threads()) == expected
        assert found["processes"] == ("--processes" in engines)
    finally:
        torch.set_num_threads(before)
