"""The programs of `examples/onnx`, without Python: what they find is what pybeam finds.

`make edge` installs what they need, and runs them where these tests alone would be skipped.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pybeam
from pybeam.cli import main
from pybeam.speech import load_feature_extractor, load_transcription, read_wav
from support.paths import MODEL, ROOT
from support.server_process import wait_until
from support.speech_models import save_tiny_whisper, tone, write_wav

pytestmark = pytest.mark.slow
PROGRAMS = ROOT / "examples" / "onnx"
PAGE = PROGRAMS / "page"
SPEECH = ROOT / "examples" / "models" / "spoken-numbers-en"
SOUNDS = sorted((ROOT / "examples" / "speech").glob("*.wav"))
SENTENCES = ["Jesús lloró.", "Y dijo Dios: Sea la luz; y fué la luz.", "xyzzy 42 ¿qué?", ""]


def missing(what: str) -> None:
    if os.environ.get("PYBEAM_EXPECT_EDGE"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The example models and a small Whisper, exported."""
    pytest.importorskip("onnx_ir")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("kaldi_native_fbank")
    path = tmp_path_factory.mktemp("onnx")
    whisper = path / "original-whisper"
    save_tiny_whisper(whisper)
    for name, model in (("translator", MODEL), ("recogniser", SPEECH), ("whisper", whisper)):
        assert main(["export-onnx", "--model", str(model), "--output", str(path / name)]) == 0
    write_wav(path / "tone.wav", tone(12000, seed=1), 16000)
    return path


def expected(path: Path, given: str | Path, language: str | None = None) -> list[tuple[str, float]]:
    """Decode a sentence or a recording with a model: texts and final scores, best first."""
    tokenizer, asked = pybeam.load_tokenizer(path), load_transcription(path, language)
    if isinstance(given, Path):
        extract = load_feature_extractor(path)
        source = extract(read_wav(given, extract.sampling_rate))
    else:
        source = tokenizer.encode(given)
    model = pybeam.load_model(path, device="cpu")
    search = pybeam.fixed_beam(
        5,
        n_best=5,
        max_length=min(200, model.max_positions - len(asked.prefix)),
        scoring=pybeam.scoring.power(1.0),
        processors=asked.processors,
    )
    [result] = pybeam.Decoder(model, search).decode([pybeam.Request(source, prefix=asked.prefix)])
    return [(tokenizer.decode(h.tokens), h.final_score) for h in result.hypotheses]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    # a model with random weights does not always write UTF-8
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=280)


def assert_finds(
    process: subprocess.CompletedProcess[str], wanted: list[tuple[str, float]]
) -> None:
    assert process.returncode == 0, process.stderr
    found = [line.split("\t") for line in process.stdout.splitlines()]
    texts, scores = zip(*wanted, strict=True)
    assert [text for _, text in found] == list(texts)
    assert [float(score) for score, _ in found] == pytest.approx(scores, abs=2e-3)


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """The C++ program, compiled."""
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            missing("needs `apt-get install cmake g++`")
    build = tmp_path_factory.mktemp("build")
    configured = run("cmake", "-S", PROGRAMS / "cpp", "-B", build)
    lacks = re.search(r"decode needs.*?\n\n", configured.stderr, re.S)
    if lacks:
        missing(" ".join(lacks[0].split()))
    assert configured.returncode == 0, configured.stderr
    built = run("cmake", "--build", build)
    assert built.returncode == 0, built.stdout + built.stderr
    return build / "decode"


@pytest.mark.parametrize("given", [*SENTENCES, *SOUNDS], ids=str)
def test_the_program_finds_what_pybeam_finds(program, folder, given):
    name, model = ("recogniser", SPEECH) if isinstance(given, Path) else ("translator", MODEL)
    assert_finds(run(program, folder / name, given), expected(model, given))


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_program_runs_whisper(program, folder, language):
    sound = folder / "tone.wav"
    process = run(program, folder / "whisper", sound, language)
    assert_finds(process, expected(folder / "original-whisper", sound, language))


