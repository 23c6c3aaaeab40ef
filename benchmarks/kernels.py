"""Kernels on a CPU: `select` beside torch, processors beside transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from pybeam import processors as own
from pybeam.backends import load, resolve
from pybeam.contracts import MASK_WIDTH, Finishing, SelectOptions
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.rows import Rows
from pybeam.processors.chain import ProcessorChain

# turns, and calls in each
TURNS, CALLS = 3, 10
# vocabulary size, beams, width, max_candidates (None: no limit)
SELECT = [
    (8000, 1, 5, 5),
    (8000, 10, 5, 5),
    (58101, 1, 5, 5),
    (58101, 10, 5, 5),
    (256000, 1, 5, 5),
    (256000, 10, 5, 5),
    (8000, 1, 50, None),
    (8000, 16, 50, None),
    # wide beams, as over catalogues
    (1000, 1, 512, None),
    (1000, 1, 4096, None),
    (32000, 1, 512, None),
]
ISAS = ("generic", "avx2", "avx512")
# vocabulary size, beams, width, tokens of a hypothesis
PROCESSORS = [(8000, 64, 5, 32), (32000, 64, 5, 32), (32000, 1, 5, 32), (32000, 16, 50, 128)]
BANNED = [[17], [400, 5], [30, 31, 32]]


def select(setup: Setup) -> Iterator[list[Task]]:
    """`select` beside torch's log_softmax and topk, for every instruction set.

    torch computes less: it adds no scores, merges no beams and prunes nothing. For a wide beam it does add
    scores, and takes the best of all rows at once.
    """
    for vocab_size, num_beams, width, limit in SELECT[: 2 if setup.is_tiny else None]:
        for dtype in (torch.float32, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            case = f"V = {vocab_size}, {num_beams} x {width}, M = {limit}, {name}"
            torch.manual_seed(0)
            logits = (2 * torch.randn(num_beams * width, vocab_size)).to(dtype)
            top = _torch_flat_top if width > MASK_WIDTH else _torch_top
            makers = {"torch": lambda a=logits, k=limit or 2 * width, top=top: lambda: top(a, k)}
            for isa in _known_isas():
                makers[isa] = lambda isa=isa, given=(logits, num_beams, width, limit): _select_call(
                    isa, *given
                )
            yield _tasks(case, makers)


def _tasks(case: str, makers: dict[str, Callable[[], Callable[[], Tensor]]]) -> list[Task]:
    warm = {name: lambda make=make: Call(make()) for name, make in makers.items()}
    return in_turn(case, warm, TURNS, calls=CALLS)


class Call:
    """One call of a kernel: what is timed."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = torch.inference_mode()(call)
        for _ in range(2):
            self._call()

    def __call__(self) -> None:
        self._call()

    def columns(self, timed: Timed) -> dict:
        return {"us": round(1e6 * timed.seconds, 1)}


def _torch_top(logits: Tensor, k: int) -> object:
    return torch.log_softmax(logits, 1).topk(k)


def _torch_flat_top(logits: Tensor, k: int) -> object:
    score = torch.log_softmax(logits, 1) - torch.linspace(0, 1, len(logits))[:, None]
    return score.view(-1).topk(k)


def _known_isas() -> list[str]:
    """Those that this processor has."""
    found = []
    for isa in ISAS:
        try:
            load("native").set_isa(isa)
        except RuntimeError:
            continue
        found.append(isa)
    return found


def _select_call(
    isa: str, logits: Tensor, num_beams: int, width: int, limit: int | None
) -> Callable[[], object]:
    native = load("native")
    num_rows = num_beams * width
    score = -torch.rand(num_rows)
    offset = torch.arange(0, num_rows + 1, width, dtype=torch.int32)
    widths = torch.full((num_beams,), width, dtype=torch.int32)
    most = None if limit is None else torch.full_like(widths, limit)
    options = SelectOptions(2 * width, (2,), int(Finishing.REFILL), max_candidates=most)

    def call() -> object:
        native.set_isa(isa)
        return native.select(logits, score, offset, widths, options)

    return call


