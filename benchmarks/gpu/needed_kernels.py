"""The Triton kernels that `make gpu-bench` and `make gpu-e2e` launch, recorded on tensors without memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import pybeam
from benchmarks import decoders
from benchmarks.gpu.count_kernels import META, many_multiprocessors
from benchmarks.gpu.forecast import PROMPT_TOKENS
from benchmarks.gpu.one_step import OneStep
from benchmarks.kernels.bench_step import ALGORITHMS, JACOBI, LONGEST, SOURCE_TOKENS, Step
from benchmarks.kernels.kernel import all_kernels
from pybeam.backends import triton as triton_backend
from pybeam.models.base import Model
from tests.support.aot import Launch, distinct, recording

# sizes of what is measured; layers that are alike launch the same kernels
NETWORKS = {
    "example": dict(
        d_model=256,
        decoder_ffn_dim=1024,
        vocab_size=8000,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    ),
    "widened": dict(
        d_model=1024,
        decoder_ffn_dim=4096,
        vocab_size=42000,
        encoder_attention_heads=16,
        decoder_attention_heads=16,
    ),
}
ONE_LAYER = dict(encoder_layers=1, decoder_layers=1, max_position_embeddings=128)
DTYPES = {"example": ("bfloat16", "float32"), "widened": ("bfloat16",)}
SHAPES = ((64, 5), (1, 5), (64, 50), (128, 5), (16, 5), (128, 1))
# sources that guess ahead, and their rows
GUESSING = ((64, 8),)
SEARCHES: dict[str, Callable[[int], pybeam.Algorithm]] = {
    **ALGORITHMS,
    "greedy": lambda width: pybeam.greedy(max_length=LONGEST),
}


def of_benchmarks(is_tiny: bool = False) -> None:
    """Make every call of the microbenchmarks but those of a whole step."""
    for kernel in all_kernels():
        if kernel is Step or kernel.cases.cuda is None:
            continue
        for case in kernel.cases.tiny if is_tiny else [*kernel.cases.cuda, *kernel.late]:
            inputs = kernel(META, case.dtype, *case.size)
            inputs.ours(triton_backend, *inputs.copies[0])


def of_steps(model: Model, shapes=SHAPES, searches=SEARCHES) -> None:
    """Open, step and close beams of all these searches and shapes."""
    for name, algorithm in searches.items():
        for num_beams, width in GUESSING if name == JACOBI else shapes:
            if (name == "greedy") != (width == 1):
                continue
            tokens = [[5] * SOURCE_TOKENS] * num_beams
            step = OneStep(model, algorithm(width), triton_backend, tokens, LONGEST)
            step()
            slots = list(range(1, 1 + num_beams))
            work = step.work
            work.state.finished(slots, [1] * num_beams, LONGEST, wants_log_probs=False)
            work.close(slots, num_beams)
            if name == "fixed_beam":
                # it plans in another way, and all else is the same
                streaming = pybeam.Streaming(num_beams)
                OneStep(
                    model, algorithm(width), triton_backend, tokens, LONGEST, schedule=streaming
                )()


def network(name: str, dtype: str, folder: Path) -> Model:
    """One layer of a network, without memory."""
    # it takes seconds to import
    from tests.support.tiny_models import save_tiny_model

    save_tiny_model(folder, "m2m_100", **{**ONE_LAYER, **NETWORKS[name]})
    return pybeam.load_model(folder, device=META, dtype=dtype)


def of_decoders() -> None:
    """Open and step beams of decoders alone, by one layer each."""
    for name in decoders.SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            decoders.save_random(name, Path(folder, name), num_hidden_layers=1)
            model = pybeam.load_model(Path(folder, name), device=META, dtype="bfloat16")
        for num_beams in (64, 1):
            tokens = [[5] * PROMPT_TOKENS] * num_beams
            OneStep(model, ALGORITHMS["fixed_beam"](5), triton_backend, tokens, LONGEST)()


def all_launches() -> list[Launch]:
    """One launch for each machine code that is needed."""
    launches: list[Launch] = []
    with recording(launches.append), torch.inference_mode(), many_multiprocessors():
        for name, dtypes in DTYPES.items():
            for dtype in dtypes:
                with tempfile.TemporaryDirectory() as folder:
                    of_steps(network(name, dtype, Path(folder)))
        of_decoders()
        of_benchmarks()
    return distinct(launches)
