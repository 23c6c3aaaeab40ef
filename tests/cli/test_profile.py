"""`pybeam profile`: the arithmetic on traces made by hand, and runs on real models."""

import json
from pathlib import Path

import pytest

import pybeam
from pybeam.cli import main
from pybeam.cli.profile import random_sources, read_lines
from pybeam.engine.stats import PHASES
from pybeam.inspect.profile import PhaseTime, Profile, as_dict, as_text, measure
from pybeam.inspect.trace import (
    OUTSIDE,
    Computation,
    Interval,
    break_down,
    covered,
    phase_at,
    read_trace,
    self_times,
)
from support.paths import MODEL
from support.tiny_models import save_tiny_model

LINES = ["Y dijo Dios: Sea la luz; y fué la luz.", "", "Jehová es mi pastor; nada me faltará."]
SMALL = ("--lines", "3", "--source-length", "2:9", "--steps", "4", "--repeats", "2")


def event(category: str, name: str, start: float, end: float, thread: int = 1, **args) -> dict:
    """One as a chrome trace has it."""
    times = {"ts": start, "dur": end - start}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "args": args,
        **times,
    }


def phase(name: str, start: float, end: float) -> dict:
    return event("user_annotation", f"pybeam::{name}", start, end)


def spans(*pairs: tuple[float, float], label: str = "x") -> list[Interval]:
    return [Interval(start, end, label) for start, end in pairs]


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], {}),
        (spans((0, 4)), {"x": 4}),
        (spans((0, 10), (2, 3), (4, 8), (5, 6)), {"x": 10}),  # nested
        (spans((0, 4), (3, 7), (6, 9)), {"x": 9}),  # overlapping
        (spans((0, 2), (5, 6), (6, 8), (20, 21)), {"x": 6}),  # gaps, and none between neighbours
        (spans((5, 9), (0, 6)), {"x": 9}),  # out of order
        (spans((0, 6), label="a") + spans((2, 10), label="b"), {"a": 6, "b": 4}),
        (spans((0, 9), label="a") + spans((2, 3), label="b"), {"a": 9, "b": 0}),
    ],
)
def test_covered_time_counts_once(intervals, expected):
    assert covered(intervals) == expected


def test_phase_at():
    phases = [Interval(2, 5, "plan"), Interval(5.5, 9, "model")]
    times = [1.9, 2, 4, 5, 5.2, 5.5, 9, 9.1, float("-inf")]
    found = [OUTSIDE, "plan", "plan", "plan", OUTSIDE, "model", "model", OUTSIDE, OUTSIDE]
    assert [phase_at(phases, time) for time in times] == found
    assert phase_at([], 1.0) == OUTSIDE


def test_self_time_is_without_callees():
    events = [
        event("cpu_op", "inner", 2, 3),
        event("cpu_op", "outer", 0, 10),
        event("cpu_op", "middle", 1, 5),
        event("cpu_op", "inner", 3, 5),
        event("cpu_op", "inner", 10, 11),  # after, not within
        event("cpu_op", "inner", 20, 21),  # begins with its caller
        event("cpu_op", "outer", 20, 24),
        event("cpu_op", "inner", 1, 2, thread=2),  # elsewhere at the same time
    ]
    assert self_times(events) == [
        Computation("outer", 9, 2),
        Computation("inner", 6, 5),
        Computation("middle", 1, 1),
    ]


def test_breakdown_on_a_cpu():
    found = break_down(
        [
            event("cpu_op", "aten::before", 0, 9),
            phase("decode", 10, 110),
            phase("plan", 12, 20),
            event("cpu_op", "aten::a", 14, 17),
            phase("model", 20, 80),
            event("cpu_op", "aten::b", 25, 45),
            event("cpu_op", "aten::c", 26, 30),  # within the one before
            event("cpu_op", "aten::b", 50, 75),
            event("cpu_op", "aten::d", 85, 90),  # in no phase
            phase("plan", 100, 104),
            event("cpu_op", "aten::after", 111, 120),
            event("Trace", "PyTorch Profiler (0)", 0, 200),
        ],
        on_gpu=False,
    )
    nothing = dict.fromkeys((*PHASES, OUTSIDE), 0)
    assert found.host_us == nothing | {"plan": 12, "model": 60, OUTSIDE: 28}
    assert found.busy_us == nothing | {"plan": 3, "model": 45, OUTSIDE: 5}
    assert [name for name, _, _ in found.computations] == [
        "aten::b",
        "aten::d",
        "aten::c",
        "aten::a",
    ]


