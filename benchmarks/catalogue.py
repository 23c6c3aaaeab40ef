"""Searches of catalogues beside `generate` with `prefix_allowed_tokens_fn` over a trie.

Items are four tokens of 256 codes each, drawn at random, as semantic ids of generative retrieval are. The
networks have random weights: TIGER's shape in the layouts of BART and of T5, which is 4 + 4 layers of 128
columns with inner layers of 1,024, and the shape of Qwen3-0.6B with the codes behind its vocabulary. One
query is searched at a time, of 80 tokens for an encoder and of 128 for Qwen3. All hypotheses of the beam are
returned, and no EOS follows an item. Both systems return the same items.

Memory is how far the resident memory of a process of its own rises while it builds the catalogue from an
array.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
import transformers

import pybeam
from benchmarks.causal import TINY as TINY_QWEN
from benchmarks.decoders import QWEN
from benchmarks.memory import in_process
from benchmarks.meter import resident_bytes
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from pybeam.catalogue import allowed_items
from pybeam.models.transformer.causal import CausalTransformer

DEPTH, CODES = 4, 256
PAD, START, EOS, FIRST = 1, 0, 2, 3
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
WIDTHS = (10, 64, 512)
# a trie of dictionaries of more items does not fit beside the rest
MOST_OF_DICTIONARIES = 1_000_000
GENERATE, OURS = "generate", "pybeam"
BART = dict(
    d_model=128,
    encoder_layers=4,
    decoder_layers=4,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=1024,
    decoder_ffn_dim=1024,
    max_position_embeddings=128,
)
T5 = dict(d_model=128, d_kv=64, d_ff=1024, num_layers=4, num_decoder_layers=4, num_heads=6)
IDS = dict(pad_token_id=PAD, bos_token_id=START, eos_token_id=EOS)
MEGA = 1e6


def items_of(num: int, first: int = FIRST) -> np.ndarray:
    """Items [num, DEPTH] of tokens from `first` on, each different from the others."""
    rng = np.random.default_rng(0)
    codes = np.zeros(0, dtype=np.int64)
    while len(codes) < num:
        codes = np.unique(np.append(codes, rng.integers(0, CODES**DEPTH, num)))
    codes = rng.permutation(codes)[:num]
    places = np.arange(DEPTH)
    return (first + places * CODES + codes[:, None] // CODES**places % CODES).astype(np.int32)


def trie_of(items: np.ndarray) -> dict:
    """The trie that users of `prefix_allowed_tokens_fn` build: a dictionary per node."""
    trie: dict = {}
    for item in items.tolist():
        node = trie
        for token in item:
            node = node.setdefault(token, {})
    return trie


def bart(vocab_size: int) -> transformers.PreTrainedModel:
    """TIGER's sizes with learnt positions."""
    # so that probabilities differ as those of a trained network do
    own = dict(decoder_start_token_id=START, forced_eos_token_id=None, init_std=0.2)
    config = transformers.BartConfig(vocab_size=vocab_size, **BART, **IDS, **own)
    return transformers.BartForConditionalGeneration(config)


def t5(vocab_size: int) -> transformers.PreTrainedModel:
    """TIGER's sizes in the layout that it used."""
    config = transformers.T5Config(vocab_size=vocab_size, **T5, **IDS, decoder_start_token_id=START)
    return transformers.T5ForConditionalGeneration(config)


def qwen3(vocab_size: int) -> transformers.PreTrainedModel:
    """The sizes of Qwen3-0.6B, or next to nothing for a small vocabulary."""
    sizes = QWEN if vocab_size > QWEN["vocab_size"] else TINY_QWEN
    config = transformers.Qwen3Config(**{**sizes, **IDS, "vocab_size": vocab_size})
    return transformers.Qwen3ForCausalLM(config)


