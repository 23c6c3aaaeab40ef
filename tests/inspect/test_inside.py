"""`pybeam profile --inside`: the kernels of a step and their work; nobody pays for it who did not ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import pybeam
from pybeam.cli import main
from pybeam.inspect import inside as inside_module
from pybeam.inspect.gpu_kernels import Kernel, Step, median_step, network_of
from pybeam.inspect.inside import (
    PHASES_OF_STEP,
    Inside,
    as_dict,
    as_text,
    kernels_in,
    kernels_of,
    measure_inside,
)
from pybeam.inspect.work import MACHINES, Network, StepRows, parts
from support.causal_models import save_tiny_causal
from support.paths import MODEL
from support.threads import every_thread_count
from support.tiny_models import save_tiny_model
from support.tiny_rnn import save_tiny_rnn

pytest.importorskip("pybeam.backends.native", exc_type=ImportError)

SOURCES = [[5, 6, 7], [7, 5], [6], [5, 5, 5, 5]]
WIDTH, STEPS = 3, 6
# what each kind of model has beside others
KINDS = {
    "encoder-decoder": (
        save_tiny_model,
        "m2m_100",
        {"attention to sources", "queries of sources", "inner layer", "logits", "norm"},
    ),
    "decoder-only": (
        save_tiny_causal,
        "qwen3",
        {"attention to hypotheses", "keys to cells", "gate", "logits", "norm"},
    ),
    "recurrent": (save_tiny_rnn, None, {"products", "lstm cell", "rows of states"}),
}


def model_of(kind: str, folder: Path) -> pybeam.Model:
    save, name, _ = KINDS[kind]
    save(folder, *([] if name is None else [name]))
    return pybeam.load_model(folder, device="cpu")


def decoder_of(model: pybeam.Model) -> pybeam.Decoder:
    algorithm = pybeam.fixed_beam(WIDTH, min_length=STEPS - 1, max_length=STEPS)
    return pybeam.Decoder(model, algorithm, pybeam.Batch(len(SOURCES)))


def found_by(decoder: pybeam.Decoder) -> list:
    return [
        [(list(one.tokens), one.score) for one in result.hypotheses]
        for result in decoder.decode(SOURCES)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_parts_of_a_step(kind, tmp_path, monkeypatch):
    # how fast this machine is takes seconds to find out
    monkeypatch.setattr(inside_module.limits, "seconds", lambda *_: 1e-9)
    decoder = decoder_of(model_of(kind, tmp_path))
    for _ in every_thread_count():
        inside = measure_inside(decoder, SOURCES, warmup=1, repeats=2)
        names = {kernel.name for kernel in inside.kernels}
        assert names >= {"read", "select", "commit", *KINDS[kind][2]}
        assert inside.steps == STEPS and inside.plain_us > 0
        assert all(kernel.us > 0 and kernel.calls >= 1 for kernel in inside.kernels)
        assert 0 < sum(kernel.us for kernel in inside.kernels) <= inside.step_us
        assert inside.rest_us >= 0
        by_name = {kernel.name: kernel for kernel in inside.kernels}
        assert by_name["read"].calls == by_name["commit"].calls == 1


@pytest.mark.parametrize("kind", KINDS)
def test_counters_change_no_bit_and_count_only_when_asked(kind, tmp_path):
    decoder = decoder_of(model_of(kind, tmp_path))
    count = torch.ops.pybeam.count_kernels
    plain = found_by(decoder)
    assert count(True) == ""
    counted = found_by(decoder)
    assert count(False) != ""
    assert plain == counted == found_by(decoder)
    assert count(False) == ""


def test_work_is_that_of_the_network(tmp_path):
    """Products of all rows, and weights once a step."""
    model = model_of("encoder-decoder", tmp_path)
    decoder = decoder_of(model)
    inside = measure_inside(decoder, SOURCES, warmup=0, repeats=1)
    config, rows = model.config, decoder.stats.expansions_per_step
    size, inner = config.hidden_size, config.decoder_inner_size
    sizes = {
        "logits": (1, size, config.vocab_size),
        "inner layer": (config.num_decoder_layers, size, inner),
        "output of inner": (config.num_decoder_layers, inner, size),
        "queries, keys, values": (config.num_decoder_layers, size, 3 * size),
    }
    by_name = {kernel.name: kernel for kernel in inside.kernels}
    for name, (calls, depth, columns) in sizes.items():
        kernel = by_name[name]
        assert kernel.calls == calls
        assert kernel.work.flop == pytest.approx(2 * calls * rows * depth * columns)
        # what is added to is read, too
        numbers = depth + (2 if name == "output of inner" else 1) * columns
        weights = kernel.work.num_bytes - 4 * calls * rows * numbers
        assert weights == pytest.approx(4 * calls * depth * columns)
    # each row has as many keys as the source has tokens, EOS included or not
    keys = by_name["attention to sources"].work.flop / (4 * rows * size * config.num_decoder_layers)
    lengths = [model.source_length(model.check(source)) for source in SOURCES]
    assert min(lengths) <= keys <= max(lengths)


def test_sources_that_guess_ahead_are_counted(tmp_path):
    model = model_of("encoder-decoder", tmp_path)
    decoder = pybeam.Decoder(model, pybeam.jacobi(min_length=STEPS - 1, max_length=STEPS))
    inside = measure_inside(decoder, SOURCES, warmup=0, repeats=1)
    by_name = {kernel.name: kernel for kernel in inside.kernels}
    assert by_name["commit"].calls == by_name["read"].calls == 1
    assert by_name["select"].us > 0 and inside.rest_us >= 0


def test_lines_become_kernels():
    lines = "3000 4 800 1600 logits\n1000 2 0 0 commit\n"
    logits, commit = kernels_of(lines, 2, "float32")
    assert (logits.name, logits.us, logits.calls) == ("logits", 1.5, 2)
    assert (logits.work.num_bytes, logits.work.flop) == (400, 800)
    assert logits.limit_us > 0 and commit.limit_us == 0
    inside = Inside(2, 4.0, 3.0, [logits, commit])
    assert inside.rest_us == 2.0
    numbers = as_dict(inside)
    assert [row["share"] for row in numbers["kernels"]] == [0.375, 0.125]
    run = dict(model="Model()", threads=2, sources=3, repeats=2)
    text = as_text({"run": run, "inside": numbers})
    assert "3 sources, 2 steps" in text and "Without counting a step takes 3.00 µs" in text
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["rest"] == ["rest", "2.00", "50.0", "%"]
    assert rows["commit"] == ["commit", "1", "0.50", "12.5", "%"]


def test_nothing_to_decode(tmp_path):
    with pytest.raises(ValueError, match="one that needs a step"):
        measure_inside(decoder_of(pybeam.load_model(MODEL)), [[]])
    assert torch.ops.pybeam.count_kernels(False) == ""


def test_command(capfd):
    small = ("--lines", "2", "--source-length", "4", "--steps", "3", "--repeats", "1")
    given = ["profile", "--model", str(MODEL), "--device", "cpu", *small, "--inside"]
    assert main([*given, "--json"]) == 0
    own = json.loads(capfd.readouterr().out)["inside"]
    assert own["steps"] == 3
    covered = sum(row["us"] for row in own["kernels"])
    assert covered + own["rest_us"] == pytest.approx(own["step_us"])
    assert main(given) == 0
    text = capfd.readouterr().out
    assert "attention to sources" in text and "of limit" in text and "rest" in text
    assert main([*given, "--trace", "t.json"]) == 2
    assert "--trace has no meaning with --inside" in capfd.readouterr().err


def test_phases_of_a_step_are_phases():
    assert set(PHASES_OF_STEP) < set(pybeam.engine.stats.PHASES)


def kernel_of(name: str, start: float, us: float, launch: int) -> list[dict]:
    """A kernel, and its launch, which comes one before it."""
    return [
        event_of("cudaGraphLaunch", "cuda_runtime", launch, 1, launch),
        event_of(name, "kernel", start, us, launch),
    ]


def event_of(name: str, kind: str, start: float, us: float, number: int) -> dict:
    return {"name": name, "cat": kind, "ts": start, "dur": us, "args": {"correlation": number}}


def phase_of(name: str, start: float, us: float) -> dict:
    return {"name": f"pybeam::{name}", "cat": "user_annotation", "ts": start, "dur": us, "args": {}}


def test_a_step_on_a_gpu_has_the_kernels_that_most_steps_have():
    events = [phase_of("encode", 0, 5), *kernel_of("encode_kernel", 1, 3, launch=1)]
    for start, factor in ((100, 1), (200, 3), (300, 2)):
        events += [
            phase_of("plan", start, 2),
            phase_of("replay", start + 2, 10),
            # they run while the host is elsewhere
            *kernel_of("b_kernel", start + 40, 2 * factor, launch=start + 3),
            *kernel_of("a_kernel", start + 20, 1 * factor, launch=start + 3),
            phase_of("report", start + 12, 60),
            event_of("copy", "gpu_memcpy", start + 50, 1, start + 13),
        ]
    # this step had one kernel alone
    events += [phase_of("replay", 400, 9), *kernel_of("a_kernel", 402, 1, launch=401)]
    step = median_step(events)
    assert step.kernels == [Kernel("a_kernel", 2), Kernel("b_kernel", 4)]
    assert step.us == 24
    with pytest.raises(ValueError, match="kernels of a step, but has none"):
        median_step(events[:3])


def test_kernels_on_a_gpu_have_the_work_of_their_parts():
    network, rows = Network(2, 64, 128, 500), StepRows(4, 5, 20, 30, 9)
    own = parts(network, rows, "bfloat16")
    of_role = {"product": "nvjet", "attention": "tree_attention_kernel", "norm": "add_norm_kernel"}
    names = [of_role.get(part.role, "select_kernel") for part in own]
    kernels = [Kernel("plan_kernel", 1.0), *[Kernel(name, 2.0) for name in names]]
    found = kernels_in(Step(kernels, 200.0), own, lambda work: 0.5)
    by_name = {kernel.name: kernel for kernel in found}
    assert found[0].name == "plan_kernel" and not found[0].work.num_bytes
    logits = by_name["logits (nvjet)"]
    assert (logits.calls, logits.us, logits.limit_us) == (1, 2.0, 0.5)
    assert logits.work.flop == 2 * 20 * 64 * 500
    assert by_name["inner layer (nvjet)"].work.num_bytes == 2 * 2 * 64 * 128
    assert sum(kernel.us for kernel in found) == sum(kernel.us for kernel in kernels)
    text = as_text(
        {
            "run": dict(model="Model()", threads=2, sources=3, repeats=2),
            "inside": as_dict(Inside(2, 200.0, 300.0, found, on_gpu=True)),
        }
    )
    assert "the time between kernels" in text and "takes 300.00 µs on the host's clock" in text


@pytest.mark.parametrize("selects", [True, False], ids=["and selects", "before a selection"])
def test_one_launch_has_the_work_of_all_layers(selects):
    own = parts(Network(2, 8, 16, 10), StepRows(1, 2, 2, 6, 4), "bfloat16")
    others = [] if selects else ["pybeam::cuda::select_kernel<int>"]
    names = ["read_kernel", "void pybeam::cuda::decoder_layers_kernel<1>(LayersParams)", *others]
    kernels = [Kernel(name, 2.0) for name in (*names, "commit_kernel")]
    found = kernels_in(Step(kernels, 200.0), own, lambda work: work.num_bytes)
    by_name = {kernel.name: kernel.work for kernel in found}
    layers = by_name["all layers (pybeam::cuda::decoder_layers_kernel)"]
    counted = [part for part in own if part.role != "norm" and (selects or part.role != "select")]
    assert layers.flop == sum(part.work.flop for part in counted) > 0
    assert layers.num_bytes == sum(part.work.num_bytes for part in counted)
    if not selects:
        assert (
            by_name["selection (pybeam::cuda::select_kernel)"].num_bytes == own[-1].work.num_bytes
        )
    assert by_name["read_kernel"].num_bytes == by_name["commit_kernel"].num_bytes == 0


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_of_a_network_are_those_of_its_weights(kind, tmp_path):
    """Counters of a CPU and sizes of a network, which a GPU's table takes, say the same of products."""
    model = model_of(kind, tmp_path)
    network = network_of(model.config, "float32")
    if kind == "recurrent":
        assert network is None
        return
    inside = measure_inside(decoder_of(model), SOURCES, warmup=0, repeats=1)
    counted = sum(
        kernel.work.flop
        for kernel in inside.kernels
        if any(word in kernel.name for word in ("queries", "output", "inner", "logits"))
    )
    decoder = decoder_of(model)
    decoder.decode(SOURCES)
    rows = decoder.stats.expansions_per_step
    assert counted == pytest.approx(2 * rows * network.num_weights)
    own = parts(network, StepRows(1, 1, rows, 1, 1), "float32")
    assert counted == pytest.approx(sum(one.work.flop for one in own if one.role == "product"))