def test_breakdown_on_a_gpu():
    """A kernel belongs to the phase that launched it, though the host is elsewhere by then."""
    found = break_down(
        [
            phase("decode", 0, 100),
            phase("plan", 0, 10),
            event("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=7),
            phase("model", 10, 20),
            event("cpu_op", "aten::mm", 11, 19),  # host time, which keeps no kernel waiting
            event("cuda_driver", "cuLaunchKernel", 12, 13, correlation=8),
            event("cuda_runtime", "cudaGraphLaunch", 14, 15, correlation=9),
            event("gpu_user_annotation", "pybeam::model", 30, 90),
            event("kernel", "plan_kernel", 5, 30, thread=7, correlation=7),
            event("kernel", "gemm", 40, 60, thread=7, correlation=9),
            event("kernel", "gemm", 62, 70, thread=7, correlation=9),
            event("kernel", "softmax", 55, 65, thread=8, correlation=8),  # beside the others
            event("gpu_memcpy", "Memcpy DtoH", 80, 81, thread=7, correlation=99),
        ],
        on_gpu=True,
    )
    assert found.host_us["model"] == 10 and found.host_us[OUTSIDE] == 80
    assert found.busy_us == dict.fromkeys(PHASES, 0) | {"plan": 25, "model": 30, OUTSIDE: 1}
    assert found.computations[:2] == [Computation("gemm", 28, 2), Computation("plan_kernel", 25, 1)]


@pytest.mark.parametrize("decodes", [0, 2])
def test_a_trace_of_something_else_is_refused(decodes):
    events = [phase("model", 0, 1), *(phase("decode", 2 * i, 2 * i + 1) for i in range(decodes))]
    with pytest.raises(ValueError, match=f"one range 'pybeam::decode', but has {decodes}"):
        break_down(events, on_gpu=False)


def test_a_trace_without_kernels_is_refused():
    events = [phase("decode", 0, 9), event("cpu_op", "aten::mm", 1, 2)]
    with pytest.raises(ValueError, match="must have kernels, but has none"):
        break_down(events, on_gpu=True)


def profile_of(on_gpu: bool) -> Profile:
    """Two steps; 8 of 10 ms are busy."""
    phases = [PhaseTime("model", 9.0, 7.5, 9.5), PhaseTime("outside", 1.0, 0.5, 2.0)]
    computations = [Computation("k" * 300, 12e3, 6), Computation("small", 4e3, 2)]
    return Profile(on_gpu, 2, 60.0, phases, computations, [0.02, 0.03], [0.04, 0.023])


def test_gap_is_what_is_not_busy():
    numbers = as_dict(profile_of(on_gpu=False))
    assert numbers["phases"]["model"] == pytest.approx(
        {
            "ms": 9.0,
            "share": 0.9,
            "busy_ms": 7.5,
            "busy_share": 0.75,
            "gap_ms": 1.5,
            "gap_share": 0.15,
            "gap_limit_ms": 2.0,
            "gap_limit_share": 0.2,
        }
    )
    assert numbers["step"]["gap_share"] == pytest.approx(0.2)
    assert numbers["step"]["gap_limit_share"] == pytest.approx(0.35)
    assert numbers["computations"][0] == {"name": "k" * 300, "ms": 6.0, "share": 0.6, "calls": 3}


def test_on_a_gpu_only_the_step_has_a_gap():
    numbers = as_dict(profile_of(on_gpu=True))
    assert not any("gap_ms" in row for row in numbers["phases"].values())
    assert numbers["step"]["gap_share"] == pytest.approx(0.2)
    run = dict(model="Model()", threads=2, sources=3, repeats=2)
    lines = as_text({"run": run, **numbers}).splitlines()
    assert ["model", "9.000", "90.0", "%", "7.500", "75.0", "%"] in map(str.split, lines)
    step = "step 10.000 100.0 % 8.000 80.0 % 20.0 % 35.0 %"
    assert step in [" ".join(line.split()) for line in lines]
    assert max(map(len, lines)) <= 100


@pytest.fixture
def run(capfd):
    """Run the command in this process on a model; returns exit code, stdout, stderr."""

    def profile(*options: str, model: Path = MODEL):
        code = main(["profile", "--model", str(model), *options])
        return code, *capfd.readouterr()

    return profile


def test_trace_and_table(run, device, tmp_path):
    path = tmp_path / "trace.json"
    code, out, _ = run(*SMALL, "--json", "--device", device.type, "--trace", str(path))
    numbers = json.loads(out)
    assert code == 0
    assert numbers["steps"] == 4 and numbers["run"]["sources"] == 3
    assert list(numbers["phases"]) == [*PHASES, OUTSIDE]
    for share in ("share", "busy_share"):
        shares = [row[share] for row in numbers["phases"].values()]
        assert min(shares) >= 0 and sum(shares) == pytest.approx(numbers["step"][share])
    assert numbers["step"]["share"] == pytest.approx(1)
    assert 0 < numbers["step"]["gap_limit_share"]
    assert numbers["step"]["ms"] == pytest.approx(1e3 * min(numbers["seconds"]) / 4)
    assert len(numbers["seconds"]) == len(numbers["seconds_profiled"]) == 2

    events = read_trace(path)
    names = [e["name"] for e in events if e["cat"] == "user_annotation"]
    if device.type == "cpu":
        assert {f"pybeam::{name}" for name in (*PHASES, "decode") if name != "replay"} <= set(names)
        assert names.count("pybeam::model") == 4
    found = break_down(events, on_gpu=device.type == "cuda")
    busy = sum(row["busy_ms"] for row in numbers["phases"].values())
    assert sum(found.busy_us.values()) == pytest.approx(4e3 * busy)
    assert 0 < sum(found.busy_us.values()) < sum(found.host_us.values())
    # a replay is a phase of its own, of which the model is a part
    assert max(found.busy_us["model"], found.busy_us["replay"]) > found.busy_us["close"]


def test_text(run):
    code, out, _ = run(*SMALL, "--threads", "2")
    assert code == 0
    assert "Transformer(m2m_100" in out and "3 sources, 4 steps" in out and "2 threads" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert all(len(rows[name]) == len(rows["step"]) for name in (*PHASES, OUTSIDE))
    shares = [float(rows[name][1]) for name in (*PHASES, OUTSIDE)]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert float(rows["step"][1]) == 100


# neither BOS nor a shared vocabulary in the last one
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["m2m_100", "bart", "marian-separate"])
def test_models_without_a_tokenizer(run, kind, tmp_path):
    save_tiny_model(tmp_path, kind)
    search = ["--algorithm=variable", "--width=7", "--threshold=3", "--schedule=streaming"]
    code, out, _ = run("--lines=9", "--repeats=1", "--json", *search, model=tmp_path)
    numbers = json.loads(out)
    assert code == 0 and numbers["steps"] >= 32 and "Streaming(" in numbers["run"]["schedule"]


