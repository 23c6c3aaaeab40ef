"""`pybeam transcribe` on a tiny random model and synthesised sounds."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import pybeam
from pybeam.cli import main
from pybeam.speech import load_feature_extractor, read_wav
from support.paths import MODEL as TRANSLATOR
from support.speech_models import NUM_FEATURES, VOCAB, save_tiny_speech_model, tone, write_wav

pytest.importorskip("kaldi_native_fbank", reason="needs `pip install 'pybeam-search[speech]'`")
RATE = 8000
OPTIONS = (
    *("--width=3", "--min-length=1", "--max-length=6", "--scoring=gnmt:0.6"),
    *("--temperature=1.25", "--eos-penalty=0.8", "--quiet"),
)
SEARCH = pybeam.fixed_beam(
    3,
    min_length=1,
    max_length=6,
    scoring=pybeam.scoring.gnmt(0.6),
    processors=[pybeam.processors.temperature(1.25), pybeam.processors.eos_penalty(0.8)],
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("speech")
    save_tiny_speech_model(directory, seed=5, eos_nats=1.0, decoder_start_token_id=0)
    extractor = {"num_mel_bins": NUM_FEATURES, "sampling_rate": RATE}
    extractor["feature_extractor_type"] = "Speech2TextFeatureExtractor"
    (directory / "preprocessor_config.json").write_text(json.dumps(extractor))
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3} | {f"w{i}": i for i in range(4, VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sounds")
    paths = [directory / f"{i}.wav" for i in range(4)]
    for i, path in enumerate(paths):
        write_wav(path, tone(1500 * (4 - i), seed=i), RATE)
    return paths


@pytest.fixture(scope="module")
def expected(model, sounds) -> list[pybeam.Result]:
    extract = load_feature_extractor(model)
    decoder = pybeam.Decoder(pybeam.load_model(model), SEARCH)
    return decoder.decode([extract(read_wav(path, RATE)) for path in sounds])


@pytest.fixture
def transcribe(model, capfd):
    """Run `pybeam transcribe` in this process; returns exit code, lines of stdout, stderr."""

    def run(*options, model=model):
        options = [str(option) for option in options]
        code = main(["transcribe", "--model", str(model), *OPTIONS, *options])
        output = capfd.readouterr()
        return code, output.out.split("\n")[:-1], output.err

    return run


def text(model, hypothesis) -> str:
    return pybeam.load_tokenizer(model).decode(hypothesis.tokens)


@pytest.mark.parametrize("schedule", ["fifo", "batch"])
def test_files_are_transcribed_in_order(transcribe, model, sounds, expected, schedule):
    texts = [text(model, result.hypotheses[0]) for result in expected]
    assert len(set(texts)) > 1 and all(texts)
    found = transcribe(*sounds, "--schedule", schedule, "--batch-size", 2)
    assert found == (0, texts, "")


def test_names_from_a_list_and_json(transcribe, model, sounds, expected, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text(f"{sounds[2]}\n\n{sounds[0]}\n")
    code, lines, _ = transcribe("--input", names, "--json", "--n-best", 3)
    assert code == 0
    records = [json.loads(line) for line in lines]
    assert [record["index"] for record in records] == [0, 1, 2]
    assert records[1]["stop_reason"] == "empty_source"
    extract = load_feature_extractor(model)
    best = pybeam.Decoder(pybeam.load_model(model), SEARCH).decode(
        [pybeam.Request(extract(read_wav(sounds[2], RATE)), n_best=3)]
    )
    pairs = zip(records[0]["hypotheses"], best[0].hypotheses, strict=True)
    for ours, hypothesis in pairs:
        assert ours["text"] == text(model, hypothesis)
        assert ours["final_score"] == pytest.approx(hypothesis.final_score)
    assert records[2]["hypotheses"][0]["text"] == text(model, expected[0].hypotheses[0])


def test_a_bad_file_fails_alone(transcribe, model, sounds, expected, tmp_path):
    fast, broken = tmp_path / "fast.wav", tmp_path / "broken.wav"
    write_wav(fast, tone(2000, seed=9), 2 * RATE)
    broken.write_text("no sound")
    files = [sounds[0], fast, tmp_path / "none.wav", broken, sounds[1]]
    code, lines, errors = transcribe(*files)
    texts = [text(model, result.hypotheses[0]) for result in expected]
    # another sampling rate is no reason to fail
    assert code == 1 and lines[0] == texts[0] and lines[1] and lines[2:] == ["", "", texts[1]]
    assert "error: file 2: " not in errors
    assert "error: file 3: " in errors and "none.wav" in errors
    assert "error: file 4: " in errors and "broken.wav cannot be read as sound" in errors
    record = json.loads(transcribe(broken, "--json")[1][0])
    assert record["hypotheses"] == [] and "broken.wav" in record["error"]


def test_the_search_of_fireredasr(model, sounds, capfd):
    """By our names for its options, and by its own."""
    extract = load_feature_extractor(model)
    sources = [extract(read_wav(path, RATE)) for path in sounds]
    command = ["transcribe", "--model", str(model), "--recipe=fireredasr", "--quiet", "--json"]
    ours = ["--width=3", "--temperature=1.25", "--eos-penalty=0.8", "--length-penalty=0.6"]
    own = ["beam_size=3", "softmax_smoothing=1.25", "eos_penalty=0.8", "length_penalty=0.6"]
    search = pybeam.compat.fireredasr.beam_search(
        3, nbest=2, softmax_smoothing=1.25, eos_penalty=0.8, length_penalty=0.6, decode_max_len=6
    )
    expected = pybeam.Decoder(pybeam.load_model(model), search).decode(sources)
    for options in (ours, [f"--recipe-option={option}" for option in own]):
        options = [*options, "--n-best=2", "--max-length=6", *map(str, sounds)]
        assert main([*command, *options]) == 0
        records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        for record, result in zip(records, expected, strict=True):
            texts = [text(model, hypothesis) for hypothesis in result.hypotheses]
            assert [found["text"] for found in record["hypotheses"]] == texts
            scores = [hypothesis.final_score for hypothesis in result.hypotheses]
            assert [h["final_score"] for h in record["hypotheses"]] == pytest.approx(scores)


def test_the_wrong_kind_of_model_is_refused(transcribe, model, sounds, tmp_path, capfd):
    code, _, errors = transcribe(sounds[0], model=TRANSLATOR)
    assert code == 1 and "reads text; use `pybeam translate`" in errors
    empty = tmp_path / "in.txt"
    empty.write_text("")
    assert main(["translate", "--model", str(model), "--input", str(empty)]) == 1
    assert "reads sound; use `pybeam transcribe`" in capfd.readouterr().err


def test_options_that_contradict_each_other(transcribe, sounds, tmp_path):
    code, _, errors = transcribe(sounds[0], "--input", tmp_path / "names.txt")
    assert code == 2 and "not both" in errors
