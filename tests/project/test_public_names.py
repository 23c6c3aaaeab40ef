"""`import pybeam` gives every public name, and loads nothing before it is asked for one."""

import ast
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import pybeam
from support.paths import ROOT

MODULES = (
    "catalogue",
    "compat",
    "ctc",
    "diversity",
    "drafts",
    "export",
    "hub",
    "inspect",
    "limits",
    "models",
    "ops",
    "processors",
)
MODULES += ("reranking", "scoring", "serving", "shortlist", "speech", "stopping", "study", "tasks")
TYPES = ("Algorithm", "Decoder", "Model", "Processor", "Pruning", "Request", "Result")
TYPES += ("Schedule", "Scoring", "Session", "Stop", "Tokenizer")
# what takes most of the time; torch brings numpy
HEAVY = {"torch", "numpy", "tokenizers", "transformers", "sentencepiece", "safetensors", "tqdm"}


def run(code: str) -> set[str]:
    """The words that a Python process writes to stderr."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    return set(process.stderr.split())


def test_every_public_name_is_there():
    assert set(pybeam.__all__) <= set(dir(pybeam))
    for name in pybeam.__all__:
        value = getattr(pybeam, name)
        assert not isinstance(value, ModuleType) or import_module(f"pybeam.{name}") is value, name


def test_names_that_look_like_modules_import_as_such():
    assert {n for n in pybeam.__all__ if isinstance(getattr(pybeam, n), ModuleType)} == set(MODULES)
    from pybeam.scoring import power

    assert power(1.0) == pybeam.scoring.power(1.0)


def test_types_to_annotate_with_are_exported():
    assert all(isinstance(getattr(pybeam, name), type) for name in TYPES)


def test_type_checkers_and_python_find_the_same_names():
    """The block that type checkers read imports each public name from where Python takes it."""
    tree = ast.parse((ROOT / "pybeam" / "__init__.py").read_text("utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    [block] = [node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING"]
    read = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "without `as` a type checker does not export it"
            read[alias.name] = node.module
    assert sorted(read) == pybeam.__all__
    for name, module in read.items():
        assert getattr(import_module(module), name) is getattr(pybeam, name)


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'pybeam' has no attribute 'beam'"):
        pybeam.beam  # noqa: B018


def test_import_loads_nothing():
    loaded = run("import pybeam, sys; print(*sys.modules, file=sys.stderr)")
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    assert {name for name in loaded if name.startswith("pybeam")} == {"pybeam"}
