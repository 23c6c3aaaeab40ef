"""Public names say what they take and what they raise."""

from __future__ import annotations

import inspect
import re
from enum import Enum

import pytest

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


@pytest.mark.parametrize("name", CODE)
def test_arguments_and_errors_are_documented(name):
    value = CODE[name]
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
