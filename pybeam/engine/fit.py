"""Whether a model and an algorithm go together, before anything is decoded."""

from __future__ import annotations

import os

from pybeam.arguments import ArgumentError
from pybeam.contracts import MAX_CANDIDATES_ON_GPU, Finishing
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm


def check_kinds(model: object, algorithm: object) -> None:
    """Raise TypeError, with a remedy, if one of them is something else."""
    if not isinstance(model, Model):
        raise TypeError(
            f"`model` must be a pybeam model, such as pybeam.load_model returns, but is {type(model)}"
            f"{_remedy(model)}"
        )
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"`algorithm` must be one like pybeam.fixed_beam(5), but is {algorithm!r}")


def _remedy(model: object) -> str:
    """Return how such an object becomes a model, if it can."""
    if hasattr(model, "generate") and hasattr(model, "config"):
        return "; wrap a network of transformers: pybeam.models.huggingface.wrap(network)"
    if isinstance(getattr(model, "model", None), Model):
        return "; give its attribute `model`"
    if isinstance(model, str | os.PathLike):
        return f"; load the folder: pybeam.load_model({os.fspath(model)!r})"
    return ""


def check_longest(model: Model, algorithm: Algorithm) -> None:
    """Raise ValueError if outputs may be longer than the model allows."""
    longest, most = algorithm.max_length, model.max_positions
    name = f"the model's {most} positions"
    if most is None:
        most, name = model.max_tokens, f"`max_tokens` of the model, which is {model.max_tokens}"
    if isinstance(longest, int) and longest > most:
        raise ArgumentError("max_length", f"must be at most {name}, but is {longest}")


def check_ends(model: Model, algorithm: Algorithm) -> None:
    """Raise ValueError if the algorithm cannot handle as many EOS ids as the model has."""
    num = len(model.eos_ids)
    if num > 1 and algorithm.prefix.leading_eos:
        raise ValueError(
            f"`leading_eos` of `prefix` needs one EOS, but the model has {list(model.eos_ids)}; "
            "say with `eos_id` which one counts"
        )
    max_width = MAX_CANDIDATES_ON_GPU // (1 + num)
    refills = algorithm.finishing == Finishing.REFILL
    if refills and model.device.type == "cuda" and algorithm.max_width > max_width:
        raise ValueError(
            f"`width` must be at most {max_width} on a GPU with {num} EOS ids, but is {algorithm.max_width}; "
            "lower it, or say with `eos_id` which of them count"
        )
