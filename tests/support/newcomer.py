"""Somebody who has pip and a page, and types what the page says: no clone, no compiler, no other network."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import venv
from pathlib import Path

from support.pages import ADDRESS, Block
from support.paths import ROOT

# the environment that `make test-newcomers` makes: torch, and pybeam's wheel
BASE = ROOT / ".venv-newcomers"
DIST = ROOT / "dist"
TOOLS = (
    "cat cp curl echo false grep gzip head ls mkdir printf rm sed sh sleep sort tail true".split()
)
NOWHERE = "http://127.0.0.1:9"
MOST_SECONDS = 600
TORCH = "torch==2.13.0"
# reads code and its line as JSON, and answers with what the code prints, or with its error
SESSION = """
import contextlib, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "__main__"}
for asked in sys.stdin:
    code, error = json.loads(asked), ""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(compile(code, "page", "exec"), names)
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)
"""


class Newcomer:
    """A home, an environment and a folder of its own under `home`; one Python for the whole page."""

    def __init__(self, home: Path, hub: str) -> None:
        self.folder, tools, env = home / "work", home / "tools", home / "venv"
        for path in (self.folder, tools):
            path.mkdir()
        for name in TOOLS:
            (tools / name).symlink_to(shutil.which(name) or "/nowhere")
        _environment(env)
        cache = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
        # an index may have packages of these names; pybeam-search itself is in the base
        wheels = {
            path.name.split("-")[0]: path.as_uri() for path in DIST.glob("pybeam_search_*.whl")
        }
        ours = [f"{name.replace('_', '-')} @ {address}" for name, address in wheels.items()]
        (home / "constraints.txt").write_text("\n".join([TORCH, *ours]))
        self._pip = {
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
            "PIP_CACHE_DIR": f"{cache}/pip",
            "PIP_CONSTRAINT": str(home / "constraints.txt"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_QUIET": "1",
        }
        self._env = {
            "PATH": f"{env / 'bin'}{os.pathsep}{tools}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "CC": "/nowhere/cc",
            "CXX": "/nowhere/c++",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_WAIT_POLICY": "passive",
        }
        self._closed = {
            "HTTPS_PROXY": NOWHERE,
            "HTTP_PROXY": NOWHERE,
            "http_proxy": NOWHERE,
            "NO_PROXY": "localhost,127.0.0.1",
            "no_proxy": "localhost,127.0.0.1",
            "HF_ENDPOINT": hub,
        }
        self._python: subprocess.Popen | None = None
        self._servers: list[subprocess.Popen] = []

    def __enter__(self) -> Newcomer:
        return self

    def __exit__(self, *error: object) -> None:
        processes = [*self._servers, *filter(None, [self._python])]
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=60)

    def type(self, block: Block) -> str:
        """Run a block and return what it prints; AssertionError says what went wrong."""
        if block.language == "python":
            return self._ask(block)
        if "pybeam serve" in block.code:
            return self._serve(block)
        env = {**self._env, **(self._pip if "pip install" in block.code else self._closed)}
        done = subprocess.run(
            ["sh", "-e", "-c", block.code],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _ask(self, block: Block) -> str:
        if self._python is None:
            self._python = subprocess.Popen(
                ["python", "-c", SESSION],
                cwd=self.folder,
                env={**self._env, **self._closed},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin and self._python.stdout
        print(json.dumps(block.code), file=self._python.stdin, flush=True)
        printed, error = json.loads(self._python.stdout.readline() or '["", "Python has ended"]')
        assert not error, error
        return printed

    def _serve(self, block: Block) -> str:
        """Start a server, which stays until the page ends, and return when it is ready."""
        asked = re.search(r"--port (\d+)", block.code)
        port = int(asked[1] if asked else ADDRESS.partition(":")[2])
        log = self.folder.parent / f"server-{port}.log"
        with log.open("w") as stderr:
            server = subprocess.Popen(
                ["sh", "-e", "-c", f"exec {block.code.strip()}"],
                cwd=self.folder,
                env={**self._env, **self._closed},
                stderr=stderr,
            )
        self._servers.append(server)
        end = time.monotonic() + MOST_SECONDS
        while not _is_ready(port):
            said = log.read_text()
            assert server.poll() is None and time.monotonic() < end, f"no server is ready:\n{said}"
            time.sleep(0.1)
        return ""


def _is_ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"GET /ready HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return b" 200 " in connection.recv(100)
    except OSError:
        return False


def _environment(folder: Path) -> None:
    """Make a fresh environment that sees the packages of the base, in which pip installs beside them."""
    venv.create(folder, symlinks=True)
    [site], [below] = (list(one.glob("lib/python*/site-packages")) for one in (folder, BASE))
    (site / "base.pth").write_text(f"{below}\n")
    for name in ("pip", "pybeam"):
        _, _, script = (BASE / "bin" / name).read_text().partition("\n")
        (folder / "bin" / name).write_text(f"#!{folder / 'bin' / 'python'}\n{script}")
        (folder / "bin" / name).chmod(0o755)
