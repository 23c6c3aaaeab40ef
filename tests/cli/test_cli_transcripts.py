"""`pybeam transcribe` with a Whisper model: transcripts of recordings of any length."""

import io
import json
import sys
from dataclasses import replace

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.cli import main
from pybeam.speech import SpeechRules, VoiceActivity, format_transcript, read_sound, read_wav
from pybeam.speech.whisper import Transcriber, beam_search
from support.paths import ROOT
from support.speech_models import tone, write_wav
from support.tiny_whisper import save_whisper

RATE = 16000
SPEECH2TEXT = ROOT / "examples" / "models" / "spoken-numbers-en"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whisper")
    save_whisper(directory)
    return directory


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """Recordings of several windows, of one, and of none; a window has a second."""
    directory = tmp_path_factory.mktemp("sounds")
    paths = [directory / f"{name}.wav" for name in ("long", "short", "empty")]
    for path, num in zip(paths, (45000, 9000, 0), strict=True):
        write_wav(path, tone(num, seed=num), RATE)
    return paths


@pytest.fixture
def transcribe(model, capfd):
    """Run `pybeam transcribe` in this process; returns exit code, stdout, stderr."""

    def run(*options, model=model):
        options = [str(option) for option in options]
        code = main(["transcribe", "--model", str(model), "--width=2", "--max-length=12", *options])
        output = capfd.readouterr()
        return code, output.out, output.err

    return run


def expected(model, sounds, **options) -> list[pybeam.Transcriber]:
    search = beam_search(2)
    asked = pybeam.TranscriptionOptions(max_new_tokens=12, **options)
    transcriber = pybeam.Transcriber(pybeam.load_model(model), model, asked, algorithm=search)
    return list(transcriber.transcribe([read_wav(path, RATE) for path in sounds]))


@pytest.mark.slow
def test_a_line_for_each_recording(transcribe, model, sounds):
    texts = [" ".join(one.text.split()) for one in expected(model, sounds)]
    assert any(texts) and texts[-1] == ""
    found = transcribe(*sounds, "--quiet")
    assert found == (0, "".join(f"{text}\n" for text in texts), "")
    assert transcribe(*sounds, "--quiet", "--batch-size", 1) == found


def test_a_file_for_each_recording_and_form(transcribe, model, sounds, tmp_path):
    out = tmp_path / "out"
    options = ("--language=de", "--task=translate", "--timestamps=word", "--temperatures=0,0.5")
    forms = ("--format=srt", "--format=json", f"--output-dir={out}")
    code, printed, errors = transcribe(*sounds, *options, *forms, "--quiet")
    assert (code, printed, errors) == (0, "", "")
    assert len(list(out.iterdir())) == 2 * len(sounds)
    asked = dict(language="de", task="translate", words=True, temperatures=(0.0, 0.5))
    for path, transcript in zip(sounds, expected(model, sounds, **asked), strict=True):
        for form in ("srt", "json"):
            content = (out / f"{path.stem}.{form}").read_text("utf-8")
            assert content == format_transcript(transcript, form)
    assert any(one["words"] for one in json.loads((out / "long.json").read_text())["segments"])


@pytest.mark.slow
def test_settings_that_are_left_out(transcribe, model, sounds):
    """In transcripts, and in hypotheses of the search."""
    names = ("suppress_tokens", "begin_suppress_tokens")
    without = [f"--without={name}" for name in names]
    asked = dict(language="en", suppress_tokens=(), suppress_blank=False)
    texts = [" ".join(one.text.split()) for one in expected(model, sounds[:2], **asked)]
    whole = transcribe(*sounds[:2], "--quiet", "--language=en")
    found = transcribe(*sounds[:2], "--quiet", "--language=en", *without)
    assert found == (0, "".join(f"{text}\n" for text in texts), "") != whole

    loaded = pybeam.load_model(model)
    search = pybeam.fixed_beam(2, n_best=2, max_length=12)
    features = pybeam.speech.load_feature_extractor(model)(read_wav(sounds[1], RATE))
    request = pybeam.Request(features, pybeam.speech.load_transcription(model, "en").prefix)
    options = (sounds[1], "--quiet", "--language=en", "--json", "--n-best=2", "--algorithm=fixed")
    scores = []
    for one, more in ((loaded, ()), (loaded.without(*names), without)):
        [result] = pybeam.Decoder(one, search).decode([request])
        scores.append([each.score for each in result.hypotheses])
        line = json.loads(transcribe(*options, *more)[1])
        assert [each["score"] for each in line["hypotheses"]] == pytest.approx(scores[-1], abs=1e-4)
    assert scores[0] != scores[1]


