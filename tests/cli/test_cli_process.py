"""The command line as a process: pipes, signals, what it loads and when."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pybeam.cli.run import describe_lines
from pybeam.cli.sources import LineReader
from support.example_lines import LINES, translations
from support.paths import MODEL, ROOT
from support.tiny_models import save_tiny_model

# what takes most of the time; torch brings numpy
HEAVY = {"torch", "numpy", "tokenizers", "transformers", "sentencepiece", "safetensors", "tqdm"}
# translating a few lines so often takes minutes, and their output fills every pipe: a test that does
# something in the middle does so before the end, however long it waits for its turn on a busy machine
TOO_MANY = 20_000


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return translations()


def start(*options: str, **pipes) -> subprocess.Popen:
    command = [sys.executable, "-m", "pybeam", "translate", "--model", str(MODEL), *options]

    def heed_signals() -> None:
        # tests in the background ignore SIGINT, under nohup SIGHUP too, and children inherit that
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_signals,
        **pipes,
    )


@pytest.mark.slow
def test_a_line_comes_out_before_the_input_ends(expected):
    with start("--quiet") as process:
        for line, translation in zip(LINES[:2], expected, strict=False):
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline().decode() == translation + "\n"
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(timeout=120) == 0
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_closed_output_ends_cleanly(tmp_path, expected):
    source = tmp_path / "in.txt"
    source.write_text("\n".join(LINES * TOO_MANY), "utf-8")
    with start("--quiet", "--input", str(source)) as process:
        assert process.stdout.readline().decode() == expected[0] + "\n"
        process.stdout.close()
        assert process.wait(timeout=120) == 141
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_interrupt_writes_what_is_finished(expected):
    with start() as process:
        process.stdin.write(LINES[0].encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().decode() == expected[0] + "\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
        errors = process.stderr.read().decode()
        assert "1 line in" in errors and "Traceback" not in errors


def test_an_interrupt_that_another_thread_gets_ends_the_wait_for_input():
    read_end, write_end = os.pipe()
    has_ended = threading.Event()

    def interrupt() -> None:
        time.sleep(0.2)  # until the reader waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        has_ended.wait(10)
        os.close(write_end)  # so that a reader that does not heed it ends as well

    thread = threading.Thread(target=interrupt)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            list(LineReader(read_end).run())
        assert thread.is_alive(), "the interrupt was heeded only when the input had ended"
    finally:
        has_ended.set()
        thread.join()
        signal.signal(signal.SIGINT, handler)
        os.close(read_end)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_told_to_end_in_the_middle(number, tmp_path, expected):
    """Lines come out as they are finished, and an unfinished line is not there at all."""
    path, source = tmp_path / "out.txt", tmp_path / "in.txt"
    source.write_text("\n".join([*LINES[:2], LINES[3]] * TOO_MANY), "utf-8")
    wanted = [expected[0], expected[1], expected[3]] * TOO_MANY
    options = ["--input", str(source), "--output", str(path), "--batch-size", "16"]
    with start(*options) as process:
        while not path.exists() or path.read_bytes().count(b"\n") < 300:
            time.sleep(0.01)
            assert process.poll() is None, "the first half came out only in the end"
        process.send_signal(number)
        code = process.wait(timeout=120)
        errors = process.stderr.read().decode()
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    assert 300 <= len(lines) < len(wanted) and lines == wanted[: len(lines)]
    assert "Traceback" not in errors
    assert (f"interrupted; the output ends with line {len(lines)}; " in errors) == (code > 0)


@pytest.mark.slow
def test_told_to_end_with_numbers(tmp_path, expected):
    """Objects say which line they belong to, so that finished ones behind a gap are written."""
    path, source = tmp_path / "out.jsonl", tmp_path / "in.txt"
    source.write_text("\n".join([LINES[3] * 9, *LINES[:2]] * TOO_MANY), "utf-8")
    options = ["--input", str(source), "--output", str(path), "--json", "--batch-size=2"]
    with start(*options) as process:
        while not path.exists() or path.read_bytes().count(b"\n") < 3:
            time.sleep(0.01)
            assert process.poll() is None, "the first texts came out only in the end"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 143
        errors = process.stderr.read().decode()
    indices = [json.loads(line)["index"] for line in path.read_text("utf-8").splitlines()]
    assert indices == sorted(set(indices))
    missing = sorted(set(range(indices[-1])) - set(indices))
    assert (f"not finished: {describe_lines(missing)}\n" in errors) == bool(missing)


def python(*arguments: str, path=None, **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python process that looks for modules in the folder `path` first."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    places = [str(path), str(ROOT)] if path else [str(ROOT)]
    environment |= {"PYTHONPATH": os.pathsep.join(places), **variables}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment
    )


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from pybeam.cli import main, pybeam\n"
        "for command in [[], *([name] for name in pybeam.commands)]:\n"
        "    assert main([*command, '--help']) == 0\n"
        "assert main(['--version']) == 0\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    process = python("-c", code)
    assert process.returncode == 0, process.stderr
    loaded = {name.partition(".")[0] for name in process.stderr.split()}
    assert "click" in loaded and not loaded & HEAVY
    for command in (
        "translate",
        "score",
        "transcribe",
        "graph",
        "export-onnx",
        "quantize",
        "convert",
        "profile",
        "info",
    ):
        assert f"Usage: pybeam {command}" in process.stdout


@pytest.mark.slow
@pytest.mark.parametrize("module", ["click", "torch", "sentencepiece"])
def test_an_interrupt_while_modules_are_loaded_prints_no_traceback(module, tmp_path):
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    command = ["-m", "pybeam", "translate", "--model", str(MODEL), "--input", os.devnull]
    process = python(*command, path=tmp_path)
    assert (process.returncode, process.stdout, process.stderr.strip()) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_are_loaded_ends_the_process_at_once(number, tmp_path):
    """Whatever the module makes of exceptions."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the signal is ignored here and in what is started, as under nohup")
    code = f"import os, time\ntry:\n    os.kill(os.getpid(), {number:d})\n    time.sleep(9)\n"
    (tmp_path / "torch.py").write_text(f"{code}except BaseException:\n    raise ImportError")
    process = python("-m", "pybeam", "translate", "--model", str(MODEL), path=tmp_path)
    assert (process.returncode, process.stdout, process.stderr) == (128 + number, "", "")


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "active"}])
def test_threads_wait_passively_unless_the_user_says_otherwise(given, tmp_path):
    """OpenMP reads the policy when torch is loaded."""
    code = "import os\nprint(os.environ['OMP_WAIT_POLICY'])\nraise SystemExit(0)"
    (tmp_path / "torch.py").write_text(code)
    process = python("-m", "pybeam", "info", path=tmp_path, **given)
    assert process.stdout == given.get("OMP_WAIT_POLICY", "passive") + "\n"


@pytest.mark.slow
def test_triton_runs_in_its_interpreter_as_info_advises(tmp_path):
    pytest.importorskip("triton")
    save_tiny_model(tmp_path, "marian-separate")
    size = ["--lines=1", "--source-length=3", "--steps=2", "--repeats=1", "--warmup=0", "--width=2"]
    command = ["-m", "pybeam", "profile", "--model", str(tmp_path), "--backend=triton", *size]
    assert "set TRITON_INTERPRET=1" in python(*command).stderr
    process = python(*command, TRITON_INTERPRET="1")
    assert process.returncode == 0, process.stderr
    assert "1 source, 2 steps" in process.stdout
