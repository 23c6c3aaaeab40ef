"""The example models of the distribution pybeam-search-examples: a name stands for its folder."""

from __future__ import annotations

from pathlib import Path

NAMES = ("bible-es-en", "spoken-numbers-en")


def example(name: str) -> Path | None:
    """Return the folder of an example model; None: `name` is that of none.

    Raises:
        ImportError: the examples are not installed.
    """
    if name not in NAMES:
        return None
    try:
        from pybeam_examples import MODELS
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} is an example model, which is not installed: run `pip install "
            "'pybeam-search[examples]'`, or in a clone `pip install packages/examples`"
        ) from error
    return MODELS[name]
