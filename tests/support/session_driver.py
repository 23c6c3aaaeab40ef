"""Drive a session over a token tree as the engine does, but with beams that a test chooses."""

from collections.abc import Sequence

import torch

from pybeam import backends
from pybeam.backends.arrays import tree_survivors
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from support.invariants import check_tree

NO_EOS = -1  # in these tests EOS is a token like any other


class SessionDriver:
    """One session with its tree. `prefixes[slot]` are the tokens of every row, start included."""

    def __init__(self, model: Model, backend: str, num_slots=1, width=1, length=2) -> None:
        self.model = model
        self.backend = backends.load(backend)
        self.session = model.session(self.backend)
        self.tree = TokenTree(self.backend, model.device)
        self.prefixes: dict[int, list[list[int]]] = {}
        self.size = [0, 0, 0]
        self.reserve(num_slots, width, length)

    def reserve(self, num_slots: int, width: int, length: int) -> None:
        self.size = [
            max(old, new) for old, new in zip(self.size, (num_slots, width, length), strict=True)
        ]
        self.tree.reserve(*self.size)
        self.session.reserve(self.size[0], self.size[1], self.tree.num_cells)

    def _int(self, values) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.model.device)

    def open(self, sources: dict[int, object], indices: Sequence[int] | None = None) -> None:
        """Encode sources under these slots and start each with one row."""
        slots = list(sources)
        self.reserve(max(slots) + 1, 1, 1)
        checked = [self.model.check(source) for source in sources.values()]
        self.session.encode(checked, list(indices or range(len(slots))), slots)
        self.tree.reserve_pages(len(slots))
        self.tree.open(self._int(slots), self.model.start_id)
        for slot in slots:
            self.prefixes[slot] = [[self.model.start_id]]

    def step(self, slots: Sequence[int]) -> dict[int, torch.Tensor]:
        """Return the logits [rows, V] of every slot, on the CPU."""
        counts = [len(self.prefixes[slot]) for slot in slots]
        row_slot = [slot for slot, n in zip(slots, counts, strict=True) for _ in range(n)]
        bit = [b for n in counts for b in range(n)]
        prefixes = [prefix for slot in slots for prefix in self.prefixes[slot]]
        self.session.reserve(self.size[0], self.size[1], self.tree.num_cells)
        rows = Rows(
            tree=self.tree,
            slot=self._int(slots),
            offset=self._int([sum(counts[:a]) for a in range(len(counts) + 1)]),
            token=self._int([prefix[-1] for prefix in prefixes]),
            position=self._int([len(prefix) - 1 for prefix in prefixes]),
            row_slot=self._int(row_slot),
            entry=self._int(bit),
            node=self.tree.row_node[row_slot, bit],
            cell=self.tree.row_cell[row_slot, bit],
            longest=max(len(prefix) for prefix in prefixes),
            prefix_length=self._int([0] * self.size[0]),
            max_length=self._int([99] * self.size[0]),
            min_length=self._int([0] * self.size[0]),
            eos_ids=self.model.eos_ids,
        )
        logits = self.session.step(rows)
        assert logits.shape == (len(prefixes), self.model.vocab_size)
        return dict(zip(slots, logits.cpu().clone().split(counts), strict=True))

    def extend(self, survivors: dict[int, list[tuple[int, int]]]) -> None:
        """Give every slot the rows (parent row, token)."""
        slots = list(survivors)
        most = max(len(rows) for rows in survivors.values())
        longest = max(len(self.prefixes[slot][0]) for slot in slots) + 1
        self.reserve(1, most, longest)
        self.tree.reserve_pages(len(slots) * self.tree.pages_of(1))
        padded = [rows + [(-1, -1)] * (most - len(rows)) for rows in survivors.values()]
        self.tree.append(
            self._int(slots),
            tree_survivors(
                token=self._int([[token for _, token in rows] for rows in padded]),
                parent=self._int([[parent for parent, _ in rows] for rows in padded]),
                log_prob=torch.zeros(len(slots), most, device=self.model.device),
                count=self._int([len(rows) for rows in survivors.values()]),
            ),
            eos_id=NO_EOS,
        )
        check_tree(self.tree)
        width = self.size[1]
        moves = [
            (slot * width + parent, slot * width + entry)
            for slot, rows in survivors.items()
            for entry, (parent, _) in enumerate(rows)
        ]
        source, target = self._int([*moves, (-1, -1)]).unbind(1)
        self.session.advance(source.contiguous(), target.contiguous())
        for slot, rows in survivors.items():
            old = self.prefixes[slot]
            self.prefixes[slot] = [[*old[parent], token] for parent, token in rows]

    def close(self, slots: Sequence[int]) -> None:
        self.session.release(list(slots))
        self.tree.release(self._int(slots))
        for slot in slots:
            del self.prefixes[slot]


def straight_line(model: Model, backend: str, source, prefix: list[int], index: int = 0):
    """Return the logits [T, V] after every token of one hypothesis, decoded alone."""
    driver = SessionDriver(model, backend, length=len(prefix))
    driver.open({0: source}, [index])
    logits = [driver.step([0])[0]]
    for token in prefix[1:]:
        driver.extend({0: [(0, token)]})
        logits.append(driver.step([0])[0])
    return torch.cat(logits)