def test_a_cut_file_is_told(transcribe, tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "a.opus"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libopus", rate=48000, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone(120000, seed=1)[None], "s16", "mono")
        frame.sample_rate = 48000
        resampler = av.AudioResampler(stream.format, "mono", 48000, frame_size=960)
        for one in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(one))
        container.mux(stream.encode(None))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    code, _, errors = transcribe(path, "--quiet", "--temperatures=0")
    assert code == 0
    assert errors == f"pybeam: warning: {path} seems to be cut: its last page is missing\n"


@pytest.mark.parametrize(
    ("options", "search"),
    [
        ((), beam_search()),
        (
            ("--width=3", "--patience=2", "--length-penalty=0.5"),
            beam_search(3, patience=2, length_penalty=0.5),
        ),
        (
            ("--repetition-penalty=1.5",),
            replace(beam_search(), processors=(processors.repetition_penalty(1.5),)),
        ),
        (("--algorithm=fixed",), pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))),
        (("--scoring=raw",), pybeam.fixed_beam(5)),
    ],
)
def test_the_search_is_that_of_faster_whisper(model, sounds, monkeypatch, options, search):
    """Unless another one is asked for."""
    found = []

    def transcriber(*args, algorithm, **more):
        found.append(algorithm)
        return Transcriber(*args, algorithm=algorithm, **more)

    monkeypatch.setattr("pybeam.speech.whisper.Transcriber", transcriber)
    names = [str(sounds[-1]), "--quiet", "--output=/dev/null"]
    assert main(["transcribe", f"--model={model}", *names, *options]) == 0
    assert found == [search]


@pytest.mark.slow
def test_options_reach_the_transcriber(transcribe, model, sounds):
    options = [
        ("--windows=batched", dict(windows="batched")),
        ("--timestamps=none", dict(timestamps=False)),
        ("--first-words=bad", dict(prefix="bad")),
        (
            "--timestamps=word --hallucination-silence=0.1",
            dict(words=True, hallucination_silence_threshold=0.1),
        ),
        ("--no-previous-text", dict(condition_on_previous_text=False)),
        ("--log-prob-threshold=none", dict(log_prob_threshold=None)),
        ("--compression-ratio-threshold=0.2", dict(compression_ratio_threshold=0.2)),
        ("--no-speech-threshold=none --best-of=2", dict(no_speech_threshold=None, best_of=2)),
    ]
    for flags, asked in options:
        [transcript] = expected(model, sounds[:1], language="en", **asked)
        command = [sounds[0], "--language=en", "--format=vtt", "--quiet", *flags.split()]
        assert transcribe(*command) == (0, format_transcript(transcript, "vtt"), "")


@pytest.mark.slow
def test_sound_on_stdin(transcribe, sounds, monkeypatch):
    content = sounds[0].read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    found = transcribe("-", "--format=tsv", "--quiet")
    assert found == transcribe(sounds[0], "--format=tsv", "--quiet")
    code, _, errors = transcribe("-", "-")
    assert code == 2 and "can be given once" in errors


@pytest.mark.slow
def test_names_from_a_list_and_a_folder(transcribe, sounds, tmp_path):
    code, listed, _ = transcribe(sounds[1], "", sounds[0], "--quiet")
    names = tmp_path / "names.txt"
    names.write_text(f"{sounds[1]}\n\n{sounds[0]}\n")
    assert transcribe("--input", names, "--quiet") == (code, listed, "") and code == 0
    assert listed.split("\n")[1] == ""
    folder = transcribe("--input", sounds[0].parent, "--quiet")
    assert folder == transcribe(*sorted(sounds), "--quiet")


