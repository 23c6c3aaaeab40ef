"""The CUDA C++ kernel of `decoder_layers`, compiled by a C++ compiler: all its blocks at once, as fibers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pybeam.contracts import Survivors
from support.compiled import library as compiled_library
from support.cuda_on_cpu import select_arguments
from support.decoder_layers import LayersCase, LayersShape, Selected, given, num_places
from support.paths import ROOT

SOURCE = ROOT / "tests" / "ops" / "cuda_resident" / "layers.cpp"


def compiled() -> ctypes.CDLL:
    return declared(compiled_library(SOURCE, ["-O1", "-U_FORTIFY_SOURCE", f"-I{SOURCE.parent}"]))


def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Say what the functions of a library take, which was compiled from `SOURCE`."""
    assert library.num_param_bytes() == ctypes.sizeof(_Params)
    library.layers_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    library.choice_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    library.plan_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return library


class _Params(ctypes.Structure):
    """`LayersParams` of csrc/cuda/decoder_layers.cuh but for its choice, its parts in a line."""

    _fields_ = (
        [(name, ctypes.c_bool) for name in ("is_float16", "has_choice")]
        + [(name, ctypes.c_void_p) for name in ("layers", "states", "out")]
        + [("out_stride", ctypes.c_int64)]
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
        + [("unused", ctypes.c_int), ("plan", ctypes.c_int * 5)]
        + [(name, ctypes.c_void_p) for name in ("token", "place", "table", "positions")]
        + [(n, ctypes.c_int) for n in ("num_tokens", "num_positions", "skipped_id")]
        + [("embedding_scale", ctypes.c_float)]
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
        return self.operator(*given(case), seed=seed)[0][: int(case.cells.offset[-1])]

    def chosen(self, case: LayersCase, selected: Selected, seed: int = 0) -> Survivors:
        """The survivors of beams, which are the sources of rows."""
        return Survivors(*self.operator(*given(case, selected), seed=seed))

    def operator(
        self, states: Tensor | None, embedding: Sequence[Tensor], *given: Any, seed: int = 0
    ) -> list[Tensor]:
        """Do as the operator `decoder_layers` does."""
        kept, seen, *others = given
        logits, selected, numbers = others[:4], Selected(*others[4:18]), others[18:]
        table = embedding[2]
        num_rows, num_columns = len(embedding[0]), table.shape[1]
        if logits[2] is not None:
            num_columns = len(logits[2])
        chooses = selected.score is not None
        stride = -(-num_columns // 8) * 8 if chooses else num_columns
        out = torch.full((num_rows, stride), math.nan, dtype=table.dtype)
        params = self._params(states, embedding, kept, seen, logits, numbers)
        assert params.plan[0], "these layers are not for it"
        params.out, params.out_stride, params.has_choice = out.data_ptr(), stride, chooses
        if not chooses:
            self._library.layers_on_cpu(ctypes.byref(params), seed)
            return [out]
        numbers, results = select_arguments(out[:, :num_columns], *selected[:3], selected.options)
        self._library.choice_on_cpu(ctypes.byref(params), numbers, seed)
        return list(results)

    def _params(
        self,
        states: Tensor | None,
        embedding: Sequence[Tensor],
        kept: Sequence[Tensor],
        seen: Sequence[Tensor],
        logits: Sequence[Tensor | None],
        numbers: Sequence[Any],
    ) -> _Params:
        num_pool_cells, inner_width, num_heads, activation, is_pre_norm = numbers[:5]
        skipped_id, embedding_scale, epsilon, scale = numbers[5:]
        layers, places, books = kept
        _, slot, cell, _, mask, _, _, source_cell, _ = seen
        table, positions = embedding[2:]
        num_rows, width = -(-len(embedding[0]) // 8) * 8, table.shape[1]
        params = _Params(
            *(table.dtype == torch.float16, False),
            *(layers.data_ptr(), None if states is None else states.data_ptr(), None, 0),
            *(None if part is None else part.data_ptr() for part in logits),
            0 if logits[2] is None else len(logits[2]),
            *(places.data_ptr(), books.data_ptr()),
            num_places(num_rows, width, inner_width),
            len(layers),
            num_rows,
            *(width, inner_width, num_heads, int(activation), is_pre_norm, epsilon, scale),
            *(array.data_ptr() for array in seen),
            *(len(slot), cell.shape[1], mask.shape[2], source_cell.shape[1], num_pool_cells),
            0,
        )
        params.token, params.place, params.table, params.positions = (
            array.data_ptr() for array in embedding
        )
        params.num_tokens, params.num_positions = len(table), len(positions)
        params.skipped_id, params.embedding_scale = skipped_id, embedding_scale
        self._library.plan_on_cpu(ctypes.byref(params), self._num_blocks, self._shared_bytes)
        return params
