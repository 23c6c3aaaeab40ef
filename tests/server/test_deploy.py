"""What `deploy/` says is true: names of metrics, options, files and ports are those of the server."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib

import click
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from pybeam.cli.serve import ENVIRONMENT, serve
from pybeam.server.metrics import Metrics
from pybeam.serving import ServiceStatus
from support.paths import ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
DOCKERFILE, UNIT = DEPLOY / "Dockerfile", DEPLOY / "pybeam.service"
STATUS = ServiceStatus(True, 0, 0, 0, 0, 0, 0, 0.0, {"model": 0.0})
OPTIONS = {flag for one in serve.params for flag in one.opts}
DEFAULT = {one.name: one.default for one in serve.params}


class Idle:
    """A service that does nothing."""

    def status(self, model):
        return STATUS


def exported() -> set[str]:
    """The names of all series that the server exports."""
    metrics = Metrics()
    metrics.watch(Idle(), ["one"])
    parts = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
    types = re.findall(r"^# TYPE (\S+) (\w+)$", metrics.text().decode(), re.M)
    return {name + part for name, kind in types for part in parts[kind]}


def options_of(command: list[str]) -> dict[str, str]:
    """The options of a command line of `pybeam serve`, which must parse."""
    serve.make_context("serve", list(command), resilient_parsing=False)
    pairs = zip(command[::2], command[1::2], strict=True)
    return {name: value for name, value in pairs if name in OPTIONS}


def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


def unit() -> dict[str, str]:
    lines = UNIT.read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] not in "#[")


def test_every_metric_of_the_dashboard_exists_and_every_other_is_shown():
    expressions = [target["expr"] for one in DASHBOARD["panels"] for target in one["targets"]]
    named = set(re.findall(r"pybeam:\w+", " ".join(expressions)))
    known = exported()
    assert named <= known
    base = re.compile(r"_(bucket|sum|count)$")
    not_shown = {base.sub("", name) for name in known} - {base.sub("", name) for name in named}
    assert not_shown == {"pybeam:kv_cache_pages"}


def test_panels_of_the_dashboard_are_whole():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) == len(set(places))
    for panel in DASHBOARD["panels"]:
        assert panel["title"] and panel["description"] and panel["targets"]
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")")


def test_every_file_begins_with_how_to_use_it():
    for path in DEPLOY.iterdir():
        assert path.suffix == ".json" or path.read_text("utf-8").startswith("# "), path.name
    assert "Import" in DASHBOARD["description"]


def test_the_dockerfile_copies_what_exists_and_runs_as_nobody_special(tmp_path):
    parser = DockerfileParser(str(tmp_path))
    parser.content = DOCKERFILE.read_text("utf-8")
    structure = [(one["instruction"], one["value"]) for one in parser.structure]
    names = [name for name, _ in structure]
    assert names.count("FROM") == 2 and {"COMMENT", "ARG"} >= set(names[: names.index("FROM")])
    known = {"ARG", "CMD", "COMMENT", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK"}
    assert set(names) <= known | {"RUN", "USER", "WORKDIR"}
    last = [
        one for one in structure[len(names) - names[::-1].index("FROM") :] if one[0] != "COMMENT"
    ]
    stage = dict(last)
    assert int(stage["USER"]) > 0 and int(stage["EXPOSE"]) == DEFAULT["port"]
    assert json.loads(stage["ENTRYPOINT"]) == ["pybeam", "serve"]
    assert json.loads(stage["CMD"]) == ["--help"]
    assert f":{DEFAULT['port']}/ready" in stage["HEALTHCHECK"]
    variables = re.findall(rf"{ENVIRONMENT}_(\w+)=", stage["ENV"])
    assert variables == ["HOST"] and {f"--{name.lower()}" for name in variables} <= OPTIONS
    extras = re.search(r"\.whl\)\[([\w,]+)\]", parser.content)[1].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras) <= set(project["optional-dependencies"])
    torch = re.search(r"^TORCH  \?= torch==(\S+)", (ROOT / "Makefile").read_text("utf-8"), re.M)[1]
    assert ("ARG", f"TORCH={torch}") in structure


def test_the_build_reads_files_that_exist():
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert kept and all((ROOT / name).exists() for name in kept)
    assert {"setup.py", "pyproject.toml", "pybeam", "csrc"} <= set(kept)


def test_compose_refers_to_files_ports_and_options_that_exist():
    services = compose()["services"]
    server = services["pybeam"]
    build = server["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
    for service in services.values():
        for volume in service.get("volumes", ()):
            assert (DEPLOY / volume.split(":")[0]).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert server["ports"] == [f"127.0.0.1:{DEFAULT['port']}:{DEFAULT['port']}"]
    options = options_of(server["command"])
    mounted, at = server["volumes"][0].split(":")[:2]
    assert (DEPLOY / mounted / options["--model"].removeprefix(f"{at}/") / "config.json").exists()
    assert int(server["stop_grace_period"].rstrip("s")) > float(options["--shutdown-timeout"])
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text("utf-8"))["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == [f"pybeam:{DEFAULT['port']}"]


def test_the_unit_starts_the_server_with_the_config_that_stands_beside_it():
    program, command, *options = shlex.split(unit()["ExecStart"])
    assert (program.rpartition("/")[2], command) == ("pybeam", "serve")
    assert options[0] == "--config" and options[1].endswith("/serve.toml")
    config = tomllib.loads((DEPLOY / "serve.toml").read_text("utf-8"))
    context = serve.make_context("serve", ["--config", str(DEPLOY / "serve.toml")])
    assert isinstance(context, click.Context) and context.params["model"] == tuple(config["model"])
    assert float(unit()["TimeoutStopSec"]) > config["shutdown-timeout"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    text = UNIT.read_text("utf-8").replace("/opt/pybeam/bin/pybeam", shutil.which("true"))
    path = tmp_path / UNIT.name
    path.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and UNIT.name not in found.stderr, found.stderr