class Recorded:
    """In place of a profiler: a decode whose steps have launched the kernels of a network of two layers."""

    def __init__(self, decoder: pybeam.Decoder, requests: list, on_gpu: bool) -> None:
        assert on_gpu
        decoder.decode(requests)
        own = parts(
            network_of(decoder.model.config, "float32"), StepRows(4, 3, 12, 9, 3), "float32"
        )
        of_role = {
            "product": "nvjet",
            "attention": "tree_attention_kernel",
            "norm": "add_norm_kernel",
        }
        self.events = [phase_of("replay", 0, 5)]
        for i, part in enumerate(own):
            name = of_role.get(part.role, "select_kernel")
            self.events += kernel_of(name, 10 + 3 * i, 2, launch=1)

    def export_chrome_trace(self, path: str) -> None:
        events = [{"ph": "X", **event} for event in self.events]
        Path(path).write_text(json.dumps({"traceEvents": events}))


def test_measured_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(inside_module, "recorded_decode", Recorded)
    monkeypatch.setattr(inside_module.gpu_kernels, "this_machine", lambda: MACHINES["H100"])
    model = model_of("encoder-decoder", tmp_path)
    found = inside_module._on_gpu(decoder_of(model), SOURCES, 1)
    by_name = {kernel.name: kernel for kernel in found.kernels}
    assert found.on_gpu and found.steps == STEPS and found.rest_us >= 0
    logits = by_name["logits (nvjet)"]
    assert logits.limit_us > 0 and logits.work.num_bytes
    config = model.config
    assert logits.work.flop == pytest.approx(
        2 * len(SOURCES) * WIDTH * config.hidden_size * config.vocab_size, rel=0.5
    )
