"""`pybeam info`: show what this installation can do."""

from __future__ import annotations

import json
import os
import platform

import click

PACKAGES = (
    *("numpy", "safetensors", "huggingface-hub", "sentencepiece", "tokenizers"),
    *("tqdm", "click", "pyyaml", "pydantic"),
    *("plotly", "matplotlib", "pandas", "sacrebleu", "jiwer", "kaldi-native-fbank"),
    *("onnx", "onnx-ir", "onnxruntime", "triton"),
    *("sentencex", "py3langid", "pyarrow", "zstandard", "transformers", "ctranslate2"),
    *("fastapi", "uvicorn", "websockets", "llguidance", "av", "silero-vad", "ray"),
    *("pybeam-search-client", "pybeam-search-examples"),
)
ON_ONE_LINE = {"packages": ", ", "devices": ", ", "settings": " "}
# environment variables that change what is computed, and how fast
SETTINGS = ("PYBEAM_", "OMP_", "GOMP_", "KMP_", "MKL_", "TRITON_", "CUDA_VISIBLE_DEVICES")


def backend_lines() -> list[str]:
    """Return one line per backend: its instruction set, or why it is missing."""
    from pybeam import backends

    lines = []
    for name in backends.NAMES:
        try:
            backends.load(name)
        except ValueError as error:
            lines.append(f"{name}: missing: {error.__cause__ or error}")
        else:
            lines.append(f"{name}: available{_more(name)}")
    return lines


def _more(backend: str) -> str:
    """Say what an available backend computes with, or lacks."""
    import torch

    from pybeam import backends
    from pybeam.backends import launchers

    if backend == "native":
        ops = torch.ops.pybeam
        return f" ({ops.isa()}, bfloat16 products: {ops.bfloat16_products()})"
    problem = launchers.problem()
    if backend == "triton" and problem and not backends.is_interpreting():
        return f", but it compiles launchers of kernels when they first run, and {problem}"
    return ""


def device_names() -> list[str]:
    """Name the CPU and every GPU that torch sees, with its memory."""
    import torch

    from pybeam.cli.machine import gigabytes

    gpus = range(torch.cuda.device_count())
    about = [torch.cuda.get_device_properties(i) for i in gpus]
    sized = [f"{one.name}, {gigabytes(one.total_memory)}" for one in about]
    return ["cpu", *(f"cuda:{i} ({one})" for i, one in enumerate(sized))]


@click.command(short_help="Print versions, devices, backends and the instruction set.")
@click.option("--json", "is_json", is_flag=True, help="Write one JSON object, for a bug report.")
def info(is_json: bool) -> None:
    """Print versions, devices, backends, the instruction set, and how pybeam was installed.

    Put its output into bug reports. Keys of servers are hidden, and the user's folder is written as `~`.

    The instruction set is the best of this CPU, or the one in the environment variable PYBEAM_ISA
    (generic, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx_int8; on ARM64 neon, neon_dotprod,
    neon_bf16). bfloat16 weights are multiplied as pairs where the CPU has an instruction for it that is
    faster, which is tried once per process, and else widened to float32; PYBEAM_BFLOAT16 (pairs, float32)
    chooses without a trial. The two differ in rounding only.

    \b
    Examples:
      pybeam info
      pybeam info --json > info.json    for a bug report
    """
    import torch

    import pybeam
    from pybeam.cli import machine

    lines = {
        "pybeam": [pybeam.__version__, machine.installed_from()],
        "python": [machine.python()],
        "system": [platform.platform()],
        "cpu": [machine.cpu()],
        "memory": machine.memory(),
        "torch": [f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}"],
        "packages": machine.versions(PACKAGES),
        "threads": [f"{torch.get_num_threads()} of torch, {os.cpu_count()} processors"],
        "devices": device_names(),
        "backends": backend_lines(),
        "openmp": machine.openmp(),  # now that the kernels are loaded
        "settings": machine.settings(*SETTINGS),
    }
    told = {
        heading: [machine.without_home(value) for value in values if value]
        for heading, values in lines.items()
    }
    if is_json:
        click.echo(json.dumps(told, indent=2))
        return
    for heading, mark in ON_ONE_LINE.items():
        told[heading] = [mark.join(told[heading])] if told[heading] else []
    for heading, values in told.items():
        for first, value in zip((heading, *[""] * len(values)), values or ["none"], strict=False):
            click.echo(f"{first:<9} {value}")