def test_the_program_says_what_is_wrong(program, folder, tmp_path):
    for given, message in (
        ([], "usage: decode FOLDER SENTENCE"),
        ([tmp_path, "a"], "sentencepiece.model"),
        ([folder / "recogniser", tmp_path / "none.wav"], "none.wav: "),
        ([folder / "recogniser", folder / "recogniser" / "config.json"], "config.json: "),
        ([folder / "whisper", folder / "tone.wav", "xx"], "<|xx|>"),
    ):
        process = run(program, *given)
        assert process.returncode > 0 and message in process.stderr
    shutil.copytree(folder / "recogniser", tmp_path / "other")
    config = tmp_path / "other" / "preprocessor_config.json"
    config.write_text(config.read_text().replace("22050", "16000"))
    process = run(program, tmp_path / "other", SOUNDS[0])
    assert process.returncode > 0 and "16000 Hz; convert it: `ffmpeg" in process.stderr


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url(folder) -> Iterator[str]:
    """The page with the folders beside it, served as any server of files does."""
    if not (PAGE / "node_modules").exists():
        missing("needs `npm ci` in examples/onnx/page")
    built = run("npm", "run", "build", "--prefix", PAGE)
    assert built.returncode == 0, built.stderr
    for path in PAGE.iterdir():
        if path.name != "models":  # which a user may have made there
            (folder / path.name).symlink_to(path)
    (folder / "models").symlink_to(folder)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def browser():
    """Chromium, whose microphone hears the first recording."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        missing("needs `apt-get install chromium chromium-driver`")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={SOUNDS[0]}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    page = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield page
    page.quit()


def listed(browser, name: str) -> list[str]:
    return browser.execute_script(
        f"return [...document.querySelectorAll('#{name} li')].map(item => item.textContent)"
    )


def problem(browser) -> str:
    return browser.find_element("id", "problem").text


def show(browser, url: str) -> None:
    """Open the page and wait for its models."""
    browser.get(url)
    count = "return document.querySelectorAll(':disabled').length"
    wait_until(lambda: browser.execute_script(count) == 0 or problem(browser), 60)
    assert problem(browser) == ""


def test_the_page_finds_what_pybeam_finds(browser, url):
    show(browser, url)
    sentence = browser.find_element("id", "sentence")
    for text in SENTENCES[:3]:
        sentence.clear()
        sentence.send_keys(text + "\n")
        texts = [one for one, _ in expected(MODEL, text)]
        wait_until(lambda texts=texts: listed(browser, "translations") == texts, 30)
    for path in SOUNDS:
        browser.find_element("id", "recording").send_keys(str(path))
        texts = [one for one, _ in expected(SPEECH, path)]
        wait_until(lambda texts=texts: listed(browser, "texts") == texts, 30)
    assert problem(browser) == "" and not browser.get_log("browser")
    loaded = "return performance.getEntriesByType('resource').map(one => one.name)"
    assert all(name.startswith((url, "data:")) for name in browser.execute_script(loaded))


def test_the_page_runs_whisper(browser, folder, url):
    show(browser, f"{url}?recogniser=models/whisper")
    sound = folder / "tone.wav"
    browser.find_element("id", "recording").send_keys(str(sound))
    texts = [one for one, _ in expected(folder / "original-whisper", sound, "en")]
    wait_until(lambda: listed(browser, "texts") == texts, 30)


def test_the_page_listens(browser, url):
    show(browser, url)
    button = browser.find_element("id", "microphone")
    button.click()
    wait_until(lambda: button.text == "Stop")
    browser.execute_async_script("setTimeout(arguments[0], 2000)")
    button.click()
    wait_until(lambda: listed(browser, "texts"), 30)
    # the recording is played again and again, and we come in the middle of it
    assert {"four", "zero", "seven"} & set(listed(browser, "texts")[0].split())


def test_the_page_says_what_is_wrong(browser, url, tmp_path):
    show(browser, url)
    (tmp_path / "no.wav").write_text("no sound")
    browser.find_element("id", "recording").send_keys(str(tmp_path / "no.wav"))
    wait_until(lambda: problem(browser))
    assert listed(browser, "texts") == []
    browser.get(f"{url}?translator=models/none")
    wait_until(lambda: "models/none/config.json is not there (404)" in problem(browser), 30)
    wait_until(lambda: browser.find_element("id", "recording").is_enabled(), 30)
    assert not browser.find_element("id", "sentence").is_enabled()
