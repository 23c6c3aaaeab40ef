"""Checkpoints that are pickles (`pytorch_model.bin`): read without running code, written as safetensors.

A pickle names functions and calls them. torch's restricted reader (``weights_only=True``) calls those alone
that it knows. Here a file does not even come to that reader unless it names nothing but what a table of
dense tensors needs, whatever a program has allowed that reader besides.
"""

from __future__ import annotations

import json
import pickle
import pickletools
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from pybeam.models.checkpoint import PREFIXES, TIED, shards_of
from pybeam.models.tensor_files import NAMES, TensorWriter
from pybeam.text.model_files import MAX_TEXT_BYTES
from pybeam.text.needed_files import needed_file
from pybeam.text.zip_files import plain_parts

PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
# all that a table of dense tensors names
ALLOWED = (
    *("collections.OrderedDict", "torch._utils._rebuild_tensor_v2"),
    *("torch._utils._rebuild_parameter", *(f"torch.{kind}Storage" for kind in STORAGES)),
)
# a file of a torch before 1.6 begins with this number, and holds five pickles before the tensors' bytes
MAGIC, NUM_PICKLES = 0x1950A86A20F9469CFC6C, 5
# the codes behind which a pickle keeps what it takes again: names, texts, containers and what calls return
SHARED = (
    *("GLOBAL", "BINUNICODE", "SHORT_BINSTRING", "BINPERSID", "REDUCE", "NEWOBJ"),
    *("EMPTY_DICT", "EMPTY_LIST"),
)
# how all zip files begin
ZIP = b"PK\x03\x04"
# tensors may share memory, but not so that little of it becomes a lot
MOST_COPIES = 2


