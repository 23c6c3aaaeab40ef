"""What is public says what it takes and what it raises."""

from __future__ import annotations

import inspect
import pkgutil
import re
from enum import Enum
from importlib import import_module

import pytest

import pybeam

MODULES = [
    pybeam,
    pybeam.drafts,
    pybeam.graph,
    pybeam.ops,
    pybeam.processors,
    pybeam.scoring,
    pybeam.stopping,
    *(
        import_module(f"pybeam.compat.{m.name}")
        for m in pkgutil.iter_modules(pybeam.compat.__path__)
    ),
]
# said once: in the module, or where an algorithm's options are listed
ELSEWHERE = {"self", "backend", "options", "more"}
# types to annotate with, whose objects other functions make or whose files have the contract
ANNOTATIONS = {"Algorithm", "Model", "Schedule", "Session"}


def public() -> dict[str, object]:
    """Functions and classes by name, and the methods of the classes."""
    found = {}
    for module in MODULES:
        names = getattr(module, "__all__", None)
        members = {
            name: getattr(module, name) for name in names or vars(module) if name not in ANNOTATIONS
        }
        for name, value in members.items():
            is_own = name in names if names else getattr(value, "__module__", "") == module.__name__
            if is_own and not name.startswith("_") and not inspect.ismodule(value):
                found[f"{module.__name__}.{name}"] = value
    for name, value in list(found.items()):
        for method, code in vars(value).items() if inspect.isclass(value) else ():
            if inspect.isfunction(code) and not method.startswith("_"):
                found[f"{name}.{method}"] = code
    return {name: value for name, value in found.items() if callable(value)}


PUBLIC = public()


def test_what_is_public_is_found():
    for name in ("pybeam.Decoder.decode", "pybeam.ops.select", "pybeam.Pruning", "pybeam.Fifo"):
        assert name in PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_and_errors_are_documented(name):
    value = PUBLIC[name]
    text = inspect.getdoc(value) if value.__doc__ else None
    assert text, "there is no docstring"
    assert not text.startswith(f"{value.__name__}("), "dataclass wrote the docstring"
    is_plain = inspect.isclass(value) and issubclass(value, Enum | tuple | Exception)
    if is_plain:  # fields have comments
        return
    missing = [
        parameter
        for parameter in inspect.signature(value).parameters
        if parameter not in ELSEWHERE and not re.search(rf"\b{parameter}\b", text)
    ]
    assert not missing, "these arguments have no word in the docstring"
    if inspect.isfunction(value) or "__post_init__" in vars(value):
        can_raise = re.search(r"^\s+raise \w", inspect.getsource(value), re.M)
        assert not can_raise or re.search("[Rr]aises", text), "it raises, but does not say what"
