"""Attention over token trees and over encoder states, beside copies per beam entry and SDPA."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import FLASHINFER, Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.contracts import Cells, Paths
from pybeam.inspect.work import Work

NUM_HEADS, HEAD_SIZE = 16, 64
SIZE = NUM_HEADS * HEAD_SIZE
# the last have few programs, so the launcher splits their trees
BEAMS = ((64, 5), (16, 50), (1, 5), (10, 5))
# beams, width, steps of the tree
TREES = [(*beams, length) for beams in BEAMS for length in (16, 50, 200)]
LONG_TREES = [(64, 5, 1000), (10, 5, 1000), (1, 5, 1000), (1, 1, 1000)]
# beams, width, encoder states
CROSS = [(*beams, length) for beams in BEAMS for length in (40, 200)]
LONG_CROSS = [(16, 5, 1500), (1, 5, 1500)]
ON_CPU = [(64, 5), (1, 5), (16, 50)]
# beams that are too wide for masks: width, steps of the tree
WIDE = [(4, 200, 6), (1, 512, 6), (8, 256, 16)]


def grown_tree(width: int, num_steps: int, share: float = 0.5) -> tuple[Tensor, Tensor]:
    """Nodes seen by the `width` entries after some steps of a beam whose best entries have most
    children: masks [U] and, for every entry, its path [width, num_steps] as places in the masks.

    Each entry has `share` of the children that those before it have left."""
    num_live, places = grown_paths(width, num_steps, share)
    masks = torch.zeros(num_live, dtype=torch.int64)
    for entry in range(width):
        masks[places[entry]] |= 1 << entry
    return masks, places


def grown_paths(width: int, num_steps: int, share: float = 0.5) -> tuple[int, Tensor]:
    """How many nodes such entries see, and their paths."""
    paths = torch.empty(width, 0, dtype=torch.int64)
    num_nodes = 0
    for _ in range(num_steps):
        parent = torch.distributions.Geometric(share).sample((width,)).long() % width
        new = torch.arange(num_nodes, num_nodes + width)
        paths = torch.cat([paths[parent], new[:, None]], 1)
        num_nodes += width
    live, places = paths.unique(return_inverse=True)
    return live.numel(), places


class TreeAttention(Kernel):
    """Self-attention over steps of a token tree.

    One source's tree stands for all: every source has pages of its own in every pool.
    """

    op = "tree_attention, tree"
    label = "{}x{}, T={}"
    cases = Cases(
        cpu=cases(["float32"], [(*beams, length) for beams in ON_CPU for length in (16, 200)]),
        cuda=[
            *cases(["bfloat16"], TREES + LONG_TREES),
            *cases(["float32"], [*TREES[:2], LONG_TREES[0]]),
        ],
        tiny=[Case("float32", (2, 3, 4))],
    )
    tolerance = 2e-5
    tolerance_of_halves = 1e-2
    others: ClassVar[tuple[str, ...]] = (f"{FLASHINFER} paged decode",)
    copying: ClassVar[str] = "gather + SDPA"
    has_entries = True

    def __init__(
        self, device: torch.device, dtype: str, num_beams: int, width: int, length: int
    ) -> None:
        num_live, masks, places = self._seen(width, length)
        cells = torch.randperm(num_beams * num_live).view(num_beams, num_live)
        num_cells, torch_dtype = num_beams * num_live, getattr(torch, dtype)
        num_bytes = 2 * num_cells * SIZE * torch_dtype.itemsize
        # every row sees at least its own path
        self.work = Work(num_bytes, 4 * num_beams * width * length * SIZE)
        shape = 2, num_cells, NUM_HEADS, HEAD_SIZE
        query = torch.randn(num_beams * width, NUM_HEADS, HEAD_SIZE, device=device)
        self._query = query.to(torch_dtype)
        self.copies = [
            tuple(torch.randn(shape, device=device).to(torch_dtype))
            for _ in range(num_copies(device, num_bytes))
        ]
        ints = partial(torch.tensor, dtype=torch.int32, device=device)
        self._cells = Cells(
            offset=ints([width * i for i in range(num_beams + 1)]),
            slot=ints(list(range(num_beams))),
            cell=cells.int().to(device),
            num_cells=ints([num_live] * num_beams),
            mask=None if masks is None else masks.repeat(num_beams, 1)[..., None].to(device),
            entry=ints(list(range(width)) * num_beams) if self.has_entries else None,
            paths=self._paths(num_beams, places.to(device)),
        )
        # for the peers: the cells of every row, [R, T]
        self._row_cells = cells[:, places].reshape(num_beams * width, length).to(device)

    def _seen(self, width: int, length: int) -> tuple[int, Tensor | None, Tensor]:
        """Cells of a source, their masks, and the places of each entry's own."""
        masks, places = grown_tree(width, length)
        return masks.numel(), masks, places

    def _paths(self, num_beams: int, places: Tensor) -> Paths | None:
        return None

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        if kind == "cpu":
            return (cls.copying,)
        # FlashInfer has no float32
        others = cls.others if case.dtype == "bfloat16" else ()
        return (cls.copying, *cls.compiled(case), *others)

    def ours(self, backend: backends.Backend, key: Tensor, value: Tensor) -> Tensor:
        # the reference is compared in float32
        if backend is backends.load("reference"):
            query, key, value = self._query.float(), key.float(), value.float()
        else:
            query = self._query
        return backend.tree_attention(query, key, value, self._cells, HEAD_SIZE**-0.5)

    def in_torch(self, key: Tensor, value: Tensor) -> Tensor:
        """A cache of its own for every row: keys and values are gathered, then attended."""
        gathered = [pool[self._row_cells].transpose(1, 2) for pool in (key, value)]
        return scaled_dot_product_attention(self._query[:, :, None], *gathered)  # [R, H, 1, D]

    def in_compiled(self, key: Tensor, value: Tensor) -> Tensor:
        """Sums over the cells of every row, which a compiled kernel reads where they lie."""
        cells, scale = self._row_cells, HEAD_SIZE**-0.5
        score = (self._query[:, None].float() * key[cells].float()).sum(-1)  # [R, T, H]
        share = (scale * score).softmax(1)[..., None]
        return (share * value[cells].float()).sum(1).to(key.dtype)

    def in_other(self, name: str) -> Callable[..., object]:
        """Each row is a request, and each cell that the row sees a page."""
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        num_rows, length = self._row_cells.shape
        one = torch.ones(num_rows, dtype=torch.int32, device=self._query.device)
        workspace = torch.zeros(2**27, dtype=torch.uint8, device=one.device)
        decode = BatchDecodeWithPagedKVCacheWrapper(workspace)
        decode.plan(
            length * torch.arange(num_rows + 1, dtype=torch.int32, device=one.device),
            self._row_cells.flatten().int(),
            one,
            *(NUM_HEADS, NUM_HEADS, HEAD_SIZE, 1),
            q_data_type=self._query.dtype,
        )
        return lambda key, value: decode.run(self._query, (key[:, None], value[:, None]))


