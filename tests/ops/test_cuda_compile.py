"""Every CUDA source compiles for the GPUs it is meant for, into code that keeps to registers."""

from __future__ import annotations

import re
import shutil
from types import SimpleNamespace

import pytest

from support import cuda_code

# nvcc takes many seconds; that a C++ compiler takes the kernels is in test_cuda_on_cpu.py
pytestmark = pytest.mark.slow

TARGETS = [
    pytest.param((source, architecture), id=f"{source.stem}-sm_{architecture}")
    for source in cuda_code.SOURCES
    for architecture in cuda_code.ARCHITECTURES
]


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request, tmp_path_factory) -> SimpleNamespace:
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    source, architecture = request.param
    cubin = tmp_path_factory.mktemp("cuda") / f"{source.stem}.cubin"
    kernels = cuda_code.compile_for(source, architecture, cubin)
    early = architecture.startswith("9")
    return SimpleNamespace(
        source=source,
        architecture=architecture,
        kernels=kernels,
        cubin=cubin,
        can_begin_early=early,
    )


@pytest.mark.parametrize("source", cuda_code.SOURCES, ids=lambda source: source.stem)
def test_an_extension_has_it(source, tmp_path):
    """The host's compiler sees each source, too, and one object has the code of all architectures."""
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    cuda_code.compile_whole(source, tmp_path / "whole.o")


@pytest.fixture(scope="module")
def code(compiled) -> dict[str, list[tuple[int, str]]]:
    if cuda_code.disassembler() is None:
        pytest.skip("there is no cuobjdump, neither of the CUDA toolkit nor of Triton")
    return cuda_code.machine_code(compiled.cubin)


# blocks of 256 threads that a multiprocessor holds at once
BLOCKS = {"select": 4, "select_peaked": 4, "decoder_layers": 1}
# a warp takes registers in parts of 256, and a block a kilobyte of shared memory beside its own
WARPS, REGISTER_PART, BLOCK_BYTES = 8, 256, 1 << 10
# of a multiprocessor
REGISTERS, SHARED_BYTES = 1 << 16, {"80": 164 << 10, "90a": 228 << 10}
# that a plan may have: see `test_a_plan_fits_a_multiprocessor`
PLANNED_BYTES = {"decoder_layers-90a": 227 << 10}


def test_kernels_keep_to_registers(compiled):
    assert compiled.kernels
    for kernel in compiled.kernels:
        assert kernel.spills == 0 and kernel.stack == 0, kernel


def test_a_multiprocessor_holds_the_blocks(compiled):
    """Blocks of `select` hide each other's loads, and all blocks of a step in one launch must run at once."""
    stem, architecture = compiled.source.stem, compiled.architecture
    planned = PLANNED_BYTES.get(f"{stem}-{architecture}", 0)
    for kernel in compiled.kernels:
        registers = -(-kernel.registers * 32 // REGISTER_PART) * REGISTER_PART * WARPS
        shared = kernel.shared + planned + BLOCK_BYTES
        blocks = min(REGISTERS // registers, SHARED_BYTES[architecture] // shared)
        assert blocks >= BLOCKS[stem], (kernel, blocks)


def test_no_local_memory(code):
    for name, instructions in code.items():
        local = [text for _, text in instructions if re.search(r"\b(LDL|STL)\b", text)]
        assert not local, (name, local[:3])


def test_select_stays_within_the_budget(compiled, code):
    if compiled.source.stem != "select":
        pytest.skip("select alone has a budget")
    for kernel in compiled.kernels:
        logits, vectors = cuda_code.select_variant(kernel.name)
        loads = [text for _, text in code[kernel.name] if re.search(r"LDG\.E\S*\.128", text)]
        assert len(loads) >= vectors, (kernel.name, loads)
        if vectors == 8:
            counted = cuda_code.instructions_per_logit(kernel.name, code[kernel.name])
            assert counted <= cuda_code.BUDGET[logits], (kernel.name, counted)


def test_kernels_wait_before_they_touch_memory(compiled, code):
    """Kernels for an sm_90 may begin before the one before has ended; blocks that stay begin together."""
    if compiled.source.stem == "decoder_layers":
        pytest.skip("it begins when all its blocks can")
    for name, instructions in code.items():
        texts = [text for _, text in instructions]
        events = [
            event
            for text in texts
            for event in re.findall(r"\b(PREEXIT|ACQBULK|LDG|STG|ATOMG|REDG|LD|ST)\b", text)
        ]
        waits = [event for event in events if event in ("PREEXIT", "ACQBULK")]
        if compiled.can_begin_early:
            assert events[:2] == waits == ["PREEXIT", "ACQBULK"], name
        else:
            assert not waits, name
