"""A short text of what a result depends on, so that a journal gives it to nobody else."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.request import Request

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# of what is in what
DEEPEST = 8


def digest(*parts: object) -> str:
    """Return a hash of all these parts, arrays and code of functions included."""
    found = hashlib.sha256()
    for part in parts:
        found.update(_described(part, DEEPEST).encode() + b"\n")
    return found.hexdigest()[:24]


def digest_of(request: Request) -> str:
    """Return a hash of all that a request asks for; its id is no part of that."""
    return digest({name: value for name, value in vars(request).items() if name != "id"})


def _described(value: Any, depth: int) -> str:
    def inside(*values: Any) -> str:
        return ", ".join(_described(one, depth - 1) for one in values) if depth else "…"

    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        raw = value.view(torch.uint8) if value.ndim else value.reshape(1).view(torch.uint8)
        return f"tensor {value.dtype} {tuple(value.shape)} {_hash(raw.numpy())}"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.shape} {_hash(np.ascontiguousarray(value))}"
    if isinstance(value, list | tuple):
        # ids are many, and simple
        is_plain = all(type(one) is int for one in value)
        return f"[{', '.join(map(str, value)) if is_plain else inside(*value)}]"
    if isinstance(value, Mapping):
        return f"{{{inside(*(one for pair in value.items() for one in pair))}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, one.name) for one in dataclasses.fields(value)]
        return f"{type(value).__qualname__}({inside(*fields)})"
    if isinstance(value, functools.partial):
        return f"partial({inside(value.func, value.args, value.keywords)})"
    if isinstance(value, MethodType):
        return inside(value.__func__, value.__self__)
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return f"{value.__qualname__} {inside(value.__code__, value.__defaults__, cells)}"
    if isinstance(value, CodeType):
        names = (value.co_names, value.co_varnames)
        return f"{_hash(value.co_code)} {names} {inside(*value.co_consts)}"
    return ADDRESS.sub("", repr(value))


def _hash(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()