def processors(setup: Setup) -> Iterator[list[Task]]:
    """Processors beside those of transformers, on the same logits and hypotheses.

    Ours read the hypotheses out of the token tree, which is part of the time; theirs find them ready in
    a tensor, which is not. Ours overwrite their logits, so a copy of them is part of the time too.
    """
    for sizes in PROCESSORS[: 1 if setup.is_tiny else None]:
        for name, chain in _chains().items():
            case = "{}, V = {}, {} x {}, T = {}".format(name, *sizes)
            torch.manual_seed(0)
            yield _tasks(case, _processor_makers(sizes, chain))


def _chains() -> dict[str, tuple[list, list]]:
    """name -> (ours, theirs)"""
    import transformers as hf

    repetition = (
        own.repetition_penalty(1.2, counts_start=True),
        hf.RepetitionPenaltyLogitsProcessor(1.2),
    )
    ngram = (
        own.no_repeat_ngram(3, counts_start=True),
        hf.NoRepeatNGramLogitsProcessor(3),
    )
    suppress = own.suppress_sequences(BANNED), hf.NoBadWordsLogitsProcessor(BANNED)
    pairs = {"repetition": [repetition], "n-gram": [ngram], "suppress": [suppress]}
    pairs["all three"] = [repetition, ngram, suppress]
    return {name: tuple(map(list, zip(*chain, strict=True))) for name, chain in pairs.items()}


def _processor_makers(
    sizes: tuple[int, ...], chain: tuple[list, list]
) -> dict[str, Callable[[], Callable[[], Tensor]]]:
    """Both give the same, which is checked before they are timed."""
    from transformers import LogitsProcessorList

    vocab_size, num_beams, width, length = sizes
    ours, theirs = chain
    history = torch.randint(3, 60, (num_beams * width, length), dtype=torch.int32)
    logits = 2 * torch.randn(num_beams * width, vocab_size)
    ids, processor = history.long(), LogitsProcessorList(theirs)

    def reference() -> Tensor:
        return processor(ids, logits)

    def make() -> Callable[[], Tensor]:
        processing = ProcessorChain(ours, logits.device, resolve("auto", logits.device))
        rows = _rows_of(num_beams, width, history)
        processing.reserve(*rows.tree.token.shape)
        processing.open(range(num_beams), [tuple(ours)] * num_beams)

        def process() -> Tensor:
            vars(rows).pop("history", None)  # as in a new step
            return processing(logits.clone(), rows)

        torch.testing.assert_close(process(), reference())
        return process

    return {"transformers": lambda: reference, "pybeam": make}


def _rows_of(num_beams: int, width: int, history: Tensor) -> Rows:
    """Rows with that history [R, T], in a token tree with twice the room."""
    num_rows, length = history.shape
    tree = TokenTree(load("native"), history.device)
    tree.reserve(num_beams, width, 2 * length)
    # a hypothesis of its own for every row, one after another
    tree.token[:, : width * length] = history.view(num_beams, -1)
    parent = torch.arange(-1, width * length - 1, dtype=torch.int32)
    parent[::length] = -1
    tree.parent[:, : width * length] = parent
    entry = torch.arange(num_rows, dtype=torch.int32) % width
    slot = torch.arange(num_beams, dtype=torch.int32)
    return Rows(
        tree=tree,
        slot=slot,
        offset=torch.arange(0, num_rows + 1, width, dtype=torch.int32),
        token=history[:, -1].contiguous(),
        position=torch.full_like(entry, length - 1),
        row_slot=slot.repeat_interleave(width),
        entry=entry,
        node=(entry + 1) * length - 1,
        cell=entry,
        longest=length,
        prefix_length=torch.zeros_like(slot),
        max_length=torch.full_like(slot, 256),
        eos_ids=(2,),
    )
