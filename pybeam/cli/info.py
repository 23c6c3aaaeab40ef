"""`pybeam info`: show what this installation can do."""

from __future__ import annotations

import platform

import click


def backend_lines() -> list[str]:
    """Return one line per backend: its instruction set, or why it is missing."""
    from pybeam import backends

    lines = []
    for name in backends.NAMES:
        try:
            backends.load(name)
        except ValueError as error:
            lines.append(f"{name}: missing ({error.__cause__ or error})")
        else:
            lines.append(f"{name}: available{_native_kernels() if name == 'native' else ''}")
    return lines


def _native_kernels() -> str:
    import torch

    ops = torch.ops.pybeam
    return f" ({ops.isa()}, bfloat16 products: {ops.bfloat16_products()})"


def device_names() -> list[str]:
    """Name the CPU and every GPU that torch sees."""
    import torch

    gpus = range(torch.cuda.device_count())
    return ["cpu", *(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in gpus)]


@click.command(short_help="Print versions, devices, backends and the instruction set.")
def info() -> None:
    """Print versions, devices, backends and the instruction set.

    Put its output into bug reports.

    The instruction set is the best of this CPU, or the one in the environment variable PYBEAM_ISA
    (generic, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx_int8). bfloat16 weights are
    multiplied as pairs where the CPU has an instruction for it that is faster, which is tried once per
    process, and else widened to float32; PYBEAM_BFLOAT16 (pairs, float32) chooses without a trial. The
    two differ in rounding only.
    """
    import torch

    import pybeam

    click.echo(f"pybeam    {pybeam.__version__}")
    click.echo(f"python    {platform.python_version()}")
    click.echo(f"torch     {torch.__version__}")
    click.echo(f"threads   {torch.get_num_threads()}")
    click.echo(f"devices   {', '.join(device_names())}")
    for heading, line in zip(("backends", "", ""), backend_lines(), strict=True):
        click.echo(f"{heading:<9} {line}")
