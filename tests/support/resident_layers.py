"""The CUDA C++ kernel of `decoder_layers`, compiled by a C++ compiler: all its blocks at once, as fibers."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from support.compiled import library as compiled_library
from support.decoder_layers import LayersCase, LayersShape, given
from support.paths import ROOT

SOURCE = ROOT / "tests" / "ops" / "cuda_resident" / "layers.cpp"


def compiled() -> ctypes.CDLL:
    library = compiled_library(SOURCE, ["-O1", "-U_FORTIFY_SOURCE", f"-I{SOURCE.parent}"])
    assert library.num_param_bytes() == ctypes.sizeof(_Params)
    library.layers_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    library.plan_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return library


class _Params(ctypes.Structure):
    """`LayersParams` of csrc/cuda/decoder_layers.cuh, its parts in a line."""

    _fields_ = (
        [("is_float16", ctypes.c_bool)]
        + [(name, ctypes.c_void_p) for name in ("layers", "states", "out")]
        + [(name, ctypes.c_void_p) for name in ("scale", "shift", "weight", "bias")]
        + [("num_logits", ctypes.c_int), ("places", ctypes.c_void_p), ("books", ctypes.c_void_p)]
        + [("num_places", ctypes.c_int64)]
        + [(n, ctypes.c_int) for n in ("num_layers", "place_rows", "width", "inner_width")]
        + [("num_heads", ctypes.c_int), ("activation", ctypes.c_int32)]
        + [("is_pre_norm", ctypes.c_bool)]
        + [(name, ctypes.c_float) for name in ("epsilon", "score_scale")]
        + [(name, ctypes.c_void_p) for name in ("offset", "slot", "cell", "length", "mask")]
        + [(n, ctypes.c_void_p) for n in ("entry", "new_cell", "source_cell", "source_length")]
        + [(n, ctypes.c_int) for n in ("num_sources", "max_cells", "mask_words")]
        + [(n, ctypes.c_int) for n in ("max_source_cells", "num_pool_cells")]
        + [("unused", ctypes.c_int), ("plan", ctypes.c_int * 6)]
    )


class Resident:
    """The kernel as threads of this CPU.

    Args:
        library: of `compiled`.
        num_blocks: of a launch.
        shared_bytes: that a block may have.
    """

    def __init__(self, library: ctypes.CDLL, num_blocks: int, shared_bytes: int = 232448) -> None:
        self._library, self._num_blocks, self._shared_bytes = library, num_blocks, shared_bytes

    def plan(
        self, shape: LayersShape, num_layers: int, num_rows: int, num_logits: int = 0
    ) -> list[int] | None:
        """How a launch would be divided; None: the layers are not for it."""
        params = _Params(
            num_logits=num_logits,
            num_layers=num_layers,
            place_rows=-(-num_rows // 8) * 8,
            width=shape.width,
            inner_width=shape.inner_width,
            num_heads=shape.num_heads,
        )
        self._library.plan_on_cpu(ctypes.byref(params), self._num_blocks, self._shared_bytes)
        return list(params.plan) if params.plan[0] else None

    def __call__(self, case: LayersCase, seed: int = 0) -> Tensor:
        """The states of rows behind all layers; new keys and values go to `own_pools`."""
        return self.operator(*given(case), seed=seed)[: int(case.cells.offset[-1])]

    def operator(self, states: Tensor, *given: Any, seed: int = 0) -> Tensor:
        """Do as the operator `decoder_layers` does."""
        params = self._params(states, *given)
        assert params.plan[0], "these layers are not for it"
        num_columns = params.num_logits or states.shape[1]
        out = torch.full((len(states), num_columns), math.nan, dtype=states.dtype)
        params.out = out.data_ptr()
        self._library.layers_on_cpu(ctypes.byref(params), seed)
        return out

    def _params(self, states: Tensor, *given: Any) -> _Params:
        layers, places, books, *arrays = given[:12]
        logits = given[12:16]
        num_pool_cells, inner_width, num_heads, activation, is_pre_norm, *floats = given[16:]
        _, slot, cell, _, mask, _, _, source_cell, _ = arrays
        num_rows, width = -(-len(states) // 8) * 8, states.shape[1]
        params = _Params(
            states.dtype == torch.float16,
            *(array.data_ptr() for array in (layers, states, states)),
            *(None if part is None else part.data_ptr() for part in logits),
            0 if logits[2] is None else len(logits[2]),
            *(places.data_ptr(), books.data_ptr()),
            num_rows * (9 * width + inner_width),
            len(layers),
            num_rows,
            *(width, inner_width, num_heads, int(activation), is_pre_norm),
            *floats,
            *(array.data_ptr() for array in arrays),
            *(len(slot), cell.shape[1], mask.shape[2], source_cell.shape[1], num_pool_cells),
            0,
        )
        self._library.plan_on_cpu(ctypes.byref(params), self._num_blocks, self._shared_bytes)
        return params
