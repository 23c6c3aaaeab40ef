"""Model directories that are written: ONNX graphs, int8 weights, another system's model for pybeam.

The package onnx is optional, so it is imported only when a model is exported.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pybeam.arguments import ArgumentError
from pybeam.export.fireredasr import convert_fireredasr
from pybeam.models.onnx.graphs import DECODER, ENCODER, SEARCH, missing_package

if TYPE_CHECKING:
    from pybeam.models.rnn import Rnn
    from pybeam.models.transformer.model import Transformer

__all__ = ["convert_fireredasr", "export_onnx"]

COPIED = (".json", ".model", ".spm", ".txt")  # files of configurations and tokenizers


def export_onnx(model: Transformer | Rnn, directory: str | os.PathLike[str]) -> None:
    """Write a model as ONNX graphs, float32, with configuration and tokenizer.

    - ``encoder.onnx`` and ``decoder.onnx``: `pybeam.load_model(directory)` decodes with them, under every
      algorithm and schedule. Keys and values, or states, are inputs.
    - ``search.onnx``: the whole of `pybeam.fixed_beam`, for any ONNX runtime. LSTMs have none, nor has
      Whisper, because it needs a prefix and this graph takes none.

    docs/reference/onnx.md describes inputs and outputs. Operators are those of opset 20, and no size is
    fixed.

    Args:
        model: a built-in transformer, for text or for speech, or an LSTM, with float32 weights, on any
            device.
        directory: is made if it does not exist; an earlier export in it is replaced.

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
