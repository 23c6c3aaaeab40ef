"""Where a model computes, and with weights of which type, by CTranslate2's names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pybeam.arguments import ArgumentError
from pybeam.models.checkpoint import quantised_dtype
from pybeam.models.loading import load_model

log = logging.getLogger(__name__)

ComputeType = str | Mapping[str, str]

# pybeam's dtypes for CTranslate2's types of computation; int16 is computed in float32, which is nearer
COMPUTE_TYPES = {
    "default": "auto",
    "int8": "int8",
    "int8_float32": "int8",
    "int8_float16": "int8",
    "int8_bfloat16": "int8",
    "int16": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
}
FASTEST = {"cpu": "int8", "cuda": "float16"}


@dataclass(frozen=True)
class Computing:
    """The device and the type of computation of a model.

    Attributes:
        device: "cpu" or "cuda".
        index: of the GPU.
        dtype: of `pybeam.load_model`; None: the fastest that the folder and the device allow.
    """

    device: str
    index: int
    dtype: str | None

    @classmethod
    def of(
        cls, device: str, device_index: int | Sequence[int], compute_type: ComputeType
    ) -> Computing:
        """Return them for the arguments of a constructor.

        Raises:
            TypeError, ValueError: there is no such device or type, or there are several devices.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device not in FASTEST:
            raise ArgumentError("device", f"must be 'cpu', 'cuda' or 'auto', but is {device!r}")
        indices = [device_index] if isinstance(device_index, int) else list(device_index)
        if len(indices) != 1 or (device == "cpu" and indices != [0]):
            problem = f"must be one number, and 0 for a CPU, but is {device_index!r}"
            raise ArgumentError("device_index", f"{problem}; load a model for each GPU")
        return cls(device, indices[0], dtype_of(device, compute_type))

    def load(self, folder: Path) -> Any:
        """Load the model of a folder; see `pybeam.load_model`."""
        place = self.device if self.device == "cpu" else f"{self.device}:{self.index}"
        dtype = self.dtype
        if dtype is None:  # integers stay as they are
            dtype = "auto" if quantised_dtype(folder) else FASTEST[self.device]
        return load_model(folder, place, dtype)


def dtype_of(device: str, compute_type: ComputeType) -> str | None:
    """Return the `dtype` of `pybeam.load_model` for a type of computation on a device, "cpu" or "cuda".

    None is the fastest. GPUs have no int8 here, and take the floats that are named beside it.

    Raises:
        TypeError, ValueError: there is no such type.
    """
    if isinstance(compute_type, Mapping):
        compute_type = compute_type.get(device, "default")
    if not isinstance(compute_type, str):
        raise TypeError(
            "incompatible constructor arguments: `compute_type` must be a name, or names by devices, but is "
            f"{compute_type!r}"
        )
    if compute_type == "auto":
        return None
    if compute_type not in COMPUTE_TYPES:
        known = ", ".join(["auto", *COMPUTE_TYPES])
        raise ValueError(f"Invalid compute type: {compute_type}; it must be one of {known}")
    dtype = COMPUTE_TYPES[compute_type]
    if dtype == "int8" and device != "cpu":
        dtype = compute_type.partition("_")[2] or "float32"
        log.warning("GPUs do not compute in int8 here, so weights are %s", dtype)
    return dtype