def test_random_sources_repeat(tmp_path):
    save_tiny_model(tmp_path, "marian-separate")
    model = pybeam.load_model(tmp_path)
    sources = random_sources(model, 200, (3, 5))
    assert sources == random_sources(model, 200, (3, 5))
    assert {len(source) for source in sources} == {3, 4, 5}
    # the encoder's ids, of which there are fewer than the decoder's
    assert {token for source in sources for token in source} == set(range(37))


@pytest.mark.slow
def test_lines_of_a_file(run, tmp_path):
    path = tmp_path / "in.es"
    path.write_text("\n".join(LINES), encoding="utf-8")
    tokenizer = pybeam.load_tokenizer(MODEL)
    expected = [[], *map(tokenizer.encode, LINES[::2])]
    for num_lines in (None, 1, 2):
        requests = read_lines(str(path), tokenizer, 256, num_lines)
        found = [list(request.source) for request in requests]
        assert found == [expected[1], [], expected[2]][:num_lines]
    code, out, _ = run("--input", str(path), "--repeats", "1", "--warmup", "0", "--json")
    numbers = json.loads(out)
    results = pybeam.Decoder(pybeam.load_model(MODEL), pybeam.fixed_beam(5)).decode(expected)
    assert (code, numbers["run"]["sources"]) == (0, 3)
    natural = max(result.steps for result in results)
    assert numbers["steps"] == natural
    code, out, _ = run("--input", str(path), "--repeats=1", "--json", f"--steps={natural + 7}")
    assert json.loads(out)["steps"] == natural + 7


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--steps", "4", "--max-length", "9"], 2, "--steps sets --max-length"),
        (["--steps", "4", "--min-length", "2"], 2, "--steps sets --min-length"),
        (["--steps", "100000"], 2, "--steps must be at most the model's"),
        (["--max-length", "100000"], 2, "--max-length must be at most the model's"),
        (["--source-length", "9:3"], 2, "the smaller one first, but is '9:3'"),
        (["--source-length", "short"], 2, "a number of tokens such as 32, or two"),
        (["--source-length", "100000"], 2, "--source-length must be at most the model's"),
        (["--source-length", "9", "--input", "in.es"], 2, "--source-length has no meaning"),
        (["--source-lang", "es"], 2, "give --input FILE"),
        (["--threshold", "1.5"], 2, "--threshold has no meaning with --algorithm fixed"),
        (["--schedule", "batch", "--epsilon", "0.5"], 2, "--epsilon has no meaning"),
        (["--trace", "/no/such/folder/t.json"], 1, "/no/such/folder/t.json: No such file"),
        (["--input", "absent.es"], 1, "--input absent.es: No such file"),
        (["--repeats", "0"], 2, "--repeats"),
    ],
)
def test_wrong_options_name_the_option(run, options, code, message):
    found, out, errors = run(*options)
    assert (found, out) == (code, "")
    assert message in " ".join(errors.split())


def test_missing_model(run, tmp_path):
    code, out, errors = run(model=tmp_path / "none")
    assert (code, out) == (1, "") and "none" in errors


def test_nothing_to_decode(run, tmp_path):
    path = tmp_path / "in.es"
    path.write_text("\n  \n", encoding="utf-8")
    code, _, errors = run("--input", str(path))
    assert code == 1 and "must have a line that is not empty" in errors
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), pybeam.greedy())
    with pytest.raises(ValueError, match="one that needs a step"):
        measure(decoder, [[]])


def test_help_teaches(capfd):
    assert main(["profile", "--help"]) == 0
    text = capfd.readouterr().out
    phrases = (
        "Phases",
        "Examples:",
        "Exit codes:",
        "--threshold NATS",
        "--trace FILE.json",
        "--steps",
    )
    for phrase in phrases:
        assert phrase in text
