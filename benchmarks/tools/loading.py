"""How long a large folder takes from `load_model` to the first token, and how much memory.

python -m benchmarks.tools.loading            write results/loading-cpu.json
python -m benchmarks.tools.loading --keep DIR the same, with folders that stay in DIR for the next run

The folders have the shape of NLLB-600M and random weights, 2.4 GB in float32 and 1.2 GB in bfloat16. Each
repeat is a process of its own, in which the example model was loaded first, so that imports do not count; the
file's pages are warm. `load_s` and `cpu_s` are seconds of a clock and of processors until `load_model`
returns, `first_token_s` those until a greedy search has its first token, `memory` is the most that the
process occupied at once, beyond what it did before, over the bytes of the file. `load` is that of the machine
when a repeat began.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers

import pybeam
from benchmarks.corpus import MODEL
from benchmarks.journal import Journal, results_folder
from pybeam.models.tensor_files import TensorWriter

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHAPE = dict(
    vocab_size=256_206, d_model=1024, max_position_embeddings=1024, decoder_start_token_id=2,
    encoder_layers=12, encoder_ffn_dim=4096, encoder_attention_heads=16,
    decoder_layers=12, decoder_ffn_dim=4096, decoder_attention_heads=16,
)  # fmt: skip
# whose names the weights of a file do not have
COMPUTED = ("embed_tokens.weight", "lm_head.weight", "embed_positions.weights")
BLOCK = 1 << 22
WEIGHTS = "model.safetensors"


def write_folder(folder: Path, dtype: torch.dtype) -> None:
    """Write a folder of random weights, a block of them again and again."""
    config = transformers.M2M100Config(**SHAPE, architectures=["M2M100ForConditionalGeneration"])
    with torch.device("meta"):
        network = transformers.M2M100ForConditionalGeneration(config)
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in network.state_dict().items()
        if not name.endswith(COMPUTED)
    }
    folder.mkdir(parents=True)
    writer = TensorWriter(folder / WEIGHTS, {name: (dtype, own) for name, own in shapes.items()})
    generator = torch.Generator().manual_seed(0)
    block = (torch.randn(BLOCK, generator=generator) * 0.02).to(dtype)
    for name, shape in shapes.items():
        if len(shape) == 1:
            is_scale = name.endswith("norm.weight")
            writer.write(name, torch.full(shape, float(is_scale), dtype=dtype))
            continue
        num = BLOCK // shape[1]
        for first in range(0, shape[0], num):
            rows = min(num, shape[0] - first)
            writer.write(name, block[: rows * shape[1]].view(rows, shape[1]), first)
    writer.close()
    config.save_pretrained(folder)


def status(field: str) -> int:
    """A number of bytes that the system says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def measured(folder: Path) -> dict[str, float]:
    """Load a folder once, in this process."""
    load = os.getloadavg()[0]
    first_token(pybeam.load_model(MODEL, device="cpu"))
    path = folder / WEIGHTS
    with open(path, "rb") as file:
        while file.read(BLOCK):
            pass
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before, begin, cpu = status("VmRSS:"), time.perf_counter(), time.process_time()
    model = pybeam.load_model(folder, device="cpu")
    load_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    memory = (status("VmHWM:") - before) / path.stat().st_size
    first_token(model)
    first_token_s = time.perf_counter() - begin
    return dict(load_s=load_s, cpu_s=cpu_s, first_token_s=first_token_s, memory=memory, load=load)


def first_token(model: pybeam.models.Model) -> None:
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=1))
    decoder.decode([[*range(10, 30), 2]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once is not None:
        print(json.dumps(measured(options.once)))
        return
    journal = Journal(results_folder("cpu"), "loading-cpu", ("stored",))
    with tempfile.TemporaryDirectory() as name:
        for stored, dtype in DTYPES.items():
            folder = (options.keep or Path(name)) / stored
            if not folder.exists():
                write_folder(folder, dtype)
            command = [sys.executable, "-m", "benchmarks.tools.loading", "--once", folder]
            runs = [
                json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                for _ in range(options.repeats)
            ]
            row = {key: round(float(np.median([one[key] for one in runs])), 2) for key in runs[0]}
            size = round((folder / WEIGHTS).stat().st_size / 1e9, 2)
            journal.add(
                {"stored": stored, "file_gb": size, "threads": torch.get_num_threads(), **row}
            )
    journal.finish(journal.own_rows)


if __name__ == "__main__":
    main()