@dataclass(frozen=True)
class Shape:
    """A network, its query, and the catalogues that it searches."""

    name: str
    make: Callable[[int], transformers.PreTrainedModel]
    first: int  # the first token of a code
    query_tokens: int
    sizes: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        return self.first + DEPTH * CODES

    @property
    def query(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(FIRST, self.vocab_size, (self.query_tokens,), generator=generator)


SHAPES = (
    Shape("TIGER as BART", bart, FIRST, 80, SIZES, WIDTHS),
    Shape("TIGER as T5", t5, FIRST, 80, (100_000,), WIDTHS),
    Shape("Qwen3-0.6B", qwen3, QWEN["vocab_size"], 128, (10_000, 100_000, 10_000_000), WIDTHS),
)
TINY = (
    Shape("TIGER as BART", bart, FIRST, 8, (100,), (3,)),
    Shape("TIGER as T5", t5, FIRST, 8, (100,), (3,)),
    Shape("Qwen3-0.6B", qwen3, TINY_QWEN["vocab_size"], 8, (100,), (3,)),
)


class Network:
    """A network of this shape for both systems, made when it is first asked for."""

    def __init__(self, setup: Setup, shape: Shape) -> None:
        self._folder, self.shape = setup.folder / shape.name, shape

    @cached_property
    def theirs(self) -> transformers.PreTrainedModel:
        torch.manual_seed(0)
        return self.shape.make(self.shape.vocab_size).eval()

    @cached_property
    def ours(self) -> pybeam.Model:
        self.theirs.save_pretrained(self._folder)
        model = pybeam.load_model(self._folder, device="cpu")
        if isinstance(model, CausalTransformer):
            # each turn reads its query
            model.prefix_cache_bytes = 0
        return model


def catalogue(setup: Setup) -> Iterator[list[Task]]:
    """One query over catalogues of 10^4 to 10^7 items, at several widths; memory of the catalogue."""
    shapes = TINY if setup.is_tiny else SHAPES
    for shape in shapes:
        network = Network(setup, shape)
        for num in shape.sizes:
            items = cache(lambda num=num, shape=shape: items_of(num, shape.first))
            trie = cache(lambda items=items: trie_of(items()))
            built = cache(lambda items=items: timed_build(items()))
            for width in shape.widths:
                makers: dict[str, Callable] = {}
                if num <= MOST_OF_DICTIONARIES:
                    makers[GENERATE] = lambda k=width, trie=trie, n=network: Generating(
                        n, trie(), k
                    )
                makers[OURS] = lambda k=width, built=built, n=network: Searching(n, *built(), k)
                yield in_turn(f"{shape.name}, {num:,} items, k = {width}", makers, repeats=5)
    for num in shapes[0].sizes:
        yield [
            Task(f"{num:,} items, memory", name, lambda name=name, num=num: memory(name, num), 1)
            for name in (GENERATE, OURS)
            if name == OURS or num <= MOST_OF_DICTIONARIES
        ]


def timed_build(items: np.ndarray) -> tuple[pybeam.Catalogue, float]:
    start = time.perf_counter()
    return pybeam.Catalogue.build(items), time.perf_counter() - start


class Generating:
    """`generate` with a trie of dictionaries."""

    def __init__(self, network: Network, trie: dict, width: int) -> None:
        self._model, self._query = network.theirs, network.shape.query
        self._trie, self._width = trie, width
        # the start token of a decoder, or the query of a model that continues it
        self._skipped = 1 if self._model.config.is_encoder_decoder else len(self._query)

    def _allowed(self, _: int, tokens: torch.Tensor) -> list[int]:
        node = self._trie
        for token in tokens.tolist()[self._skipped :]:
            node = node.get(token, {})
        return list(node) or [EOS]

    @torch.inference_mode()
    def __call__(self) -> list[list[int]]:
        out = self._model.generate(
            self._query[None],
            attention_mask=torch.ones_like(self._query)[None],
            num_beams=self._width,
            num_return_sequences=self._width,
            max_new_tokens=DEPTH,
            do_sample=False,
            prefix_allowed_tokens_fn=self._allowed,
        )
        return [line[self._skipped :][:DEPTH] for line in out.tolist()]


class Searching:
    """Our search of the same items."""

    def __init__(
        self, network: Network, built: pybeam.Catalogue, build_seconds: float, width: int
    ) -> None:
        self._build_seconds, self._catalogue = build_seconds, built
        self._query = network.shape.query.tolist()
        search = pybeam.fixed_beam(
            width, n_best=width, max_length=DEPTH, processors=[allowed_items(built)]
        )
        self._decoder = pybeam.Decoder(network.ours, search)

    def __call__(self) -> list[list[int]]:
        [result] = self._decoder.decode([self._query])
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
