"""Export to ONNX: the graphs that `pybeam.load_model` runs, and one that needs no pybeam.

Nothing here is imported unless it is asked for, since the package onnx is optional.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pybeam.arguments import ArgumentError
from pybeam.models.onnx.graphs import DECODER, ENCODER, SEARCH, missing_package

if TYPE_CHECKING:
    from pybeam.models.rnn import Rnn
    from pybeam.models.transformer.model import Transformer

COPIED = (".json", ".model", ".spm", ".txt")  # files of configurations and tokenizers


def export_onnx(model: Transformer | Rnn, directory: str | os.PathLike[str]) -> None:
    """Write a model as ONNX graphs, float32, with configuration and tokenizer.

    - ``encoder.onnx`` and ``decoder.onnx``: what `pybeam.load_model(directory)` decodes with, under every
      algorithm and schedule. Keys and values, or states, are inputs.
    - ``search.onnx``: `pybeam.fixed_beam` as a whole, for any ONNX runtime; not of an LSTM, nor of
      Whisper, which needs a prefix that this graph does not take.

    Inputs and outputs are described in docs/onnx.md. Operators are those of opset 20, sizes are dynamic.

    Args:
        model: a built-in transformer, for text or for speech, or LSTM, with float32 weights, on any device.
        directory: made if it is not there; an earlier export in it is replaced.

    Raises:
        ImportError: the packages onnx or onnx-ir are not installed.
        TypeError, ValueError: the model is another kind, has other weights, or is in that directory.
    """
    try:
        from pybeam.export.builder import Builder
        from pybeam.export.kinds import recorders
    except ImportError as error:
        raise missing_package(error) from error
    graphs = recorders(model)
    source, target = model.config.path.parent, Path(directory)
    if target.exists() and source.exists() and target.samefile(source):
        raise ArgumentError("directory", f"must not be that of the model itself, but is {target}")
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.suffix in COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)
    for name in (ENCODER, DECODER, SEARCH):  # not all models have all of them
        for old in (target / name, target / f"{name}.data"):
            old.unlink(missing_ok=True)
    for name, record in graphs.items():
        op = Builder()
        op.save(target / name, *record(op, model))
