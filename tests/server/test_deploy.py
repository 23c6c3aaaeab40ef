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
from pybeam.server.endpoints.operations import router as operations
from pybeam.server.lifecycle import LAST_SECONDS
from pybeam.server.metrics import Metrics
from pybeam.server.model_manager import Managed
from pybeam.serving import ServiceStatus
from support.paths import ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
DOCKERFILE, UNIT = DEPLOY / "Dockerfile", DEPLOY / "pybeam.service"
STATUS = ServiceStatus(True, 0, 0, 0, 0, 0, 0, 0.0, {"model": 0.0})
OPTIONS = {flag for one in serve.params for flag in one.opts}
DEFAULT = {one.name: one.default for one in serve.params}


class Idle:
    """A service that does nothing, and who manages its models."""

    def __init__(self):
        self.statuses, self.budget = {"one": STATUS}, 1 << 30
        self.all = [Managed("one", "/models/one")]


def exported() -> set[str]:
    """The names of all series that the server exports."""
    metrics = Metrics()
    metrics.watch(Idle(), Idle())
    parts = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
    types = re.findall(r"^# TYPE (\S+) (\w+)$", metrics.text().decode(), re.M)
    return {name + part for name, kind in types for part in parts[kind]}


def options_of(command: list[str]) -> dict[str, str]:
    """The options of a command line of `pybeam serve`, which must parse."""
    serve.make_context("serve", list(command), resilient_parsing=False)
    pairs = zip(command[::2], command[1::2], strict=True)
    return {name: value for name, value in pairs if name in OPTIONS}


def minimum_seconds_to_stop(shutdown_timeout: float) -> float:
    """After that time what is left is cancelled, and answers are written."""
    return shutdown_timeout + 2 * LAST_SECONDS


def manifests() -> dict[str, dict]:
    """The documents of the manifest, by kind."""
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
    kinds = {one["kind"]: one for one in found}
    assert len(kinds) == len(found)
    return kinds


def config_of(path) -> dict:
    """The options in a file for `--config`, as the command takes them."""
    context = serve.make_context("serve", ["--config", str(path)])
    assert isinstance(context, click.Context)
    return context.params


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