@pytest.mark.slow
def test_a_bad_file_fails_alone(transcribe, sounds, tmp_path):
    broken = tmp_path / "broken.wav"
    broken.write_text("no sound")
    good = transcribe(sounds[0], "--quiet")[1]
    files = [broken, sounds[0], tmp_path / "none.wav"]
    code, printed, errors = transcribe(*files, "--quiet")
    assert (code, printed) == (1, f"\n{good}\n")
    assert "error: file 1: " in errors and "broken.wav cannot be read as sound" in errors
    assert "error: file 3: " in errors and "none.wav" in errors
    code, _, errors = transcribe(*files, "--format=srt", f"--output-dir={tmp_path / 'out'}")
    assert code == 1 and [path.name for path in (tmp_path / "out").iterdir()] == ["long.srt"]
    assert "1 file, 2.8 s of sound in" in errors and "real-time factor" in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format=srt", "--format=vtt"], "several --format need --output-dir"),
        (["--format=srt", "b.wav"], "--format srt of several recordings needs --output-dir"),
        (["--vad-threshold=0.4"], "--vad-threshold needs --vad"),
        (["--json", "--vad"], "--vad is for transcripts, but --json writes hypotheses"),
        (["--n-best=2", "--hotwords=x"], "--hotwords is for transcripts, but --n-best writes"),
        (["--output-dir=x", "--best-of=2"], "--output-dir without --format writes hypotheses"),
        (["--output-dir=x", "--format=srt", "--shard=1/2"], "--shard is for --output-dir without"),
        (["--output-dir=x", "--format=srt", "--output=y"], "either --output or --output-dir"),
        (["--temperatures=0,hot"], "must be numbers joined by commas"),
        (["--temperatures=-1"], "--temperatures must be"),
        (["--log-prob-threshold=low"], "must be a number, or none"),
        (["--hallucination-silence=1"], "--hallucination-silence needs --timestamps word"),
        (["--windows=batched", "--first-words=a"], "--first-words needs --windows sequential"),
    ],
)
def test_options_that_contradict_each_other(transcribe, sounds, options, message):
    code, _, errors = transcribe(sounds[0], *options)
    assert code == 2 and message in " ".join(errors.split())


def test_recordings_of_one_name_need_folders_of_their_own(transcribe, sounds, tmp_path):
    other = tmp_path / "long.wav"
    write_wav(other, tone(900, seed=1), RATE)
    options = ("--format=srt", f"--output-dir={tmp_path}")
    code, _, errors = transcribe(sounds[0], other, *options)
    assert code == 2 and "several recordings would be written to 'long'" in " ".join(errors.split())


def test_other_models_have_no_transcripts(transcribe, sounds):
    pytest.importorskip("kaldi_native_fbank")
    code, _, errors = transcribe(sounds[0], "--format=srt", model=SPEECH2TEXT)
    assert code == 2 and "--format is for Whisper models" in errors


def test_an_unknown_language(transcribe, sounds):
    code, _, errors = transcribe(sounds[0], "--language=xx")
    assert code == 1 and "--language must be one" in errors


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("windows", ["sequential", "batched"])
def test_only_speech_is_transcribed(transcribe, model, tmp_path, windows):
    """Spoken digits, three seconds of silence, and the digits again; and a recording of silence."""
    pytest.importorskip("silero_vad")
    digits = read_sound(ROOT / "examples" / "speech" / "first.wav", RATE)
    sound = torch.cat([digits, torch.zeros(3 * RATE), digits])
    paths = [tmp_path / "speech.wav", tmp_path / "silence.wav"]
    for path, samples in zip(paths, (sound, torch.zeros(2 * RATE)), strict=True):
        write_wav(path, (samples * 2**15).round().numpy(), RATE)
    batched = dict(min_silence=0.16, max_speech=30.0) if windows == "batched" else {}
    stretches = VoiceActivity(SpeechRules(**batched))(read_wav(paths[0], RATE))
    assert len(stretches) >= 2
    asked = pybeam.TranscriptionOptions(max_new_tokens=12, language="en", windows=windows)
    search = pybeam.fixed_beam(2, scoring=pybeam.scoring.power(1.0))
    transcriber = pybeam.Transcriber(pybeam.load_model(model), model, asked, algorithm=search)
    recording = pybeam.Recording(read_wav(paths[0], RATE), stretches=stretches)
    [expected] = transcriber.transcribe([recording])
    text = " ".join(expected.text.split())
    command = [*paths, "--vad", "--language=en", f"--windows={windows}", "--quiet"]
    assert text and transcribe(*command) == (0, f"{text}\n\n", "")


def test_an_interrupt_keeps_what_is_finished(transcribe, sounds, tmp_path, monkeypatch):
    news = pybeam.Transcriber.stream

    def interrupted(self, recordings):
        for one in news(self, recordings):
            yield one
            if one.transcript is not None:
                raise KeyboardInterrupt

    monkeypatch.setattr(pybeam.Transcriber, "stream", interrupted)
    out = tmp_path / "out"
    code, _, errors = transcribe(*sounds, "--format=srt", f"--output-dir={out}")
    assert code == 130 and "interrupted; 2 files are not finished" in errors
    assert len(list(out.iterdir())) == 1 and "1 file, " in errors
