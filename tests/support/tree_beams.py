"""Token trees of either representation, and random beams that grow in them."""

from __future__ import annotations

import torch

from pybeam import backends
from pybeam.backends.arrays import tree_survivors
from pybeam.contracts import PAGE_CELLS, Survivors
from pybeam.kvcache.token_tree import TokenTree

EOS = 2


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


class Beams:
    """Random survivors for the slots of a tree; knows every row's hypothesis by itself."""

    def __init__(self, num_slots: int, width: int, seed: int, device="cpu") -> None:
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)
        self.width = width
        self.rows: dict[int, list[tuple[tuple[int, ...], bool]]] = {p: [] for p in range(num_slots)}

    def random(self, high: int) -> int:
        return int(torch.randint(high, (1,), generator=self.generator))

    def open(self, slots: list[int]) -> None:
        for p in slots:
            self.rows[p] = [((1,), False)]

    def step(self, slots: list[int]) -> Survivors:
        """Survivors after which `rows` is the new beam; the first few of a beam have finished."""
        capacity = self.width + 3
        parent = torch.full((len(slots), capacity), -1, dtype=torch.int32)
        token, log_prob = parent.clone(), torch.full((len(slots), capacity), -torch.inf)
        first, count = torch.zeros(2, len(slots), dtype=torch.int32)
        for a, p in enumerate(slots):
            old, new = self.rows[p], []
            first[a] = self.random(4)
            num_new = self.random(self.width + 1) if old else 0
            count[a] = first[a] + num_new
            for j in range(int(first[a])):
                parent[a, j], token[a, j] = self.random(max(1, len(old))), EOS
            for j in range(int(first[a]), int(count[a])):
                parent[a, j] = source = self.random(len(old))
                path, is_ended = old[source]
                token[a, j] = EOS if is_ended or self.random(5) == 0 else 3 + self.random(90)
                log_prob[a, j] = -self.random(100) / 8
                went_on = int(token[a, j]) != EOS
                new.append(((*path, int(token[a, j])) if went_on else path, not went_on))
            self.rows[p] = new
        step = tree_survivors(token, parent, log_prob, count, first)
        return Survivors(*[value.to(self.device) for value in step])


def new_tree(
    backend: str, num_slots: int, width: int, length: int, device="cpu", has_paths=None
) -> TokenTree:
    """Make a tree with room; `has_paths` chooses the representation, whatever the width."""
    tree = TokenTree(backends.load(backend), torch.device(device))
    if has_paths is not None:
        tree.WIDEST_WITH_MASKS = 0 if has_paths else width
    tree.reserve(num_slots, width, length)
    tree.reserve_pages(num_slots * (width * length // PAGE_CELLS + 1))
    return tree


def places_seen(tree: TokenTree, p: int, entry: int) -> list[int]:
    """The places of the live list of slot p that an entry sees."""
    if tree.has_paths:
        path = tree.path[p, entry, : int(tree.path_length[p])].tolist()
        assert all(place >= 0 for place in path) or all(place < 0 for place in path)
        return [place for place in path if place >= 0]
    num_live, (word, bit) = int(tree.num_live[p]), divmod(entry, 64)
    return [u for u in range(num_live) if int(tree.live_mask[p, u, word]) >> bit & 1]
