"""Wrapped transformers models beside their own `generate`: seconds, bytes of caches, peak memory.

python -m benchmarks.bench_huggingface [--only NAME …] [--repeats 3] [--threads 2]

The translation model is the example model, on real text; the others have random weights, of which the
time does not depend, and every hypothesis is as long as asked for. Both systems decode the same batch in
turn; `generate` is what `custom_generate=pybeam.generate` stands beside, with nothing else changed.
Peak memory is that of a process of its own per system: how far resident memory rises, while the batch is
decoded once, above what it is after loading, wrapping and two tokens of the first input.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor

import pybeam
from benchmarks import corpus, peers, report
from pybeam.models.huggingface import wrap

VOCAB_SIZE = 16000
PAD = 1
# 35 million parameters
SIZES = dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=8)
IDS = dict(vocab_size=VOCAB_SIZE, pad_token_id=PAD, bos_token_id=0, eos_token_id=2)


@dataclass
class Case:
    """A network, a batch as `generate` takes it, and its options."""

    network: transformers.PreTrainedModel
    inputs: dict[str, Tensor]
    options: dict


def translation(options: argparse.Namespace, width: int) -> Case:
    data = corpus.load(options.data, "dev", options.lines)
    network = peers.transformers_model(corpus.MODEL)
    ids = [torch.tensor(source) for source in data.sources]
    return Case(network, padded(ids, left=False), dict(num_beams=width, max_new_tokens=128))


def prompts(width: int, lengths: list[int], num_new: int) -> Case:
    torch.manual_seed(0)
    heads = dict(num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=2048)
    config = transformers.LlamaConfig(**IDS, **SIZES, **heads)
    ids = [torch.randint(3, VOCAB_SIZE, (length,)) for length in lengths]
    network = transformers.LlamaForCausalLM(config).eval()
    options = dict(num_beams=width, max_new_tokens=num_new, min_new_tokens=num_new - 1)
    return Case(network, padded(ids, left=True), options)


def speech(width: int, num: int, num_new: int) -> Case:
    """Whisper tiny in all its sizes, 30 seconds of noise each."""
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        **IDS,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    network = transformers.WhisperForConditionalGeneration(config).eval()
    options = dict(num_beams=width, max_new_tokens=num_new, min_new_tokens=num_new - 1)
    return Case(network, dict(input_features=torch.randn(num, 80, 3000)), options)


def relative(width: int, num: int, num_new: int) -> Case:
    """T5 small."""
    torch.manual_seed(0)
    config = transformers.T5Config(**IDS, decoder_start_token_id=0)
    network = transformers.T5ForConditionalGeneration(config).eval()
    ids = [torch.randint(3, VOCAB_SIZE, (20 + 6 * i,)) for i in range(num)]
    options = dict(num_beams=width, max_new_tokens=num_new, min_new_tokens=num_new - 1)
    return Case(network, padded(ids, left=False), options)


def linear_biases(width: int, lengths: list[int], num_new: int) -> Case:
    """Bloom in the size of the Llama, which keeps dense caches."""
    torch.manual_seed(0)
    config = transformers.BloomConfig(**IDS, hidden_size=512, n_layer=8, n_head=8)
    ids = [torch.randint(3, VOCAB_SIZE, (length,)) for length in lengths]
    network = transformers.BloomForCausalLM(config).eval()
    options = dict(num_beams=width, max_new_tokens=num_new, min_new_tokens=num_new - 1)
    return Case(network, padded(ids, left=True), options)


CASES: dict[str, Callable[[argparse.Namespace], Case]] = {
    "translation, k = 5": lambda options: translation(options, 5),
    "speech, k = 5": lambda options: speech(5, 4, 32),
    "relative positions, k = 5": lambda options: relative(5, 8, 32),
    "linear biases, dense, k = 5": lambda options: linear_biases(5, [64, 50, 40, 30], 24),
    "prompts, k = 5": lambda options: prompts(5, [256, 200, 170, 130], 32),
    "prompts, k = 64": lambda options: prompts(64, [128], 16),
}


def padded(ids: list[Tensor], *, left: bool) -> dict[str, Tensor]:
    longest = max(map(len, ids))
    batch = torch.full((len(ids), longest), PAD)
    mask = torch.zeros_like(batch)
    for i, own in enumerate(ids):
        place = slice(longest - len(own), longest) if left else slice(len(own))
        batch[i, place], mask[i, place] = own, 1
    return dict(input_ids=batch, attention_mask=mask)


def cache_bytes(cache) -> int:
    """Bytes of keys and values in a cache that `generate` returns, at its end."""
    parts = [
        getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")
    ]
    layers = [layer for part in parts if part is not None for layer in part.layers] or cache.layers
    return sum(own.nbytes for layer in layers for own in (layer.keys, layer.values))


def measure(case: Case, repeats: int) -> dict:
    generate, used = transformers.GenerationMixin.generate, {}
    common = dict(case.inputs, **case.options, do_sample=False, return_dict_in_generate=True)

    def theirs():
        out = generate(case.network, **common)
        used["generate"] = cache_bytes(out.past_key_values)
        return out.sequences

    def ours():
        return generate(case.network, **common, custom_generate=pybeam.generate).sequences

    wrap(case.network)  # trying out is not searching
    seconds, sequences = report.interleaved_medians({"generate": theirs, "pybeam": ours}, repeats)
    used["pybeam"] = _own_bytes(case)
    same = [
        a[a != PAD].tolist() == b[b != PAD].tolist()
        for a, b in zip(sequences["generate"], sequences["pybeam"], strict=True)
    ]
    return {
        "generate s": seconds["generate"],
        "pybeam s": seconds["pybeam"],
        "times faster": seconds["generate"] / seconds["pybeam"],
        "generate MB": used["generate"] / 1e6,
        "pybeam MB": used["pybeam"] and used["pybeam"] / 1e6,
        "of the cache": used["pybeam"] and used["pybeam"] / used["generate"],
        "same outputs": sum(same) / len(same),
    }


def peak_bytes(name: str, system: str, options: argparse.Namespace) -> int:
    """How far resident memory rises in a fresh process while this system decodes this case."""
    command = [sys.executable, "-m", "benchmarks.bench_huggingface", "--only", name]
    command += ["--peak", system, "--data", str(options.data), "--lines", str(options.lines)]
    command += ["--threads", str(options.threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1])


def rise(case: Case, system: str) -> int:
    """The same in this process, which must be fresh."""
    generate = transformers.GenerationMixin.generate
    common = dict(custom_generate=pybeam.generate) if system == "pybeam" else {}
    if system == "pybeam":
        wrap(case.network)
    first = {name: values[:1] for name, values in case.inputs.items()}
    generate(case.network, **first, num_beams=2, max_new_tokens=2, **common)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    before = _resident("VmRSS")
    generate(case.network, **case.inputs, **case.options, do_sample=False, **common)
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(name))
    return 1024 * int(line.split()[1])


def _own_bytes(case: Case) -> int | None:
    """Bytes of all pools after the same search, unused cells counted; None for dense caches, which go
    with their rows.
    """
    sessions = []
    make = pybeam.models.huggingface.model.HuggingFaceModel.session

    def session(model, backend):
        sessions.append(make(model, backend))
        return sessions[-1]

    pybeam.models.huggingface.model.HuggingFaceModel.session = session
    try:
        transformers.GenerationMixin.generate(
            case.network, **case.inputs, **case.options, custom_generate=pybeam.generate
        )
    finally:
        pybeam.models.huggingface.model.HuggingFaceModel.session = make
    return sum(buffer.nbytes for buffer in sessions[-1].buffers()) or None


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    path = options.output or report.RESULTS / "huggingface-cpu.json"
    cases = json.loads(path.read_text())["cases"] if path.exists() else {}
    settings = {
        name: value
        for name, value in vars(options).items()
        if name in ("lines", "only", "repeats", "threads")
    }
    for name in options.only or CASES:
        case = CASES[name](options)
        with torch.inference_mode():
            if options.peak:
                print(rise(case, options.peak))
                return
            row = measure(case, options.repeats)
        peaks = {system: peak_bytes(name, system, options) for system in ("generate", "pybeam")}
        row |= {f"{system} peak MB": peak / 1e6 for system, peak in peaks.items()}
        row["of the peak"] = peaks["pybeam"] / peaks["generate"]
        print(report.table([{"case": name, **row}]), flush=True)
        # cases that were not run stay
        cases[name] = {"settings": settings, "run": report.environment(), "row": row}
        report.write("huggingface-cpu", path, {"cases": cases})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=corpus.DATA, help="folder with dev.es and dev.en"
    )
    parser.add_argument("--lines", type=int, default=48, help="of the translation case")
    parser.add_argument("--only", nargs="+", choices=CASES, help="these cases only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--peak", choices=("generate", "pybeam"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
