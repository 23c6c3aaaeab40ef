"""Decoder-only models and T5 beside `generate` of transformers and CTranslate2.

The shapes are those of Qwen3-0.6B and T5 small. Weights are random, on which the time does not depend, and
every hypothesis is as long as asked for. All systems decode the same batch in turn; transformers pads it,
on the left where it holds prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

import pybeam
from benchmarks.decoders import IDS, QWEN
from benchmarks.setup import Setup
from benchmarks.tasks import Run, Task, in_turn
from benchmarks.wrapped import padded

TINY = dict(
    QWEN, vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2, head_dim=8
)
# lengths of prompts, width of the beam
CASES = {
    "prompts, k = 5": ([128, 256, 384, 512], 5),
    "one prompt, k = 64": ([512], 64),
}


def causal(setup: Setup) -> Iterator[list[Task]]:
    """Decoder-only models and T5 beside `generate` and CTranslate2: seconds of a batch, prompts included."""
    networks = Causal(setup)
    num_new = 4 if setup.is_tiny else 32
    for case, (lengths, width) in CASES.items():
        some = [length // 16 for length in lengths] if setup.is_tiny else lengths
        # prompts share no beginning, so that nothing is read once for several
        prompts = random_ids(some, networks.vocab_size)
        systems = {
            "transformers": lambda p=prompts, k=width: networks.generating(p, k, num_new),
            "pybeam": lambda p=prompts, k=width: networks.decoding("float32", p, k, num_new),
        }
        if width == 5:
            systems |= {
                f"{name} {dtype}": lambda make=make, d=dtype, p=prompts, k=width: make(
                    d, p, k, num_new
                )
                for dtype in ("float32", "int8")
                for name, make in (
                    ("CTranslate2", networks.generating_ctranslate2),
                    ("pybeam", networks.decoding),
                )
                if (name, dtype) != ("pybeam", "float32")
            }
        yield in_turn(case, systems)
    yield in_turn("T5 small, k = 5", T5(setup).systems(5, num_new))


def random_ids(lengths: Sequence[int], vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths
    ]


class Causal:
    """One network with random weights, for every system; each is made when it is first asked for."""

    def __init__(self, setup: Setup, sizes: Mapping[str, Any] = QWEN) -> None:
        self._setup, self._sizes = setup, TINY if setup.is_tiny else {**QWEN, **sizes}
        self.vocab_size: int = self._sizes["vocab_size"]

    @cached_property
    def _network(self) -> transformers.PreTrainedModel:
        torch.manual_seed(0)
        config = transformers.Qwen3Config(**self._sizes, **IDS)
        return transformers.Qwen3ForCausalLM(config).eval()

    @cached_property
    def directory(self) -> Path:
        directory = self._setup.folder / "causal"
        self._network.save_pretrained(directory)
        return directory

    def generating(self, prompts: list[list[int]], width: int, num_new: int) -> Run:
        batch = padded([torch.tensor(prompt) for prompt in prompts], left=True)
        return generating(self._network, batch, width, num_new, skips=batch["input_ids"].shape[1])

    def loaded(self, dtype: str) -> pybeam.Model:
        model = pybeam.load_model(self.directory, device="cpu", dtype=dtype)
        # what one turn has read must not be there in the next
        model.prefix_cache_bytes = 0
        return model

    def decoding(self, dtype: str, prompts: list[list[int]], width: int, num_new: int) -> Run:
        return decoding(self.loaded(dtype), prompts, width, num_new)

    def generating_ctranslate2(
        self, dtype: str, prompts: list[list[int]], width: int, num_new: int
    ) -> Run:
        """One prompt at a time, which is faster here than a batch, also where all are as long."""
        import ctranslate2

        generator = ctranslate2.Generator(
            str(self.converted_directory),
            device="cpu",
            intra_threads=self._setup.threads,
            compute_type=dtype,
        )
        named = [[f"<{token}>" for token in prompt] for prompt in prompts]

        def run() -> list[list[int]]:
            results = generator.generate_batch(
                named,
                beam_size=width,
                length_penalty=1.0,
                max_length=num_new,
                min_length=num_new - 1,
                include_prompt_in_result=False,
                max_batch_size=1,
            )
            return [result.sequences_ids[0][: num_new - 1] for result in results]

        return run

    @cached_property
    def converted_directory(self) -> Path:
        """That of CTranslate2's model, which its converter's own loader specifies."""
        from ctranslate2.converters.transformers import Qwen3Loader

        # the loader takes the layers out of the network
        network = transformers.Qwen3ForCausalLM.from_pretrained(self.directory)
        with torch.no_grad():
            spec = Qwen3Loader().get_model_spec(network)
        spec.register_vocabulary([f"<{i}>" for i in range(self.vocab_size)])
        spec.config.bos_token, spec.config.eos_token = "<0>", "<2>"
        spec.config.unk_token = "<1>"
        spec.config.layer_norm_epsilon = network.config.rms_norm_eps
        spec.validate()
        spec.optimize(quantization=None)
        directory = self._setup.folder / "causal-ctranslate2"
        directory.mkdir()
        spec.save(str(directory))
        return directory


class T5:
    """T5 small with random weights."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def systems(self, width: int, num_new: int) -> dict[str, Callable[[], Run]]:
        lengths = [4, 7] if self._setup.is_tiny else [20 + 6 * i for i in range(8)]
        sources = random_ids(lengths, 16000)

        @cache
        def network() -> transformers.PreTrainedModel:
            torch.manual_seed(0)
            config = transformers.T5Config(vocab_size=16000, decoder_start_token_id=0, **IDS)
            return transformers.T5ForConditionalGeneration(config).eval()

        def theirs() -> Run:
            batch = padded([torch.tensor(source) for source in sources], left=False)
            return generating(network(), batch, width, num_new, skips=1)

        def ours() -> Run:
            directory = self._setup.folder / "t5"
            network().save_pretrained(directory)
            return decoding(pybeam.load_model(directory, device="cpu"), sources, width, num_new)

        return {"transformers": theirs, "pybeam": ours}


def generating(
    network: transformers.PreTrainedModel, batch: dict, width: int, num_new: int, skips: int
) -> Run:
    """`generate` on a padded batch; outputs begin behind so many tokens."""

    @torch.inference_mode()
    def run() -> list[list[int]]:
        out = network.generate(
            **batch,
            num_beams=width,
            min_new_tokens=num_new - 1,
            max_new_tokens=num_new,
            do_sample=False,
        )
        return [line[skips : skips + num_new - 1] for line in out.tolist()]

    return run


def decoding(model: pybeam.Model, sources: list[list[int]], width: int, num_new: int) -> Run:
    """pybeam on the same sources."""
    search = pybeam.compat.huggingface.beam_search(
        width, min_new_tokens=num_new - 1, max_new_tokens=num_new
    )
    decoder = pybeam.Decoder(model, search, pybeam.Fifo(len(sources)))
    return lambda: [
        list(result.hypotheses[0].tokens)[: num_new - 1] for result in decoder.decode(sources)
    ]
