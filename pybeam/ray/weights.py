"""`share_model`: one copy of the weights on each node, whatever the number of its processes."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import ray
from pybeam.models.base import InProcess, Model
from pybeam.models.loading import load_model
from pybeam.text.tokenizer import Tokenizer, load_tokenizer
from ray import cloudpickle


class SharedModel:
    """A model and its tokenizer in Ray's object store; `share_model` makes one.

    It is small, and can be sent to any process of the cluster. Ray copies the weights to a node once, and
    all processes there read the same memory.
    """

    def __init__(self, content: ray.ObjectRef, tokenizer: Tokenizer) -> None:
        self._content, self._tokenizer = content, tokenizer

    def open(self) -> tuple[Model, Tokenizer]:
        """Return the model, whose weights lie in the object store, and the tokenizer."""
        return unpacked(*ray.get(self._content)), self._tokenizer


def share_model(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    dtype: str | torch.dtype = "auto",
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> SharedModel:
    """Load a model here, and put it into Ray's object store, so that no other machine needs its files.

    It is for CPUs. An actor with a GPU loads its own copy: give `translate` a path.

    Args:
        path, dtype: as for `pybeam.load_model`.
        source_lang, target_lang: as for `pybeam.load_tokenizer`.

    Raises:
        FileNotFoundError, TypeError, ValueError: the model or its tokenizer cannot be loaded.
    """
    model = load_model(path, "cpu", dtype)
    first = path if isinstance(path, (str, os.PathLike)) else path[0]
    tokenizer = load_tokenizer(first, source_lang=source_lang, target_lang=target_lang)
    return SharedModel(ray.put(packed(model)), tokenizer)


class _View(NamedTuple):
    """A tensor, as a view of the bytes of a storage."""

    storage: int
    dtype: torch.dtype
    offset: int  # in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Packer(cloudpickle.CloudPickler):
    """Pickles an object without the bytes of its tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.storages: list[np.ndarray] = []
        self._places: dict[int, int] = {}

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, InProcess):
            # their tensors are sent once, and are not copied
            return object.__new__, (type(value),), vars(value)
        return super().reducer_override(value)

    def persistent_id(self, value: Any) -> _View | None:
        if not isinstance(value, Tensor):
            return None
        storage = value.untyped_storage()
        place = self._places.setdefault(storage.data_ptr(), len(self.storages))
        if place == len(self.storages):
            self.storages.append(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
        return _View(
            place, value.dtype, int(value.storage_offset()), tuple(value.shape), value.stride()
        )


class _Unpacker(pickle.Unpickler):
    def __init__(self, content: bytes, storages: Sequence[np.ndarray]) -> None:
        super().__init__(io.BytesIO(content))
        with warnings.catch_warnings():
            # the memory of the object store is read-only, and nothing writes into weights
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self._storages = [torch.from_numpy(storage) for storage in storages]

    def persistent_load(self, view: _View) -> Tensor:
        storage = self._storages[view.storage].untyped_storage()
        empty = torch.empty(0, dtype=view.dtype)
        return empty.set_(storage, view.offset, view.shape, view.strides)


def packed(value: Any) -> tuple[bytes, list[np.ndarray]]:
    """Return an object without the bytes of its tensors, and these bytes: [n] uint8 for each storage."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(value)
    return file.getvalue(), packer.storages


def unpacked(content: bytes, storages: Sequence[np.ndarray]) -> Any:
    """Return the object; its tensors are views of `storages`, and nothing is copied."""
    return _Unpacker(content, storages).load()
