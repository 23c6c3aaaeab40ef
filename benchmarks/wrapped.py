"""Wrapped transformers models beside their own `generate`, and Whisper built in beside it wrapped.

The translation model is the example model, on real text; the others have random weights, on which the
time does not depend, and every hypothesis is as long as asked for. Both systems decode the same batch in
turn; `generate` is what `custom_generate=pybeam.generate` stands beside, with nothing else changed.
Peak memory is that of a process of its own per system: how far resident memory rises, while the batch is
decoded once, above what it is after loading, wrapping and two tokens of the first input.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
import transformers
from torch import Tensor

import pybeam
from benchmarks import corpus, peers
from benchmarks.memory import in_process
from benchmarks.meter import STATUS, resident_bytes
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from pybeam.models.huggingface import wrap

VOCAB_SIZE = 16000
PAD = 1
# 35 million parameters
SIZES = dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=8)
IDS = dict(vocab_size=VOCAB_SIZE, pad_token_id=PAD, bos_token_id=0, eos_token_id=2)
MEGA = 1e6
# of the translation
LINES = 48


@dataclass
class Job:
    """A network, a batch as `generate` takes it, and its options."""

    network: transformers.PreTrainedModel
    inputs: dict[str, Tensor]
    options: dict

    def search(self, **more):
        """`generate` with these inputs and options."""
        given = dict(self.inputs, **self.options, do_sample=False, **more)
        return transformers.GenerationMixin.generate(self.network, **given)


def translation(width: int, lines: int, data: Path | None) -> Job:
    sources = corpus.load(data, lines=lines).sources
    network = peers.transformers_model(corpus.MODEL)
    ids = [torch.tensor(source) for source in sources]
    return Job(network, padded(ids, left=False), dict(num_beams=width, max_new_tokens=128))


def _of_random(network, inputs: dict[str, Tensor], width: int, num_new: int) -> Job:
    options = dict(num_beams=width, max_new_tokens=num_new, min_new_tokens=num_new - 1)
    return Job(network.eval(), inputs, options)


def _random_ids(lengths: list[int], *, left: bool) -> dict[str, Tensor]:
    return padded([torch.randint(3, VOCAB_SIZE, (length,)) for length in lengths], left=left)


def prompts(width: int, lengths: list[int], num_new: int) -> Job:
    torch.manual_seed(0)
    heads = dict(num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=2048)
    config = transformers.LlamaConfig(**IDS, **SIZES, **heads)
    inputs = _random_ids(lengths, left=True)
    return _of_random(transformers.LlamaForCausalLM(config), inputs, width, num_new)


def speech(width: int, num: int, num_new: int) -> Job:
    """Whisper tiny in all its sizes, 30 seconds of noise each."""
    torch.manual_seed(0)
    sizes = dict(layers=4, attention_heads=6, ffn_dim=1536)
    config = transformers.WhisperConfig(
        d_model=384,
        **{f"{stack}_{name}": n for name, n in sizes.items() for stack in ("encoder", "decoder")},
        **IDS,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    network = transformers.WhisperForConditionalGeneration(config)
    inputs = dict(input_features=torch.randn(num, 80, 3000))
    return _of_random(network, inputs, width, num_new)


def relative(width: int, num: int, num_new: int) -> Job:
    """T5 small."""
    torch.manual_seed(0)
    network = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**IDS, decoder_start_token_id=0)
    )
    inputs = _random_ids([20 + 6 * i for i in range(num)], left=False)
    return _of_random(network, inputs, width, num_new)


def linear_biases(width: int, lengths: list[int], num_new: int) -> Job:
    """Bloom in the size of the Llama, which keeps dense caches."""
    torch.manual_seed(0)
    config = transformers.BloomConfig(**IDS, hidden_size=512, n_layer=8, n_head=8)
    inputs = _random_ids(lengths, left=True)
    return _of_random(transformers.BloomForCausalLM(config), inputs, width, num_new)


def _sized(lines: int, lengths: list[int], num_new: int) -> tuple[list[int], int]:
    """Lengths and new tokens of a batch as they are measured, or next to nothing if lines are few."""
    if lines >= LINES:
        return lengths, num_new
    return [max(2, length // 16) for length in lengths[:lines]], 4


def _counted(lines: int, num: int, num_new: int) -> tuple[int, int]:
    lengths, num_new = _sized(lines, [0] * num, num_new)
    return len(lengths), num_new


JOBS: dict[str, Callable[[int, Path | None], Job]] = {
    "translation, k = 5": lambda lines, data: translation(5, lines, data),
    "speech, k = 5": lambda lines, _: speech(5, *_counted(lines, 4, 32)),
    "relative positions, k = 5": lambda lines, _: relative(5, *_counted(lines, 8, 32)),
    "linear biases, dense, k = 5": lambda lines, _: linear_biases(
        5, *_sized(lines, [64, 50, 40, 30], 24)
    ),
    "prompts, k = 5": lambda lines, _: prompts(5, *_sized(lines, [256, 200, 170, 130], 32)),
    "prompts, k = 64": lambda lines, _: prompts(64, *_sized(lines, [128], 16)),
}
SYSTEMS = {"generate": {}, "pybeam": {"custom_generate": pybeam.generate}}


def padded(ids: list[Tensor], *, left: bool) -> dict[str, Tensor]:
    longest = max(map(len, ids))
    batch = torch.full((len(ids), longest), PAD)
    mask = torch.zeros_like(batch)
    for i, own in enumerate(ids):
        place = slice(longest - len(own), longest) if left else slice(len(own))
        batch[i, place], mask[i, place] = own, 1
    return dict(input_ids=batch, attention_mask=mask)


def huggingface(setup: Setup) -> Iterator[list[Task]]:
    """Wrapped transformers models beside their own `generate`: seconds, bytes of caches, peak memory."""
    for name, load in JOBS.items():
        job = cache(lambda load=load: load(setup.lines or LINES, setup.data))
        makers = {
            system: lambda name=name, system=system, job=job: Searching(name, system, job(), setup)
            for system in SYSTEMS
        }
        yield in_turn(name, makers)


class Searching:
    """One system on one job: what is timed."""

    def __init__(self, name: str, system: str, job: Job, setup: Setup) -> None:
        self._name, self._system, self._job, self._setup = name, system, job, setup
        if system == "pybeam":
            wrap(job.network)  # trying out is not searching

    @torch.inference_mode()
    def __call__(self) -> list[list[int]]:
        out = self._job.search(return_dict_in_generate=True, **SYSTEMS[self._system])
        if self._system == "generate":
            self._cache_bytes = cache_bytes(out.cache)
        return [[t for t in line if t != PAD] for line in out.sequences.tolist()]

    def columns(self, timed: Timed) -> dict:
        row: dict = {"cache MB": self._bytes and self._bytes / MEGA, "peak MB": self._peak / MEGA}
        if timed.baseline is not None:
            theirs = timed.baseline.run
            row["of the cache"] = self._bytes and self._bytes / theirs._bytes
            row["of the peak"] = self._peak / theirs._peak
        return row

    @cached_property
    def _bytes(self) -> int | None:
        return self._cache_bytes if self._system == "generate" else _own_bytes(self._job)

    @cached_property
    def _peak(self) -> int:
        """How far resident memory rises in a fresh process while this system decodes this job."""
        if self._setup.is_tiny and self._name != next(iter(JOBS)):
            # next to nothing: one process of each system
            return rise(self._job, self._system)
        lines, data = self._setup.lines or LINES, self._setup.data
        options = [self._name, self._system, lines, data and str(data), torch.get_num_threads()]
        return in_process("benchmarks.wrapped", options)


def cache_bytes(cache) -> int:
    """Bytes of keys and values in a cache that `generate` returns, at its end."""
    parts = [
        getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")
    ]
    layers = [layer for part in parts if part is not None for layer in part.layers] or cache.layers
    return sum(own.nbytes for layer in layers for own in (layer.keys, layer.values))


@torch.inference_mode()
def _own_bytes(job: Job) -> int | None:
    """Bytes of all pools after the same search, unused cells counted; None for dense caches, which go
    with their rows.
    """
    wrapped = type(wrap(job.network))
    sessions, make = [], wrapped.session

    def noted(model, backend):
        sessions.append(make(model, backend))
        return sessions[-1]

    wrapped.session = noted
    try:
        job.search(**SYSTEMS["pybeam"])
    finally:
        wrapped.session = make
    session = sessions[-1]
    prompts = getattr(session, "_prompts", None)
    pools = [getattr(session, name, None) for name in ("_own", "_cross")]
    pools = [pool for pool in (*pools, getattr(prompts, "pool", None)) if pool is not None]
    return sum(pool.num_cells * pool.cell_bytes for pool in pools) or None


@torch.inference_mode()
def rise(job: Job, system: str) -> int:
    """How far resident memory rises in this process, which must be fresh."""
    if system == "pybeam":
        wrap(job.network)
    first = {name: values[:1] for name, values in job.inputs.items()}
    Job(job.network, first, dict(num_beams=2, max_new_tokens=2)).search(**SYSTEMS[system])
    ctypes.CDLL(None).malloc_trim(0)
    # the peak is from now on
    STATUS.with_name("clear_refs").write_text("5")
    before = resident_bytes()
    job.search(**SYSTEMS[system])
    return resident_bytes("VmHWM") - before


def whisper(setup: Setup) -> Iterator[list[Task]]:
    """Whisper built in beside the same network wrapped: seconds of a batch, encoder included.

    Whisper tiny in all its sizes but a vocabulary of 16,000, random weights, four sources of 30 seconds
    of noise, 32 tokens each.
    """
    num, length = (1, 4) if setup.is_tiny else (4, 32)
    job = cache(lambda: speech(5, num, length))

    @cache
    def built_in():
        job().network.save_pretrained(setup.folder / "whisper")
        return pybeam.load_model(setup.folder / "whisper", device="cpu")

    def decoding(is_built_in: bool, width: int) -> Callable[[], list]:
        features = job().inputs["input_features"]  # [A, F, E]
        sources = list(features.transpose(1, 2) if is_built_in else features)
        model = built_in() if is_built_in else wrap(job().network)
        search = pybeam.fixed_beam(width, min_length=length - 1, max_length=length)
        decoder = pybeam.Decoder(model, search)
        return lambda: [result.hypotheses[0].tokens for result in decoder.decode(sources)]

    for width in (1, 5):
        ways = {"wrapped": False, "built in": True}
        yield in_turn(
            f"k = {width}",
            {
                name: lambda is_ours=is_ours, k=width: decoding(is_ours, k)
                for name, is_ours in ways.items()
            },
        )


def main() -> None:
    name, system, lines, data, threads = json.loads(sys.argv[1])
    torch.set_num_threads(threads)
    print(rise(JOBS[name](lines, data and Path(data)), system))


if __name__ == "__main__":
    main()
