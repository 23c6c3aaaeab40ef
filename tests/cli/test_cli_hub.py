"""Every command takes a model by its name on the hub."""

import json
import os
import subprocess
import sys

import httpx
import pytest
from huggingface_hub import constants

from pybeam.cli import main
from pybeam.cli.loading import model_folders
from pybeam.cli.serve import read_directories
from support.hub import TOKEN, files_of, instead_of_the_hub, serving_hub
from support.paths import MODEL
from support.server_process import running

NAME = "owner/bible-es-en"
LINE, ANSWER = "Jesús lloró.", "Jesus wept."


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with serving_hub() as served, instead_of_the_hub(served):
        served.add(NAME, files_of(MODEL))
        yield served


def test_a_name_on_the_hub(hub, tmp_path, capfd):
    (tmp_path / "in").write_text(LINE + "\n")
    command = ["translate", "--model", NAME, "--quiet", "--input", str(tmp_path / "in")]
    assert main(command) == 0
    assert capfd.readouterr().out == ANSWER + "\n"
    (tmp_path / "target").write_text(ANSWER + "\n")
    pair = ["--input", str(tmp_path / "in"), "--target", str(tmp_path / "target")]
    assert main(["score", "--model", NAME, "--quiet", *pair]) == 0
    assert float(capfd.readouterr().out) < 0


def test_a_revision(hub, tmp_path, capfd):
    (tmp_path / "in").write_text(LINE + "\n")
    hub.repositories[NAME].files = {"main": {}, "v2": files_of(MODEL)}
    command = ["translate", "--model", NAME, "--quiet", "--input", str(tmp_path / "in")]
    assert main([*command, "--revision", "v2"]) == 0
    assert capfd.readouterr().out == ANSWER + "\n"
    assert main([*command, "--revision", "v3"]) == 1
    assert f"--model {NAME}: {NAME} on http" in capfd.readouterr().err
    assert main(["translate", "--model", str(MODEL), "--revision", "v2"]) == 1
    assert "--revision must be None for a folder" in capfd.readouterr().err


def test_a_token_stands_in_the_environment(hub, tmp_path, capfd, monkeypatch):
    hub.repositories[NAME].is_private = True
    graph = ["graph", "--model", NAME, LINE, "--output", str(tmp_path / "graph.json")]
    assert main(graph) == 1
    assert "HF_TOKEN" in capfd.readouterr().err
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert model_folders([NAME])


def test_served_models_are_called_by_the_last_part_of_their_names():
    found = read_directories([NAME, "x=owner/other", f"y={MODEL}", str(MODEL.parent / "none")])
    assert found == {
        "bible-es-en": NAME,
        "x": "owner/other",
        "y": str(MODEL),
        "none": str(MODEL.parent / "none"),
    }


@pytest.mark.slow
def test_a_server_of_a_model_on_the_hub(tmp_path):
    with serving_hub() as served:
        served.add(NAME, files_of(MODEL))
        home = {"HF_ENDPOINT": served.address, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        with running("--threads", "1", models=[NAME], **home) as server:
            asked = {"q": LINE, "source": "es", "target": "en"}
            answer = httpx.post(f"{server.url}/translate", json=asked, timeout=60).json()
    assert answer["translatedText"] == ANSWER


@pytest.mark.slow
def test_variables_of_the_environment(tmp_path):
    """HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE, as other programs read them."""
    with serving_hub() as served:
        served.add(NAME, files_of(MODEL))
        environment = os.environ | {"HF_ENDPOINT": served.address, "HF_HOME": str(tmp_path)}

        def run(**more: str) -> subprocess.CompletedProcess:
            return subprocess.run(
                [sys.executable, "-m", "pybeam", "translate", "--model", NAME, "--json"],
                input=LINE,
                capture_output=True,
                text=True,
                env={**environment, **more},
            )

        for more in ({"HF_HUB_OFFLINE": "0"}, {"HF_HUB_OFFLINE": "1"}):
            served.asked.clear()
            process = run(**more)
            assert process.returncode == 0, process.stderr
            assert json.loads(process.stdout)["hypotheses"][0]["text"] == ANSWER
            assert bool(served.asked) == (more["HF_HUB_OFFLINE"] == "0")
        process = run(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "other"))
        assert process.returncode == 1 and "must be in the cache" in process.stderr
