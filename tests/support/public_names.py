"""What `pybeam` promises its users: names, and what they stand for."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from types import ModuleType

import pybeam

MODULES = [
    pybeam,
    pybeam.catalogue,
    pybeam.ctc,
    pybeam.diversity,
    pybeam.drafts,
    pybeam.export,
    pybeam.hub,
    pybeam.inspect,
    pybeam.limits,
    pybeam.models,
    pybeam.models.huggingface,
    pybeam.ops,
    pybeam.processors,
    pybeam.reranking,
    pybeam.scoring,
    pybeam.serving,
    pybeam.shortlist,
    pybeam.speech,
    pybeam.speech.whisper,
    pybeam.stopping,
    pybeam.study,
    pybeam.tasks,
    *(
        import_module(f"pybeam.compat.{m.name}")
        for m in pkgutil.iter_modules(pybeam.compat.__path__)
    ),
]


def names_of(module: ModuleType) -> dict[str, object]:
    """Functions and classes of a public module, by their full names."""
    members = {name: getattr(module, name) for name in module.__all__}
    return {
        f"{module.__name__}.{name}": value
        for name, value in members.items()
        if not inspect.ismodule(value)
    }


PUBLIC = {name: value for module in MODULES for name, value in names_of(module).items()}
