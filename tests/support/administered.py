"""A server in this process whose models an administrator loads, swaps and unloads."""

from __future__ import annotations

import asyncio
import threading
from functools import cache
from pathlib import Path

import pybeam
from pybeam.server.models import ServedModel
from pybeam.text.tokenizer import Tokenizers
from support.paths import MODEL
from support.server_app import SEARCH

ADMIN = {"Authorization": "Bearer boss"}
MIB = 1 << 20
LIST, LOAD, SWAP, UNLOAD = (f"/admin/models{end}" for end in ("", "/load", "/swap", "/unload"))


@cache
def weights():
    return pybeam.load_model(MODEL)


def made(name: str, width: int = 5) -> ServedModel:
    decoder = pybeam.Decoder(weights(), SEARCH if width == 5 else pybeam.fixed_beam(width))
    return ServedModel(name, str(MODEL), decoder, Tokenizers(MODEL))


class Folders:
    """Loads a folder that has a file with the width of the beam; each takes a MiB."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def num_bytes(self, directory: str) -> int:
        return MIB

    def load(self, name: str, directory: str) -> ServedModel:
        self.loaded.append(name)
        assert self.may_go_on.wait(10)
        if name == "huge":
            raise MemoryError
        width = int((Path(directory) / "width").read_text())
        return made(name, width)


async def ask(http, url, status=200, /, **body):
    found = await http.post(url, json=body)
    assert found.status_code == status, found.text
    return found.json()


async def listed(http) -> dict:
    found = (await http.get(LIST)).json()
    return {one["name"]: one for one in found["models"]} | {"memory": found["memory"]}


async def width_of(http, name: str) -> int:
    found = (await http.get("/v1/models")).json()["data"]
    return {one["id"]: one["width"] for one in found}[name]


async def until(holds) -> None:
    for _ in range(500):
        if await holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it has not come true in time")


async def requests(http, name, num):
    """Whether a model has so many requests."""
    return (await listed(http))[name]["requests"] == num
