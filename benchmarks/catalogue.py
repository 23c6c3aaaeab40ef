"""Searches of catalogues beside `generate` with `prefix_allowed_tokens_fn` over a trie.

Items are four tokens of 256 codes each, drawn at random, as semantic ids of generative retrieval are. The
network has random weights and the shape of TIGER's in the layout of BART: 4 + 4 layers of 128 columns with
inner layers of 1,024. One query of 80 tokens is searched at a time, all hypotheses of the beam are returned,
and no EOS follows an item. Both systems return the same items.

Memory is how far the resident memory of a process of its own rises while it builds the catalogue from an
array.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
import transformers

import pybeam
from benchmarks.memory import in_process
from benchmarks.meter import resident_bytes
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from pybeam import processors
from pybeam.contracts import MAX_WIDTH

DEPTH, CODES = 4, 256
PAD, START, EOS, FIRST = 1, 0, 2, 3
VOCAB_SIZE = FIRST + DEPTH * CODES
QUERY_TOKENS = 80
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
WIDTHS = (10, 64, 512)
# a trie of dictionaries of more items does not fit beside the rest
MOST_OF_DICTIONARIES = 1_000_000
GENERATE, OURS = "generate", "pybeam"
SHAPE = dict(
    d_model=128,
    encoder_layers=4,
    decoder_layers=4,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=1024,
    decoder_ffn_dim=1024,
    max_position_embeddings=128,
)
MEGA = 1e6


def items_of(num: int) -> np.ndarray:
    """Items [num, DEPTH], each different from the others."""
    rng = np.random.default_rng(0)
    codes = np.zeros(0, dtype=np.int64)
    while len(codes) < num:
        codes = np.unique(np.append(codes, rng.integers(0, CODES**DEPTH, num)))
    codes = rng.permutation(codes)[:num]
    places = np.arange(DEPTH)
    return (FIRST + places * CODES + codes[:, None] // CODES**places % CODES).astype(np.int32)


def trie_of(items: np.ndarray) -> dict:
    """The trie that users of `prefix_allowed_tokens_fn` build: a dictionary per node."""
    trie: dict = {}
    for item in items.tolist():
        node = trie
        for token in item:
            node = node.setdefault(token, {})
    return trie


def network() -> transformers.BartForConditionalGeneration:
    torch.manual_seed(0)
    ids = dict(
        vocab_size=VOCAB_SIZE,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=EOS,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
    )
    # so that probabilities differ as those of a trained network do
    config = transformers.BartConfig(**SHAPE, **ids, init_std=0.2)
    return transformers.BartForConditionalGeneration(config).eval()


def catalogue(setup: Setup) -> Iterator[list[Task]]:
    """One query over catalogues of 10^4 to 10^7 items, at several widths; memory of the catalogue."""
    sizes = (100,) if setup.is_tiny else SIZES
    model = cache(network)

    @cache
    def loaded() -> pybeam.Model:
        folder = setup.folder / "network"
        model().save_pretrained(folder)
        return pybeam.load_model(folder, device="cpu")

    for num in sizes:
        items = cache(lambda num=num: items_of(num))
        trie = cache(lambda items=items: trie_of(items()))
        built = cache(lambda items=items: timed_build(items()))
        for width in (3,) if setup.is_tiny else WIDTHS:
            if width > MAX_WIDTH:
                continue
            makers: dict[str, Callable] = {}
            if num <= MOST_OF_DICTIONARIES:
                makers[GENERATE] = lambda k=width, trie=trie: Generating(model(), trie(), k)
            makers[OURS] = lambda k=width, built=built: Searching(loaded(), *built(), k)
            yield in_turn(f"{num:,} items, k = {width}", makers, repeats=5)
        yield [
            Task(f"{num:,} items, memory", name, lambda name=name, num=num: memory(name, num), 1)
            for name in (GENERATE, OURS)
            if name == OURS or num <= MOST_OF_DICTIONARIES
        ]


def timed_build(items: np.ndarray) -> tuple[pybeam.Catalogue, float]:
    start = time.perf_counter()
    return pybeam.Catalogue.build(items), time.perf_counter() - start


def query() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(FIRST, VOCAB_SIZE, (QUERY_TOKENS,), generator=generator)


class Generating:
    """`generate` with a trie of dictionaries."""

    def __init__(self, model, trie: dict, width: int) -> None:
        self._model, self._trie, self._width = model, trie, width

    def _allowed(self, _: int, tokens: torch.Tensor) -> list[int]:
        node = self._trie
        for token in tokens.tolist()[1:]:
            node = node.get(token, {})
        return list(node) or [EOS]

    @torch.inference_mode()
    def __call__(self) -> list[list[int]]:
        out = self._model.generate(
            query()[None],
            num_beams=self._width,
            num_return_sequences=self._width,
            max_new_tokens=DEPTH,
            do_sample=False,
            prefix_allowed_tokens_fn=self._allowed,
        )
        return [line[1 : DEPTH + 1] for line in out.tolist()]


class Searching:
    """Our search of the same items."""

    def __init__(self, model, built: pybeam.Catalogue, build_seconds: float, width: int) -> None:
        self._build_seconds, self._catalogue = build_seconds, built
        search = pybeam.fixed_beam(
            width, n_best=width, max_length=DEPTH, processors=[processors.allowed_items(built)]
        )
        self._decoder = pybeam.Decoder(model, search)

    def __call__(self) -> list[list[int]]:
        [result] = self._decoder.decode([query().tolist()])
        return [hypothesis.tokens for hypothesis in result.hypotheses]

    def columns(self, timed: Timed) -> dict:
        return {
            "ms per step": 1000 * timed.seconds / DEPTH,
            "build s": self._build_seconds,
            "catalogue MB": self._catalogue.num_bytes / MEGA,
        }


def memory(system: str, num: int) -> dict:
    return {"MB": in_process("benchmarks.catalogue", [system, num]) / MEGA}


def main() -> None:
    system, num = json.loads(sys.argv[1])
    items = items_of(num)
    before = resident_bytes()
    kept = trie_of(items) if system == GENERATE else pybeam.Catalogue.build(items)
    print(resident_bytes() - before)
    del kept


if __name__ == "__main__":
    main()