def write_safetensors(directory: Path, output: Path) -> None:
    """Write the weights of a folder, which are pickles, as safetensors into another folder.

    They are ``pytorch_model.bin``, or the shards of ``pytorch_model.bin.index.json``. Tied tables are written
    once.

    Raises:
        ValueError: a file is missing, or one of those that `read_pickle` and `read_tensors` refuse.
    """
    single, index = directory / PICKLED, directory / PICKLED_INDEX
    shards: Mapping[Path, list[str] | None]
    shards = {single: None} if single.exists() else shards_of(index)
    weight_map: dict[str, str] = {}
    for i, (path, names) in enumerate(shards.items(), 1):
        tensors = read_tensors(path)
        lost = [name for name in names or () if name not in tensors]
        if lost:
            raise ValueError(f"{path} must hold `{lost[0]}`, says {index.name}, but does not")
        kept = _one_of_tied({name: tensors[name] for name in names or tensors})
        file = "model.safetensors"
        if names is not None:
            file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        _write(output / file, kept)
        weight_map |= dict.fromkeys(kept, file)
    if not single.exists():
        text = json.dumps({"metadata": {}, "weight_map": weight_map}, indent=2)
        (output / "model.safetensors.index.json").write_text(text + "\n", "utf-8")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a pickled table of tensors.

    Raises:
        ValueError: as `read_pickle`; or the file holds anything but dense tensors by name, or tensors of much
            more bytes than the file has.
    """
    held = read_pickle(path)
    if not isinstance(held, dict) or not held:
        raise ValueError(
            f"{path} must hold a table of tensors by name, but holds {_kind(held)}; is it a checkpoint of "
            "transformers?"
        )
    tensors = {}
    for name, value in held.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"{path} must hold tensors by name, but one is called {name!r}")
        if not isinstance(value, Tensor) or not _is_dense(value):
            raise ValueError(
                f"`{name}` in {path} must be a dense tensor of {', '.join(NAMES.values())}, but is "
                f"{_kind(value)}"
            )
        tensors[name] = value.detach()
    size, most = sum(one.nbytes for one in _one_of_tied(tensors).values()), path.stat().st_size
    if size > MOST_COPIES * most:
        raise ValueError(
            f"the tensors of {path} must take about as many bytes as the file, {most:,}, but take {size:,}"
        )
    return tensors


def read_pickle(path: Path, also: Sequence[type] = ()) -> Any:
    """Read what torch.save has written, if it is made of dense tensors, tables, lists, numbers and text.

    `also` are further classes whose objects it may hold.

    Raises:
        ValueError: the file is missing or not sound, its bytes are compressed or overlap, or it names
            anything else, which could run code.
    """
    needed_file(path)
    with open(path, "rb") as file:
        is_zip = file.read(len(ZIP)) == ZIP
        file.seek(0)
        try:
            named = set(_names_in_zip(file) if is_zip else _names_in_stream(file))
        # damaged files can be odd in many ways, here and for the restricted reader
        except Exception as error:
            raise _unsound(path, error) from error
    more = [f"{kind.__module__}.{kind.__qualname__}" for kind in also]
    refused = sorted(named.difference(ALLOWED, more))
    if refused:
        raise ValueError(
            f"{path} must name {' and '.join(['tensors', *more])} alone, but names {refused[0]}; anything "
            "else in a pickle can run code, so it was not opened"
        )
    try:
        with torch.serialization.safe_globals(list(also)):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        raise _unsound(path, error) from None
    except Exception as error:
        raise _unsound(path, error) from error


def _names_in_zip(file: IO[bytes]) -> Iterator[str]:
    """Yield what the pickle of a zip file names. Raises ValueError if its parts are not plain bytes."""
    with zipfile.ZipFile(file) as archive:
        parts = plain_parts(archive, file.seek(0, 2))
        if len({part.filename.partition("/")[0] for part in parts}) != 1:
            raise ValueError("its parts stand in several folders")
        pickles = [part for part in parts if part.filename.partition("/")[2] == "data.pkl"]
        if len(pickles) != 1 or pickles[0].file_size > MAX_TEXT_BYTES:
            raise ValueError("it has no data.pkl, or one that is too large")
        yield from _named(archive.read(pickles[0]))


def _names_in_stream(file: IO[bytes]) -> Iterator[str]:
    """Yield what the pickles at the beginning of a file from before torch 1.6 name."""
    # torch tries this older form first, which may begin as another does
    if tarfile.is_tarfile(file):
        raise ValueError("it is a tar file, from before torch 0.1.10")
    file.seek(0)
    if [arg for code, arg, _ in pickletools.genops(file) if code.name == "LONG1"] != [MAGIC]:
        raise ValueError("it does not begin as torch.save begins")
    for _ in range(NUM_PICKLES - 1):
        yield from _named(file)


def _named(pickled: bytes | IO[bytes]) -> Iterator[str]:
    """Yield what one pickle names. torch's reader knows no other code that names something.

    Raises ValueError if a tuple stands in two places: forty of them within each other are hashed for hours.
    """
    shared: set[object] = set()
    last = ""
    for code, arg, _ in pickletools.genops(pickled):
        if code.name == "GLOBAL":
            yield str(arg).replace(" ", ".")
        elif code.name.endswith("PUT") and last in SHARED:
            shared.add(arg)
        elif code.name.endswith("PUT"):
            shared.discard(arg)
        elif code.name.endswith("GET") and arg not in shared:
            raise ValueError("it takes a tuple, or another thing that is not built once, twice")
        last = code.name


def _unsound(path: Path, error: Exception) -> ValueError:
    reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    # torch advises to open the file without restrictions
    if isinstance(error, pickle.UnpicklingError):
        reason = "torch's restricted reader refuses it"
    return ValueError(f"{path} is not a sound checkpoint of torch: {reason}")


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"an empty {type(value).__name__}" if value == {} else f"a {type(value).__name__}"
    return f"{value.dtype} {list(value.shape)}"


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is an array in memory as large as its shape says."""
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not is_plain or tensor.dtype not in NAMES or tensor.is_neg() or tensor.is_conj():
        return False
    return tensor.nbytes <= tensor.untyped_storage().nbytes()


def _one_of_tied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out further names of tables that are stored once: every reader knows which these are."""
    groups: dict[object, list[str]] = {}
    for name, one in tensors.items():
        place = one.data_ptr(), one.dtype, one.shape, one.stride()
        groups.setdefault(place if one.numel() else name, []).append(name)
    left_out = set()
    for names in groups.values():
        tables = sorted((name for name in names if _bare(name) in TIED), key=_order)
        left_out |= set(tables[1:] if len(tables) == len(names) else tables)
    return {name: one for name, one in tensors.items() if name not in left_out}


def _bare(name: str) -> str:
    return next((name.removeprefix(one) for one in PREFIXES if name.startswith(one)), name)


def _order(table: str) -> int:
    return TIED.index(_bare(table))


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    writer = TensorWriter(
        path, {name: (one.dtype, tuple(one.shape)) for name, one in tensors.items()}
    )
    try:
        for name, one in tensors.items():
            writer.write(name, one)
    finally:
        writer.close()
