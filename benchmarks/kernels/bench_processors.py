"""Processors beside those of transformers, on the same logits and hypotheses.

Ours read the hypotheses out of the token tree, which is part of the time; theirs find them ready in
a tensor, which is not. Ours overwrite their logits, so a copy of them is part of the time too.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, same, times
from pybeam import backends, processors
from pybeam.inspect.work import Work
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.rows import Rows
from pybeam.processors.chain import ProcessorChain

BANNED = [[17], [400, 5], [30, 31, 32]]
PENALTY, SIZE_OF_NGRAM = 1.2, 3
CHAINS = {
    "repetition": ("repetition",),
    "n-gram": ("n-gram",),
    "suppress": ("suppress",),
    "all three": ("repetition", "n-gram", "suppress"),
}
OURS = {
    "repetition": processors.repetition_penalty(PENALTY, counts_start=True),
    "n-gram": processors.no_repeat_ngram(SIZE_OF_NGRAM, counts_start=True),
    "suppress": processors.suppress_sequences(BANNED),
}


def theirs() -> dict[str, Callable]:
    import transformers as hf

    return {
        "repetition": hf.RepetitionPenaltyLogitsProcessor(PENALTY),
        "n-gram": hf.NoRepeatNGramLogitsProcessor(SIZE_OF_NGRAM),
        "suppress": hf.NoBadWordsLogitsProcessor(BANNED),
    }


class Chain(Kernel):
    """A chain of processors on logits of rows whose hypotheses are in a token tree."""

    label = "{}, V={}, {}x{}, T={}"

    @classmethod
    def isas(cls, dtype: str) -> tuple[str, ...]:
        # single numbers are changed, by the same code
        return ("generic",)

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        chain: str,
        vocab_size: int,
        num_beams: int,
        width: int,
        length: int,
    ) -> None:
        self._names, self._num_beams, self._width = CHAINS[chain], num_beams, width
        num_rows = num_beams * width
        size = (num_rows, length)
        self._history = torch.randint(3, 60, size, dtype=torch.int32, device=device)
        logits = 2 * torch.randn(num_rows, vocab_size, device=device)
        self.copies = [(logits,)]
        # the copy
        self.work = Work(2 * logits.nbytes, 0)
        self._chains: dict[str, tuple[ProcessorChain, Rows]] = {}

    def _chain(
        self, backend: backends.Backend, device: torch.device
    ) -> tuple[ProcessorChain, Rows]:
        """The chain of this backend, which is made once, and its rows."""
        if backend.__name__ not in self._chains:
            rows = rows_of(backend, self._num_beams, self._width, self._history)
            own = [OURS[name] for name in self._names]
            chain = ProcessorChain(own, device, backend)
            chain.reserve(*rows.tree.token.shape)
            chain.open(range(self._num_beams), [tuple(own)] * self._num_beams)
            self._chains[backend.__name__] = chain, rows
        return self._chains[backend.__name__]

    def edit(self, logits: Tensor) -> None:
        """The same in torch, in place."""
        known: dict[str, Any] = {
            "repetition": self._repetition,
            "n-gram": self._ngram,
            "suppress": self._suppress,
        }
        for name in self._names:
            known[name](logits)

    def _repetition(self, logits: Tensor) -> None:
        index = self._history.long()
        own = logits.gather(1, index)
        logits.scatter_(1, index, torch.where(own < 0, own * PENALTY, own / PENALTY))

    def _ngram(self, logits: Tensor) -> None:
        """Ban the last token of each n-gram that begins as the hypothesis ends."""
        grams = self._history.unfold(1, SIZE_OF_NGRAM, 1)  # [R, T - n + 1, n]
        end = self._history[:, None, -(SIZE_OF_NGRAM - 1) :]
        is_same = (grams[..., :-1] == end).all(2)
        token = grams[..., -1].long()
        logits.scatter_reduce_(1, token, torch.where(is_same, -torch.inf, torch.inf), "amin")

    def _suppress(self, logits: Tensor) -> None:
        for *before, token in BANNED:
            is_hit = torch.ones_like(self._history[:, 0], dtype=torch.bool)
            for i, one in enumerate(reversed(before)):
                is_hit &= self._history[:, -1 - i] == one
            logits[:, token].masked_fill_(is_hit, -torch.inf)


class Processors(Chain):
    op = "processors"
    cases = Cases(
        cpu=cases(
            ["float32"],
            [
                (chain, *sizes)
                for sizes in ((8000, 64, 5, 32), (32000, 64, 5, 32), (32000, 1, 5, 32))
                for chain in CHAINS
            ],
        ),
        cuda=cases(["float32"], [(chain, 42000, 64, 5, 32) for chain in CHAINS]),
        tiny=cases(["float32"], [(chain, 500, 2, 3, 8) for chain in CHAINS]),
    )

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        if kind == "cuda":
            # those of transformers read the hypotheses back, which no graph can
            return super().peers(kind, case)
        return ("transformers",) if find_spec("transformers") else ()

    def ours(self, backend: backends.Backend, logits: Tensor) -> Tensor:
        chain, rows = self._chain(backend, logits.device)
        vars(rows).pop("history", None)  # as in a new step
        return chain(logits.clone(), rows)

    def in_torch(self, logits: Tensor) -> Tensor:
        edited = logits.clone()
        self.edit(edited)
        return edited

    def peer(self, name: str) -> Callable[..., object]:
        if name != "transformers":
            return super().peer(name)
        from transformers import LogitsProcessorList

        known = theirs()
        process = LogitsProcessorList([known[name] for name in self._names])
        ids = self._history.long()
        same(process(ids, self.copies[0][0]), self.result("reference")[0], 1e-6)
        return lambda logits: process(ids, logits)


def rows_of(backend: backends.Backend, num_beams: int, width: int, history: Tensor) -> Rows:
    """Rows with that history [R, T], in a token tree with twice the room."""
    num_rows, length = history.shape
    device = history.device
    tree = TokenTree(backend, device)
    tree.reserve(num_beams, width, 2 * length)
    # a hypothesis of its own for every row, one after another
    tree.token[:, : width * length] = history.view(num_beams, -1)
    parent = torch.arange(-1, width * length - 1, dtype=torch.int32, device=device)
    parent[::length] = -1
    tree.parent[:, : width * length] = parent
    entry = torch.arange(num_rows, dtype=torch.int32, device=device) % width
    slot = torch.arange(num_beams, dtype=torch.int32, device=device)
    return Rows(
        tree=tree,
        slot=slot,
        offset=torch.arange(0, num_rows + 1, width, dtype=torch.int32, device=device),
        token=history[:, -1].contiguous(),
        position=torch.full_like(entry, length - 1),
        row_slot=slot.repeat_interleave(width),
        entry=entry,
        node=(entry + 1) * length - 1,
        cell=entry,
        longest=length,
        prefix_length=torch.zeros_like(slot),
        max_length=torch.full_like(slot, 256),
        min_length=torch.zeros_like(slot),
        eos_ids=(2,),
    )


bench_processors = times(Processors)
