"""A server on the loopback address with those routes of the Hugging Face hub that huggingface_hub asks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

NAME, TOKEN = "owner/marian-es-en", "hf_of_the_tests"


def files_of(directory: Path) -> dict[str, bytes]:
    """The contents of the files of a folder, by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@dataclass
class Repository:
    """One repository: files by name, and how it behaves.

    Attributes:
        files: those of each revision.
        is_private: whether those without the token are told that there is no such repository.
        is_gated: whether files are refused to those without the token, while their list is open.
        large: the files that a content network serves, behind a redirect.
        breaks: the bytes after which the connection breaks while that file is sent, once for each number.
    """

    files: dict[str, dict[str, bytes]]
    is_private: bool = False
    is_gated: bool = False
    large: tuple[str, ...] = ()
    breaks: dict[str, list[int]] = field(default_factory=dict)

    def commit(self, revision: str) -> str | None:
        """The commit of a branch, a tag or a commit."""
        commits = {name: hashlib.sha1(name.encode()).hexdigest() for name in self.files}
        return commits.get(revision, revision if revision in commits.values() else None)

    def of(self, commit: str) -> dict[str, bytes]:
        return next(files for name, files in self.files.items() if self.commit(name) == commit)


@dataclass
class Hub:
    """The hub: repositories by name, new names of those that moved, and what was asked.

    Attributes:
        status, body: the answer to everything, in place of the right one.
    """

    address: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    status: int | None = None
    body: bytes = b"in trouble"

    def add(self, name: str, files: dict[str, bytes], **facts) -> Repository:
        self.repositories[name] = Repository({"main": files}, **facts)
        return self.repositories[name]

    def taken(self) -> set[str]:
        """The names of files whose contents were asked for; forgets what was asked."""
        found = {path.rpartition("/")[2] for path in self.asked if path.startswith("GET /cdn/")}
        found |= {one.rpartition("/")[2] for one in self.asked if re.match("GET .*/resolve/", one)}
        self.asked.clear()
        return found


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if not path.startswith("/api/") or path.startswith("/api/models/"):
            self.hub.asked.append(f"{self.command} {path}")
        if self.hub.status is not None:
            return self._send(self.hub.status, self.hub.body)
        cdn = re.fullmatch("/cdn/([^/]+/[^/]+)/([^/]+)/([^/]+)", path)
        if cdn:
            assert "Authorization" not in self.headers, "a token for the hub went to another host"
            repository = self.hub.repositories[cdn[1]]
            return self._send_file(repository, cdn[3], repository.of(cdn[2])[cdn[3]])
        if re.fullmatch("/api/models/[^/]+(/[^/]+)?", path):
            path += "/revision/main"
        route = re.fullmatch(
            "(?:/api/models)?/((?:[^/]+/)?[^/]+)/(revision|tree|resolve)/([^/]+)(?:/(.+))?", path
        )
        if route is None:
            return self._refuse(404, "EntryNotFound")
        name, kind, revision, file = route.groups()
        if name in self.hub.moved:
            moved = self.path.replace(name, self.hub.moved[name])
            return self._send(307, b"", {"Location": moved})
        self._of_repository(name, kind, revision, file)

    def _of_repository(self, name: str, kind: str, revision: str, file: str | None) -> None:
        repository = self.hub.repositories.get(name)
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repository is None or (repository.is_private and not is_known):
            return self._refuse(404 if is_known else 401, "RepoNotFound")
        commit = repository.commit(revision)
        if commit is None:
            return self._refuse(404, "RevisionNotFound")
        files = repository.of(commit)
        if kind == "revision":
            siblings = [{"rfilename": one} for one in files]
            return self._send_json({"id": name, "sha": commit, "siblings": siblings})
        if kind == "tree":
            return self._send_json([_entry(one, data) for one, data in files.items()])
        assert kind == "resolve" and file is not None
        if repository.is_gated and not is_known:
            return self._refuse(401, "GatedRepo")
        if file not in files:
            return self._refuse(404, "EntryNotFound", commit)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_digest(files[file])}"'}
        if file not in repository.large:
            return self._send_file(repository, file, files[file], headers)
        _, port = self.server.server_address[:2]
        headers |= {
            "Location": f"http://localhost:{port}/cdn/{name}/{commit}/{file}",
            "X-Linked-Size": str(len(files[file])),
            "X-Linked-ETag": headers.pop("ETag"),
        }
        self._send(302, b"", headers)

    def _send_file(
        self, repository: Repository, name: str, data: bytes, headers: dict[str, str] | None = None
    ) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(wanted[1]) if wanted else 0
        headers = {"Accept-Ranges": "bytes", **(headers or {})}
        if wanted:
            self.hub.ranges.append(f"{name} from {first}")
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        breaks = repository.breaks.get(name)
        most = breaks.pop(0) if breaks and self.command == "GET" else None
        self._send(206 if wanted else 200, data[first:], headers, most)

    def _refuse(self, status: int, code: str, commit: str | None = None) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": code}
        self._send(status, b"", headers | ({"X-Repo-Commit": commit} if commit else {}))

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        most: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:most])
        if most is not None:
            self.close_connection = True


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "oid": _digest(data)[:40], "size": len(data), "path": name}


@contextlib.contextmanager
def serving_hub() -> Iterator[Hub]:
    """Serve an empty hub."""
    handler = type("OwnHandler", (Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        handler.hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield handler.hub
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def instead_of_the_hub(hub: Hub) -> Iterator[None]:
    """Let huggingface_hub, which reads HF_ENDPOINT when it is imported, ask this one in this process."""
    from huggingface_hub import constants

    url = "{repo_id}/resolve/{revision}/{filename}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.address)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{hub.address}/{url}")
        patch.setattr(constants, "HF_URL_HOSTS", frozenset({"127.0.0.1"}), raising=False)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)
        yield