class CrossAttention(TreeAttention):
    """Cross-attention over encoder states, which all rows of a source see."""

    op = "tree_attention, cross"
    label = "{}x{}, E={}"
    cases = Cases(
        cpu=cases(["float32"], [(*beams, length) for beams in ON_CPU for length in (40, 200)]),
        cuda=[
            *cases(["bfloat16"], CROSS + LONG_CROSS),
            *cases(["float32"], CROSS[:2]),
        ],
        tiny=[Case("float32", (2, 3, 4))],
    )
    copying = "SDPA, states repeated per row"
    has_entries = False

    def _seen(self, width: int, length: int) -> tuple[int, None, Tensor]:
        return length, None, torch.arange(length).repeat(width, 1)

    def calls(self, name: str) -> list:
        """The peer finds the states of every row copied."""
        if name != self.copying:
            return super().calls(name)
        states = [
            [pool[self._row_cells].transpose(1, 2).contiguous() for pool in copy]
            for copy in self.copies[:4]
        ]
        query = self._query[:, :, None]
        return [partial(scaled_dot_product_attention, query, *pools) for pools in states]


class PathAttention(TreeAttention):
    """Self-attention of beams so wide that each row reads its own path."""

    op = "tree_attention, paths"
    cases = Cases(
        cpu=cases(["float32"], WIDE[:2]),
        cuda=cases(["bfloat16"], WIDE),
        tiny=[Case("float32", (2, 6, 4))],
    )

    def _seen(self, width: int, length: int) -> tuple[int, None, Tensor]:
        num_live, places = grown_paths(width, length)
        return num_live, None, places

    def _paths(self, num_beams: int, places: Tensor) -> Paths:
        length = torch.full((num_beams,), places.shape[1], dtype=torch.int32, device=places.device)
        return Paths(places.int().repeat(num_beams, 1, 1), length, None)


bench_tree_attention = times(TreeAttention)
bench_cross_attention = times(CrossAttention)
bench_path_attention = times(PathAttention)
