"""The example models in int8 are as good as in float32, by their own measures, within noise.

So are transformers that keep keys and values in bfloat16, as those in int8 do.
"""

from __future__ import annotations

import shutil

import pytest

import pybeam
from examples.semantic_parsing import questions
from examples.speech.spoken_numbers import recordings
from pybeam.speech import load_feature_extractor, read_wav
from support.example_model import CORPUS, lines_of
from support.paths import DATA, MODEL, ROOT

SPEECH = ROOT / "examples" / "models" / "spoken-numbers-en"
PARSERS = ROOT / "examples" / "semantic_parsing"
PATHS = {"geo": "geo/geography-logic.json", "atis": "atis/atis-logic.txt"}
INT8 = dict(dtype="int8")
# options of `load_model`, by what becomes smaller
SMALLER = {
    "int8": INT8,
    "cache": dict(dtype="float32", cache_dtype="bfloat16"),
    "matrices": dict(dtype="int8", cache_dtype="float32"),
}
SEARCH = pybeam.fixed_beam(4, max_length=60, scoring=pybeam.scoring.power(1.0))


def outputs_of(directory, requests, algorithm=SEARCH, smaller=INT8) -> list[list[list[int]]]:
    """The best outputs of the model in float32, and of the smaller one."""
    return [
        [
            result.hypotheses[0].tokens
            for result in pybeam.Decoder(
                pybeam.load_model(directory, device="cpu", **options), algorithm, pybeam.Batch(32)
            ).decode(requests)
        ]
        for options in (dict(dtype="float32"), smaller)
    ]


def share_of_equals(outputs) -> float:
    return sum(a == b for a, b in zip(*outputs, strict=True)) / len(outputs[0])


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("smaller", SMALLER)
def test_log_probs_of_the_references_are_float32s_within_a_hundredth(smaller):
    """What BLEU shows only on thousands of lines: how likely the model finds what people wrote."""
    tokenizer = pybeam.load_tokenizer(MODEL)
    sources = lines_of("dev")[:200:4]
    lines = (CORPUS / "dev.en").read_text("utf-8").splitlines()[:200:4]
    targets = [ids[:-1] for ids in tokenizer.encode(lines)]
    per_token = []
    for options in (dict(dtype="float32"), SMALLER[smaller]):
        model = pybeam.load_model(MODEL, device="cpu", **options)
        results = pybeam.Decoder(model, pybeam.greedy(), pybeam.Batch(16)).score(sources, targets)
        total = sum(result.hypotheses[0].score for result in results)
        per_token.append(total / sum(len(target) + 1 for target in targets))
    assert per_token[0] != per_token[1]
    assert per_token[1] == pytest.approx(per_token[0], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("smaller", "step"),
    [("int8", 12), *(pytest.param(name, 3, marks=pytest.mark.slow) for name in SMALLER)],
)
def test_bleu(smaller, step):
    sacrebleu = pytest.importorskip("sacrebleu")
    tokenizer, sources = pybeam.load_tokenizer(MODEL), lines_of("dev")[::step]
    references = (CORPUS / "dev.en").read_text("utf-8").splitlines()[::step]
    algorithm = pybeam.variable_beam(5, 1.1, 3, max_length=128, scoring=pybeam.scoring.power(1.0))
    outputs = outputs_of(MODEL, sources, algorithm, SMALLER[smaller])
    bleu = [
        sacrebleu.corpus_bleu([tokenizer.decode(one) for one in own], [references]).score
        for own in outputs
    ]
    # the fewer the lines, the more one other word counts
    assert bleu[1] >= bleu[0] - 0.05 * step - 0.2
    assert share_of_equals(outputs) >= 0.7


@pytest.mark.slow
@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PATHS)
def test_exact_match_of_logical_forms(name, step):
    if not (DATA / PATHS[name]).exists():
        pytest.skip(f"needs shared/data/{PATHS[name]} beside the checkout")
    directory = PARSERS / name
    test = questions.load(name, DATA).test[::step]
    tokenizer = pybeam.load_tokenizer(directory)
    requests = [tokenizer.encode(" ".join(question.text)) for question in test]
    outputs = outputs_of(directory, requests, pybeam.fixed_beam(4, max_length=150))
    right = [
        sum(
            tokenizer.decode(tokens) == " ".join(question.form)
            for tokens, question in zip(own, test, strict=True)
        )
        for own in outputs
    ]
    assert right[1] >= right[0] - max(1, len(test) // 100)
    assert share_of_equals(outputs) >= 0.96


def test_the_example_recordings_are_understood():
    pytest.importorskip("kaldi_native_fbank", reason="needs `pip install 'pybeam-search[speech]'`")
    extract, tokenizer = load_feature_extractor(SPEECH), pybeam.load_tokenizer(SPEECH)
    sounds = [ROOT / "examples" / "speech" / f"{name}.wav" for name in ("first", "second")]
    sources = [extract(read_wav(path, extract.sampling_rate)) for path in sounds]
    _, found = outputs_of(SPEECH, sources)
    assert [tokenizer.decode(tokens) for tokens in found] == ["four zero seven", "nine two"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs `apt-get install espeak-ng`")
def test_word_errors_of_spoken_numbers():
    jiwer = pytest.importorskip("jiwer", reason="needs `pip install jiwer`")
    pytest.importorskip("kaldi_native_fbank", reason="needs `pip install 'pybeam-search[speech]'`")
    extract, tokenizer = load_feature_extractor(SPEECH), pybeam.load_tokenizer(SPEECH)
    pairs = list(recordings("test", 100, seed=2, noise_db=(0.0, 20.0)))
    outputs = outputs_of(SPEECH, [extract(samples) for samples, _ in pairs])
    texts = [text for _, text in pairs]
    errors = [jiwer.wer(texts, [tokenizer.decode(one) for one in own]) for own in outputs]
    assert errors[1] <= errors[0] + 0.01
    assert share_of_equals(outputs) >= 0.96
