"""Public names say what they take and what they raise."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum

from pybeam import Model
from support.public_names import PUBLIC

# said once: in the module, or where an algorithm's options are listed
ELSEWHERE = {"self", "backend", "options", "more"}
# types to annotate with, whose objects other functions make or whose files have the contract
ANNOTATIONS = {"Algorithm", "Model", "Schedule", "Session"}
ANNOTATIONS |= {"ConformerTransformer", "Rnn", "Rows", "SpeechTransformer", "Transformer"}


def with_methods() -> dict[str, object]:
    """The public names, without annotations, and the methods of the classes."""
    found = {name: v for name, v in PUBLIC.items() if name.rpartition(".")[2] not in ANNOTATIONS}
    for name, value in list(found.items()):
        # what a model's methods do is the contract of `Model`
        has_own = inspect.isclass(value) and not issubclass(value, Model)
        for method, code in vars(value).items() if has_own else ():
            if inspect.isfunction(code) and not method.startswith("_"):
                found[f"{name}.{method}"] = code
    return found


CODE = with_methods()


def test_what_is_public_is_found():
    for name in ("pybeam.Decoder.decode", "pybeam.ops.select", "pybeam.Pruning", "pybeam.Fifo"):
        assert name in CODE


def faults_of(value) -> Iterator[str]:
    """Say what the docstring of a public name lacks."""
    text = inspect.getdoc(value) if value.__doc__ else None
    if not text:
        yield "there is no docstring"
        return
    if text.startswith(f"{value.__name__}("):
        yield "dataclass wrote the docstring"
    is_plain = inspect.isclass(value) and issubclass(value, Enum | tuple | Exception)
    if is_plain:  # fields have comments
        return
    missing = [
        parameter
        for parameter in inspect.signature(value).parameters
        if parameter not in ELSEWHERE and not re.search(rf"\b{parameter}\b", text)
    ]
    if missing:
        yield f"these arguments have no word in the docstring: {missing}"
    if inspect.isfunction(value) or "__post_init__" in vars(value):
        can_raise = re.search(r"^\s+raise \w", inspect.getsource(value), re.M)
        if can_raise and not re.search("[Rr]aises", text):
            yield "it raises, but does not say what"


def test_arguments_and_errors_are_documented():
    found = [f"{name}: {fault}" for name, value in CODE.items() for fault in faults_of(value)]
    assert not found
