"""Files of catalogues: safetensors, mapped into memory when they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pybeam.catalogue.levels import Built, Levels
from pybeam.text.model_files import regular_file

FORMAT = "pybeam.catalogue"
VERSION = "1"
# the arrays of a file, and their dtypes
DTYPES = {
    "token": "int32",
    "first": "int32",
    "end": "int32",
    "start": "int64",
    "items": "int32",
    "first_item": "int32",
}


def write(path: str | os.PathLike[str], built: Built) -> None:
    """Write a catalogue, beside the place first, so that a crash leaves no half file."""
    arrays = {**built.levels._asdict(), "items": built.items, "first_item": built.first_item}
    target = Path(path)
    passing = target.with_name(target.name + ".part")
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(arrays, passing, metadata={"format": FORMAT, "version": VERSION})
    os.replace(passing, target)


def read(path: str | os.PathLike[str]) -> Built:
    """Map a catalogue into memory. Pages come from the file when they are used.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no catalogue, of another version, or not sound.
    """
    regular_file(Path(path))
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            names = set(file.keys())
    except SafetensorError as error:
        raise ValueError(f"{path} is not a sound safetensors file: {error}") from error
    if metadata.get("format") != FORMAT or names != set(DTYPES):
        raise ValueError(f"{path} is not a catalogue that pybeam.Catalogue.save has written")
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"{path} must be a catalogue of version {VERSION}, but is of {metadata.get('version')}; "
            "build it again, or use another pybeam"
        )
    arrays = _mapped(Path(path))
    for name, dtype in DTYPES.items():
        if arrays[name].dtype != dtype or arrays[name].ndim != 1:
            raise ValueError(
                f"{path}: `{name}` must be [n] {dtype}, but is {list(arrays[name].shape)} "
                f"{arrays[name].dtype}"
            )
    levels = Levels(*(arrays[name] for name in Levels._fields))
    built = Built(levels, arrays["items"], arrays["first_item"])
    problem = _problem(built)
    if problem:
        raise ValueError(f"{path} is not a sound catalogue: {problem}")
    return built


def _mapped(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, each a map of its bytes."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    dtypes = {"I32": np.int32, "I64": np.int64}
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] not in dtypes:
            raise ValueError(f"{path}: `{name}` must be int32 or int64, but is {entry['dtype']}")
        dtype = np.dtype(dtypes[entry["dtype"]])
        if begin == end:
            arrays[name] = np.zeros(entry["shape"], dtype)
            continue
        # copy on write: torch takes no array that it could not write
        whole = np.memmap(path, dtype, "c", 8 + size + begin, tuple(entry["shape"]))
        arrays[name] = np.asarray(whole)
    return arrays


def _problem(built: Built) -> str:
    """The fault of sizes or ids, so that a search would read beyond the arrays; "" if nothing is."""
    levels = built.levels
    num_edges, num_nodes = len(levels.token), levels.num_nodes
    start = levels.start
    if not num_edges or len(start) < 3 or start[0] != 0 or start[1] != 1 or start[-1] != num_nodes:
        return "the depths do not cover the nodes"
    if (np.diff(start) <= 0).any() or len(levels.first) != start[-2] + 1:
        return "`first` and the depths differ"
    if levels.first[0] != 0 or levels.first[-1] != num_edges or _descends(levels.first):
        return "`first` does not ascend from 0 to the number of edges"
    # every depth's children are the nodes of the next one
    if (levels.first[start[:-1]] != start[1:] - 1).any():
        return "the children of a depth are not the next depth"
    if levels.token.min() < 0:
        return "a token is negative"
    begins = np.zeros(num_edges + 1, dtype=bool)
    begins[levels.first] = True
    if ((levels.token[1:] <= levels.token[:-1]) & ~begins[1:-1]).any():
        return "tokens of a node do not ascend"
    end, items = levels.end, built.items
    if not len(end) or end[0] < 1 or end[-1] >= num_nodes or _descends(end, strictly=True):
        return "`end` is not ascending nodes"
    leads_on = np.zeros(num_nodes, dtype=bool)
    leads_on[end] = True
    leads_on[: len(levels.first) - 1] |= np.diff(levels.first) > 0
    if not leads_on.all():
        return "a node leads to no item"
    first_item = built.first_item
    if len(first_item) != len(end) + 1 or first_item[0] != 0 or first_item[-1] != len(items):
        return "`first_item` does not cover the items"
    if _descends(first_item, strictly=True):
        return "a sequence has no item"
    # first, as a number that is too large would make as many counters
    if items.min() < 0 or items.max() >= len(items) or (np.bincount(items) != 1).any():
        return "`items` are not 0 to n - 1, each once"
    return ""


def _descends(array: np.ndarray, *, strictly: bool = False) -> bool:
    later, earlier = array[1:], array[:-1]
    return bool((later <= earlier).any() if strictly else (later < earlier).any())