def test_the_workflow_starts_the_image_that_it_builds():
    """With files, options and paths that are there."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/images.yml").read_text("utf-8"))
    steps = workflow["jobs"]["image"]["steps"]
    [tried] = [one for one in steps if "docker run" in one.get("run", "")]
    assert tried["if"] == "matrix.kind == 'cpu'"
    build, run, *asked, stop = map(shlex.split, tried["run"].strip().splitlines())
    given = dict(zip(build[4:-1:2], build[5:-1:2], strict=True))
    assert (ROOT / given["--file"]).samefile(DOCKERFILE) and build[-1] == "."
    assert given["--tag"] == stop[-1] and given["--build-arg"].startswith("INDEX=")
    volume = run[run.index("--volume") + 1].split(":")
    options = options_of(run[run.index(given["--tag"], run.index("--volume")) + 1 :])
    folder = volume[0].replace("$PWD", str(ROOT)) + options["--model"].removeprefix(volume[1])
    assert (ROOT / folder / "model.safetensors").exists()
    port = str(DEFAULT["port"])
    assert run[run.index("--publish") + 1] == f"127.0.0.1:{port}:{port}"
    paths = [word.rpartition(f":{port}")[2] for line in asked for word in line if "http" in word]
    assert paths == ["/ready", "/health"] and set(paths) <= {one.path for one in operations.routes}


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


def test_the_image_for_gpus_can_compile_what_launches_kernels():
    """Triton asks for a C compiler, for headers of C and of Python; slim images have the latter."""
    text = DOCKERFILE.read_text("utf-8")
    (packages,) = re.findall(r'--build-arg PACKAGES="(.*?)"', text)
    assert {"gcc", "libc6-dev"} <= set(packages.split())
    stages = [line for line in text.splitlines() if line.startswith("FROM")]
    assert stages[-1] == "FROM python:${PYTHON}-slim"
    last = text.rsplit("FROM ", 1)[1]
    install = r'RUN test -z "\$\{PACKAGES\}" \|\| \{ apt-get update && apt-get install .* \$\{PACKAGES\}; \}'
    assert re.search(r'^ARG PACKAGES=""$', last, re.M) and re.search(install, last)


def test_the_build_reads_files_that_exist():
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert kept and all((ROOT / name).exists() for name in kept)
    links = [path.resolve() for path in (ROOT / "pybeam").iterdir() if path.is_symlink()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {"setup.py", "pyproject.toml", "pybeam", "csrc", *project["license-files"]}
    assert links and needed | {path.relative_to(ROOT).as_posix() for path in links} <= set(kept)


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
    needed = minimum_seconds_to_stop(float(options["--shutdown-timeout"]))
    assert int(server["stop_grace_period"].rstrip("s")) > needed
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text("utf-8"))["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == [f"pybeam:{DEFAULT['port']}"]


def test_the_unit_starts_the_server_with_the_config_that_stands_beside_it():
    program, command, *options = shlex.split(unit()["ExecStart"])
    assert (program.rpartition("/")[2], command) == ("pybeam", "serve")
    assert options[0] == "--config" and options[1].endswith("/serve.toml")
    config = tomllib.loads((DEPLOY / "serve.toml").read_text("utf-8"))
    assert config_of(DEPLOY / "serve.toml")["model"] == tuple(config["model"])
    needed = minimum_seconds_to_stop(config["shutdown-timeout"])
    assert float(unit()["TimeoutStopSec"]) > needed
    assert shlex.split(unit()["ExecReload"])[1:] == ["-HUP", "$MAINPID"]


def test_kubernetes_mounts_what_the_server_reads(tmp_path):
    kinds = manifests()
    [(name, text)] = kinds["ConfigMap"]["data"].items()
    (tmp_path / name).write_text(text)
    options, pod = config_of(tmp_path / name), kinds["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert len(volumes) == len(mounts) and {*volumes} == {*mounts.values()}
    flag, path = container["args"]
    config, keys = path.rpartition("/")[0], options["keys"].rpartition("/")[0]
    assert flag == "--config" and path == f"{config}/{name}"
    assert volumes[mounts[config]]["configMap"]["name"] == kinds["ConfigMap"]["metadata"]["name"]
    # as the head of the file makes it
    made = f"generic {volumes[mounts[keys]]['secret']['secretName']} --from-file=keys.toml"
    assert options["keys"].endswith("/keys.toml")
    assert made in (DEPLOY / "kubernetes.yaml").read_text("utf-8")
    [model] = options["model"]
    assert model.partition("=")[2].rpartition("/")[0] in mounts and "/tmp" in mounts
    for kind in ("requests", "limits"):
        assert int(container["resources"][kind]["cpu"]) == options["threads"]


def test_servers_with_a_gpu_differ_from_those_without_in_names_that_exist():
    patch = yaml.safe_load((DEPLOY / "kubernetes-gpu.yaml").read_text("utf-8"))
    pod, base = (one["spec"]["template"]["spec"] for one in (patch, manifests()["Deployment"]))
    [own], [container] = pod["containers"], base["containers"]
    assert own.keys() <= container.keys() and own["name"] == container["name"]
    assert own["args"] == [*container["args"], "--device", "cuda"] and "--device" in OPTIONS
    [mount], [volume] = own["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"] not in {one["name"] for one in base["volumes"]}
    assert f"TRITON_CACHE_DIR={mount['mountPath']}\n" in DOCKERFILE.read_text("utf-8")


def test_kubernetes_asks_and_stops_the_server_as_it_wants(tmp_path):
    kinds = manifests()
    template = kinds["Deployment"]["spec"]["template"]
    pod, [container] = template["spec"], template["spec"]["containers"]
    [port] = container["ports"]
    assert port["containerPort"] == DEFAULT["port"]
    known = {route.path for route in operations.routes}
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness")}
    assert {one["path"] for one in probes.values()} == {"/ready"} < known
    alive = container["livenessProbe"]["httpGet"]
    assert alive["path"] == "/health" and "/health" in known
    for one in (
        alive,
        *probes.values(),
        {"port": kinds["Service"]["spec"]["ports"][0]["targetPort"]},
    ):
        assert one["port"] == port["name"]
    scraped = {name.partition("/")[2]: v for name, v in template["metadata"]["annotations"].items()}
    assert scraped == {"scrape": "true", "port": str(DEFAULT["port"]), "path": "/metrics"}
    assert scraped["path"] in known
    # it asks by the address of a pod, which no name allows
    assert "allow-host" not in kinds["ConfigMap"]["data"]["serve.toml"]
    sleep, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    options = tomllib.loads(kinds["ConfigMap"]["data"]["serve.toml"])
    needed = float(seconds) + minimum_seconds_to_stop(options["shutdown-timeout"])
    assert sleep == "sleep" and pod["terminationGracePeriodSeconds"] > needed
    assert options["shutdown-timeout"] >= options["timeout"]


def test_kubernetes_gives_the_server_no_rights():
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    user = re.search(r"^USER (\d+)$", DOCKERFILE.read_text("utf-8"), re.M)[1]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["runAsUser"] == int(user)
    own = pod["containers"][0]["securityContext"]
    assert own["readOnlyRootFilesystem"] and own["capabilities"] == {"drop": ["ALL"]}
    assert own["allowPrivilegeEscalation"] is False
    # its variables would be options
    assert pod["enableServiceLinks"] is False and ENVIRONMENT == "PYBEAM_SERVE"


def test_kubernetes_names_its_parts_as_they_are():
    kinds = manifests()
    name, spec = kinds["Deployment"]["metadata"]["name"], kinds["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == kinds["Service"]["spec"]["selector"]
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    scaler = kinds["HorizontalPodAutoscaler"]["spec"]
    assert (scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"]) == (
        "Deployment",
        name,
    )
    # which would undo what the autoscaler does
    assert "replicas" not in spec


def test_the_autoscaler_reads_a_metric_that_the_adapter_makes_of_the_servers():
    adapter = yaml.safe_load((DEPLOY / "prometheus-adapter.yaml").read_text("utf-8"))
    [rule] = adapter["rules"]["custom"]
    [found] = [
        one["pods"]["metric"]["name"]
        for one in manifests()["HorizontalPodAutoscaler"]["spec"]["metrics"]
        if one["type"] == "Pods"
    ]
    assert rule["name"]["as"] == found
    named = set(re.findall(r"pybeam:\w+", rule["metricsQuery"]))
    base = "pybeam:request_queue_time_seconds"
    assert named == {f"{base}_sum", f"{base}_count"} <= exported()
    assert rule["seriesQuery"].startswith(f"{base}_sum{{")
    assert {*rule["resources"]["overrides"]} == {"namespace", "pod"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    text = UNIT.read_text("utf-8").replace("/opt/pybeam/bin/pybeam", shutil.which("true"))
    path = tmp_path / UNIT.name
    path.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and UNIT.name not in found.stderr, found.stderr
