"""The messages of the command line about options for Ray. No cluster starts here."""

import sys

import pytest

from pybeam.cli import main
from support.paths import MODEL

TRANSLATE = ["translate", "--model", str(MODEL)]
SERVE = ["serve", "--model", str(MODEL), "--ray"]


@pytest.mark.parametrize(
    "words, message",
    [
        ([*TRANSLATE, "--ray"], "--ray needs --output-dir"),
        ([*TRANSLATE, "--output-dir", "out", "--address", "a:1"], "--address needs --ray"),
        ([*SERVE, "--port", "0"], "--ray needs a --port above 0"),
        (
            [*SERVE, "--min-replicas", "3", "--max-replicas", "2"],
            "--max-replicas must be at least --min-replicas 3, but is 2",
        ),
        ([*SERVE[:-1], "--address", "a:1"], "--address needs --ray"),
    ],
)
def test_options_that_contradict_each_other(capfd, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capfd.readouterr().err


def test_the_extra_is_named_where_ray_is_not_installed(capfd, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.es").write_text("Jesús lloró.\n")
    for words in ([*TRANSLATE, "--input", "in.es", "--output-dir", "out", "--ray"], SERVE):
        assert main(words) == 1
        assert "pip install 'pybeam-search[ray]'" in capfd.readouterr().err
