"""What Triton makes of the kernels of a decoding step, for an sm_90 GPU that is not there.

    python -m benchmarks.gpu.triton_code [--only fixed_beam ...] [--first N]

Every Triton kernel that a step of an M2M100 with these algorithms launches is compiled, once for each machine
code: a row stands at the first case that needs it, and says of which types, constants and warps it is. Then
come what weights of 8 and 4 bits add to `fixed_beam`, wide beams, an output layer that leaves peaks, and a
Qwen3. A spill is an access to local memory (LDL, STL), around calls, too.
The table goes to triton-code.json, in $OUT if that is set, else in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, product
from pathlib import Path

import torch

import pybeam
from benchmarks.gpu.count_kernels import META, ready_step
from benchmarks.gpu.launches import ALGORITHMS, SOURCES, model_of
from benchmarks.journal import Journal, results_folder
from pybeam.models.base import Model
from pybeam.triton_kernels.peaked_product import peaked_product
from tests.support import aot
from tests.support.causal_models import save_tiny_causal

CAPABILITY = 90
IDENTITY = ("case", "kernel", "variant")
# the step of docs/why/gpu-limits.md comes first, with all of its kernels
ORDER = ("fixed_beam", *(name for name in ALGORITHMS if name != "fixed_beam"))
# layers behind the second launch the same kernels
NUM_LAYERS = 2
# a decoder alone, of the width of the other network
CAUSAL = dict(
    hidden_size=256,
    intermediate_size=1024,
    num_hidden_layers=NUM_LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=128,
    vocab_size=8000,
)


DTYPES_OF_FEW_BITS = ("float8_e4m3fn", "int8", "int4")
# a beam of more than 128 rows finds its nodes by paths
WIDTH, MANY = 5, 200

# the launches of a step of so many sources
Recorder = Callable[[int], list[aot.Launch]]


def step_launches(model: Model, name: str, num_sources: int) -> list[aot.Launch]:
    """Return the launches of Triton kernels in a step of an algorithm; `model` has no memory."""
    return launches_of(model, ALGORITHMS[name], num_sources)


def launches_of(model: Model, algorithm: pybeam.Algorithm, num_sources: int) -> list[aot.Launch]:
    """Return those of any algorithm that has a `max_length`."""
    with ready_step(model, algorithm, pybeam.Fifo(num_sources), num_sources) as step:
        return aot.recorded(step)


def peaked_launches(model: Model, num_sources: int) -> list[aot.Launch]:
    """Return that of an output layer that leaves peaks, for beams of `WIDTH`."""
    weight = model.output.weight
    states = weight.new_empty(WIDTH * num_sources, weight.shape[1])
    with torch.inference_mode():
        return aot.recorded(lambda: peaked_product(states, weight, model.output.bias))


def other_steps(model: Model, folder: Path) -> Iterator[tuple[str, Recorder]]:
    """Yield steps that launch other kernels than those of `model` in bfloat16, with their names."""
    narrow, wide = (pybeam.fixed_beam(width, max_length=60) for width in (WIDTH, MANY))
    for dtype in DTYPES_OF_FEW_BITS:
        other = model_of(NUM_LAYERS, folder / dtype, dtype)
        yield f"{dtype}, fixed_beam", partial(launches_of, other, narrow)
    yield f"{MANY} rows, fixed_beam", partial(launches_of, model, wide)
    yield "peaks, fixed_beam", partial(peaked_launches, model)
    save_tiny_causal(folder / "qwen3", "qwen3", **CAUSAL)
    causal = pybeam.load_model(folder / "qwen3", device=META, dtype="bfloat16")
    yield "Qwen3, fixed_beam", partial(launches_of, causal, narrow)


def variants(
    model: Model, names: Iterable[str], others: Iterable[tuple[str, Recorder]] = ()
) -> Iterator[tuple[dict, aot.Launch]]:
    """Yield every machine code that these steps need, and where it is needed first."""
    known = set()
    own = ((name, partial(step_launches, model, name)) for name in names)
    for (said, recorder), num_sources in product([*own, *others], SOURCES):
        numbers = Counter[str]()
        for launch in aot.distinct(recorder(num_sources)):
            if launch.key not in known:
                known.add(launch.key)
                kernel = launch.kernel.__name__
                numbers[kernel] += 1
                case = f"{said}, {num_sources} sources"
                yield dict(case=case, kernel=kernel, variant=numbers[kernel]), launch


# options of every kernel
MARKED = {"launch_pdl", "enable_fp_fusion"}


def made_of(launch: aot.Launch) -> dict[str, str]:
    """Return what tells a machine code of a kernel from others: types, constants and options.

    A number or an array that is known to be a multiple of 16, the array in bytes, has "/16" behind its type.
    """
    bound, options = launch.bound
    arguments = [
        f"{name}={known}" if kind == "constexpr" else f"{name}: {kind}{'/16' * bool(known)}"
        for name, (kind, known) in zip(launch.kernel.arg_names, bound, strict=True)
    ]
    # the card decides whether a kernel begins early, and all are fused
    chosen = [f"{name}={it}" for name, it in options.items() if name not in MARKED]
    return {"arguments": ", ".join(arguments), "options": ", ".join(sorted(chosen))}


def measured(launch: aot.Launch) -> dict[str, int]:
    """Return the resources that a launch needs, and how long its code is."""
    assembly = aot.assemble(launch, CAPABILITY)
    return {
        "registers": assembly.registers,
        "stack bytes": assembly.stack,
        "spills": assembly.count(r"\b(LDL|STL)"),
        "shared bytes": assembly.shared,
        "instructions": len(assembly.code),
        "loads in a chain": assembly.chained_loads,
        "in the longest loop": max((len(loop.instructions) for loop in assembly.loops), default=0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=ORDER,
        default=ORDER,
        metavar="NAME",
        help=f"some of {', '.join(ORDER)}",
    )
    parser.add_argument("--first", type=int, metavar="N", help="so many kernels; default: all")
    options = parser.parse_args()
    journal = Journal(results_folder("cpu"), "triton-code", IDENTITY)
    is_whole = options.first is None and set(options.only) == set(ORDER)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = model_of(NUM_LAYERS, folder / "bfloat16")
        others = other_steps(model, folder) if is_whole else ()
        for row, launch in islice(variants(model, options.only, others), options.first):
            journal.add(row | made_of(launch) | measured(launch))
    own = journal.own_rows
    if is_whole:
        # no step needs the others any more
        journal.rows[:] = own
    journal.finish([{name: it for name, it in row.items() if name != "arguments"} for row in own])


if __name__ == "__main__":
    main()
