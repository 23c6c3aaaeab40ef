"""The log-probabilities of the tokens that a catalogue allows, beside a mask over the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.gpu.forecast import Work
from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends.torch_automata import CatalogueArrays
from pybeam.contracts import ColumnRules, Normalise

EOS = 2


class CatalogueColumns(Kernel):
    """Rows at nodes of a tree in which each of so many nodes has so many children."""

    op = "automaton_columns"
    label = "{} rows, V={}, {} nodes of {}"
    cases = Cases(
        cpu=cases(["float32"], [(50, 8000, 1000, 64), (5, 32000, 1000, 512)]),
        cuda=cases(["float32"], [(320, 8000, 1000, 64), (512, 32000, 1000, 512)]),
        tiny=[Case("float32", (3, 50, 4, 8))],
    )
    tolerance = 1e-5

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_rows: int,
        vocab_size: int,
        num_nodes: int,
        num_children: int,
    ) -> None:
        num_edges = num_nodes * num_children
        steps = torch.arange(num_children, dtype=torch.int32, device=device)
        token = (3 + steps * ((vocab_size - 3) // num_children)).repeat(num_nodes)
        first = torch.arange(0, num_edges + 1, num_children, dtype=torch.int32, device=device)
        words = torch.full((1, 2 * (num_edges // 32 + 1)), -1, dtype=torch.int32, device=device)
        arrays = CatalogueArrays(token, first, words)
        node = torch.arange(num_rows, dtype=torch.int32, device=device) % num_nodes
        line = torch.zeros_like(node)
        rules = ColumnRules(EOS, False, num_children, int(Normalise.VOCABULARY))
        # a row is read for its norm
        self.work = Work(4 * num_rows * (vocab_size + num_children + 1), 0)
        self.copies = [
            (logits, arrays, node, line, rules)
            for logits in (
                torch.randn(num_rows, vocab_size, device=device)
                for _ in range(num_copies(device, self.work.num_bytes))
            )
        ]
        allowed = torch.cat((token.view(num_nodes, -1)[0].long(), torch.tensor([EOS]).to(device)))
        self._ban = torch.full((vocab_size,), float("-inf"), device=device)
        self._ban[allowed] = 0

    def ours(self, backend: backends.Backend, logits: Tensor, arrays, node, line, rules) -> Tensor:
        return backend.automaton_columns(arrays, logits, node, line, rules)

    def in_torch(self, logits: Tensor, *_: object) -> Tensor:
        return torch.log_softmax(logits, 1) + self._ban


bench_automaton_columns = times(CatalogueColumns)
