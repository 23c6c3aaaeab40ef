"""A short text of what a result depends on, so that a journal gives it to nobody else."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.request import Request

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# of what is in what, and values in all; what is beyond is told apart from everything
DEEPEST, MOST = 60, 20_000
LOCKS = (type(threading.Lock()), type(threading.RLock()))
# attributes of a class that say nothing of what its objects do
OF_CLASSES = {
    "__doc__",
    "__module__",
    "__dict__",
    "__weakref__",
    "__firstlineno__",
    "__abstractmethods__",
}
OF_CLASSES |= {"__static_attributes__", "_abc_impl", "__annotations__", "__annotate_func__"}


def digest(*parts: object) -> str:
    """Return a hash of all these parts, of objects in them, and of code with the globals that it names.

    An object that says how it is pickled is what it would be made of. A part that cannot be told from others
    has another hash each time.
    """
    return digest_and_unknown(*parts)[0]


def digest_and_unknown(*parts: object) -> tuple[str, list[str]]:
    """Return that hash, and the types of the objects for which it is another one each time."""
    found, unknown = hashlib.sha256(), list[str]()
    for part in parts:
        found.update(_Description(unknown).of(part).encode() + b"\n")
    return found.hexdigest()[:24], unknown


def digest_of(request: Request) -> str:
    """Return a hash of all that a request asks for; its id is no part of that."""
    return digest({name: value for name, value in vars(request).items() if name != "id"})


class _Description:
    """Texts of values, in which one that was met before is only its number."""

    def __init__(self, unknown: list[str]) -> None:
        self._unknown = unknown
        self._met: dict[int, int] = {}
        # ids are of values that live
        self._alive: list[Any] = []
        self._depth = 0

    def of(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return ADDRESS.sub("", repr(value))
        if id(value) in self._met:
            return f"#{self._met[id(value)]}"
        self._met[id(value)] = len(self._alive)
        self._alive.append(value)
        if self._depth >= DEEPEST or len(self._alive) > MOST:
            return self._unlike_others(value)
        self._depth += 1
        try:
            return self._new(value)
        finally:
            self._depth -= 1

    def _alone(self, value: Any) -> str:
        return _Description(self._unknown).of(value)

    def _inside(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.of, values))

    def _new(self, value: Any) -> str:
        for kinds, describe in self._kinds():
            if isinstance(value, kinds):
                return describe(value)
        if isinstance(value, LOCKS):
            return "lock"
        kind, pickled = self._of_class(type(value)), _pickled(value)
        if pickled:
            return f"{kind} made by {self.of(pickled)}"
        text = repr(value)
        state = dict(_state(value))
        if state or (hasattr(value, "__dict__") and type(value).__repr__ is object.__repr__):
            return f"{kind} {self.of(state)}"
        return self._unlike_others(value) if ADDRESS.search(text) else f"{kind} {text}"

    def _unlike_others(self, value: Any) -> str:
        self._unknown.append(type(value).__qualname__)
        return secrets.token_hex(16)

    def _kinds(self) -> list[tuple[Any, Callable[[Any], str]]]:
        return [
            (Tensor, _of_tensor),
            (np.ndarray, self._of_array),
            (list | tuple, self._of_list),
            (set | frozenset, lambda value: f"set {sorted(map(self._alone, value))}"),
            (Mapping, lambda value: f"{{{self._inside(_flat(value.items()))}}}"),
            (functools.partial, lambda value: f"partial({self._inside(_of_partial(value))})"),
            (MethodType, lambda value: self._inside((value.__func__, value.__self__))),
            (FunctionType, self._of_function),
            (CodeType, self._of_code),
            (type, self._of_class),
            (
                ModuleType,
                lambda value: f"module {value.__name__} {getattr(value, '__version__', '')}",
            ),
            (BuiltinFunctionType, self._of_builtin),
            (
                (staticmethod, classmethod, functools._lru_cache_wrapper),
                lambda value: f"{type(value).__name__} {self.of(value.__wrapped__)}",
            ),
            (property, lambda value: f"property {self._inside((value.fget, value.fset))}"),
            (functools.cached_property, lambda value: f"property {self.of(value.func)}"),
        ]

    def _of_list(self, value: list[Any] | tuple[Any, ...]) -> str:
        # ids are many, and simple
        is_plain = all(type(one) is int for one in value)
        kind = self._of_class(type(value)) if type(value) not in (list, tuple) else ""
        return f"{kind}[{', '.join(map(str, value)) if is_plain else self._inside(value)}]"

    def _of_array(self, value: Any) -> str:
        if value.dtype.hasobject:
            return f"array {value.shape} [{self._inside(value.ravel().tolist())}]"
        return f"array {value.dtype} {value.shape} {_hash(np.ascontiguousarray(value))}"

    def _of_builtin(self, value: Any) -> str:
        owner = getattr(value, "__self__", None)
        of = "" if owner is None or isinstance(owner, ModuleType) else self.of(owner)
        return f"{value.__module__}.{value.__qualname__} {of}"

    def _of_function(self, value: FunctionType) -> str:
        name = f"{value.__module__}.{value.__qualname__}"
        if _is_of_library(value.__module__):
            # what a library's function holds on to may come from a user
            return f"{name} {self._inside(_cells(value))}" if value.__closure__ else name
        parts = [value.__code__, value.__defaults__, value.__kwdefaults__, [*_cells(value)]]
        return f"{value.__qualname__} {self._inside([*parts, dict(_globals(value))])}"

    def _of_code(self, value: CodeType) -> str:
        names = (value.co_names, value.co_varnames)
        return f"{_hash(value.co_code)} {names} {self._inside(value.co_consts)}"

    def _of_class(self, value: type) -> str:
        if _is_of_library(value.__module__):
            return f"{value.__module__}.{value.__qualname__}"
        own = {name: one for name, one in vars(value).items() if name not in OF_CLASSES}
        made = dataclasses.is_dataclass(value) and "__dataclass_fields__" in own
        if made:
            # its fields are in its objects, and the code that is made of them follows from them
            own = {name: one for name, one in own.items() if not _is_made(name)}
        return f"{value.__qualname__} {self._inside((own, value.__bases__))}"


def _is_made(name: str) -> bool:
    made = {"init", "eq", "repr", "hash", "setattr", "delattr", "replace", "match_args"}
    made |= {"lt", "le", "gt", "ge"}
    return name.startswith("__dataclass_") or name.strip("_") in made


def _is_of_library(module: str | None) -> bool:
    """Whether a module is installed, so that it changes with a version and not from call to call."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names - {"__main__"} or top in ("pybeam", "builtins"):
        return True
    found = sys.modules.get(module or "")
    file = getattr(found, "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _pickled(value: Any) -> list[Any]:
    """Return what pickle makes an object of, where its class says so; empty: it says nothing, or fails."""
    kind = type(value)
    says = ("__reduce__", "__reduce_ex__", "__getstate__")
    if kind.__module__ == "builtins" or not any(
        name in vars(one) for one in kind.__mro__[:-1] for name in says
    ):
        return []
    try:
        made = value.__reduce_ex__(2)
    except Exception:
        return []
    if isinstance(made, str):
        return [made]
    return [*made[:3], *(list(part) for part in made[3:5] if part is not None)]


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of an object, without those that are computed from others when they are asked for."""
    classes = type(value).__mro__
    if dataclasses.is_dataclass(value) and _is_of_library(classes[0].__module__):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)
        return
    cached = {
        name
        for one in classes
        for name, own in vars(one).items()
        if isinstance(own, functools.cached_property)
    }
    for name, own in getattr(value, "__dict__", {}).items():
        if name not in cached:
            yield name, own
    for one in classes:
        slots = vars(one).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that a function names, and what it names of modules that no one has installed."""
    names = sorted({*_names(function.__code__)})
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType) and not _is_of_library(value.__name__):
            for own in names:
                if own in vars(value):
                    yield f"{name}.{own}", vars(value)[own]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield "empty"


def _of_partial(value: functools.partial[Any]) -> tuple[Any, ...]:
    return value.func, value.args, value.keywords


def _flat(pairs: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
    return (one for pair in pairs for one in pair)


def _of_tensor(value: Tensor) -> str:
    value = value.detach().cpu().contiguous()
    raw = value.view(torch.uint8) if value.ndim else value.reshape(1).view(torch.uint8)
    return f"tensor {value.dtype} {tuple(value.shape)} {_hash(raw.numpy())}"


def _hash(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()
