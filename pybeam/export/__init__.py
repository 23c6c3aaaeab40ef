"""Model directories that are written: ONNX graphs, int8 or int4 weights, another system's model for pybeam.

The package onnx is optional, so it is imported only when a model is exported.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pybeam.arguments import ArgumentError
from pybeam.export.features import export_features
from pybeam.export.fireredasr import convert_fireredasr
from pybeam.models.foreign import loader_of
from pybeam.models.onnx import DECODER, ENCODER, FEATURES, SEARCH
from pybeam.models.onnx.graphs import missing_package
from pybeam.models.settings import GENERATION, read_settings
from pybeam.text.json_files import read_json

if TYPE_CHECKING:
    from pybeam.models.rnn import Rnn
    from pybeam.models.transformer.model import Transformer
    from pybeam.search.algorithms import Algorithm

__all__ = ["convert_fireredasr", "export_features", "export_onnx"]

COPIED = (".json", ".model", ".spm", ".txt")  # files of configurations and tokenizers


def export_onnx(
    model: Transformer | Rnn,
    directory: str | os.PathLike[str],
    algorithm: Algorithm | None = None,
) -> None:
    """Write a model as ONNX graphs, float32, with configuration and tokenizer.

    - ``encoder.onnx`` and ``decoder.onnx``: `pybeam.load_model(directory)` decodes with them, under every
      algorithm and schedule. Keys and values, or states, are inputs. It has the EOS that the model was
      loaded with, and no settings that it is `without`.
    - ``search.onnx``: a whole search, for any ONNX runtime. LSTMs have none.

    The algorithm fixes the rules of that search: how hypotheses finish, when it stops, its processors. Its
    numbers are inputs with defaults, except for width, length limit and length penalty, which callers give.
    docs/reference/onnx.md describes inputs and outputs. Operators are those of opset 20, and no size is
    fixed.

    Args:
        model: a built-in transformer, for text or for speech, or an LSTM, with float32 weights, on any
            device.
        directory: is made if it does not exist; an earlier export in it is replaced.
        algorithm: the search of ``search.onnx``, from functions such as `pybeam.variable_beam` and those of
            `pybeam.compat`. None: `pybeam.fixed_beam`. Both get the settings of the model's folder, but
            `forced_bos_token_id`, as prefixes are an input.

    Raises:
        ImportError: the packages onnx or onnx-ir are not installed.
        TypeError, ValueError: the model is another kind, has other weights, or is in that directory; or a
            graph cannot express the algorithm, which is said by name.
    """
    try:
        from pybeam.export.builder import Builder
        from pybeam.export.kinds import recorders
    except ImportError as error:
        raise missing_package(error) from error
    graphs = recorders(model, algorithm)
    source, target = model.config.path.parent, Path(directory)
    if target.exists() and source.exists() and target.samefile(source):
        raise ArgumentError("directory", f"must not be that of the model itself, but is {target}")
    if loader_of(source) is not None:
        problem = f"must be of a folder of transformers, but is of {source}; export what that was made from"
        raise ArgumentError("model", problem)
    recorded = []
    for name, record in graphs.items():
        op = Builder()
        recorded.append((name, op, record(op, model)))
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.suffix in COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)
    _write_changes(model, target)
    for name in (ENCODER, DECODER, SEARCH, FEATURES):  # not all models have all of them
        for old in (target / name, target / f"{name}.data"):
            old.unlink(missing_ok=True)
    for name, op, (inputs, outputs) in recorded:
        op.save(target / name, inputs, outputs)


def _write_changes(model: Transformer | Rnn, directory: Path) -> None:
    """Change what the model's files say where the model has it otherwise: EOS, and settings that it lost."""
    path = directory / "config.json"
    config = read_json(path)
    if (directory / GENERATION).exists():
        path = directory / GENERATION
    found = read_json(path)
    lost = set(read_settings(directory).names) - set(model.settings.names)
    # null switches off what a class of transformers sets by default, too
    changes: dict[str, Any] = dict.fromkeys(lost)
    if "min_length" in lost:
        changes["min_new_tokens"] = None
    named = found.get("eos_token_id", config.get("eos_token_id"))
    eos = list(model.eos_ids)
    if (named if isinstance(named, list) else [named]) != eos:
        changes["eos_token_id"] = eos[0] if len(eos) == 1 else eos
    if changes:
        path.write_text(json.dumps(found | changes, indent=2), "utf-8")
