"""`search.onnx` with every rule that a graph can express finds what the engine finds."""

import json
from collections import Counter
from pathlib import Path

import pytest

import pybeam
from pybeam import compat, processors, scoring, stopping
from pybeam.export import export_onnx
from support.onnx_search import assert_agree, hypotheses, load_graph, numbers_of
from support.speech_models import random_features, save_tiny_speech_model
from support.tiny_models import save_tiny_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

SOURCES = [[5, 9, 30, 2], [7], [11, 3, 4, 30, 31, 32, 33, 34, 2], [8, 8, 8, 2, 6], [21, 40]]
SHORT = dict(max_length=12)
BANS = [
    processors.temperature(1.3),
    processors.repetition_penalty(1.4),
    processors.no_repeat_ngram(2),
    processors.suppress_tokens([11, 4]),
    processors.suppress_sequences([[9], [7, 8], [30, 31, 32]]),
    processors.min_length(2),
]
SEARCHES = {
    "greedy": pybeam.greedy(**SHORT),
    "fixed": pybeam.fixed_beam(4, n_best=3, scoring=scoring.power(0.7), **SHORT),
    "fixed, patience": pybeam.fixed_beam(
        4, n_best=2, stop=stopping.Stop(patience=1.6), scoring=scoring.power(1.0), **SHORT
    ),
    "fixed, to its end": pybeam.fixed_beam(4, n_best=4, stop=stopping.end(), **SHORT),
    "fixed, top": pybeam.fixed_beam(4, n_best=2, stop=stopping.top_finished(), **SHORT),
    "fixed, ended only": pybeam.fixed_beam(4, n_best=4, ended_only=True, max_length=5),
    "fixed, not before": pybeam.fixed_beam(4, n_best=2, min_length=3, **SHORT),
    "variable": pybeam.variable_beam(5, n_best=4, scoring=scoring.gnmt(0.8), **SHORT),
    "variable, raw": pybeam.variable_beam(5, n_best=2, **SHORT),
    "variable, pruned": pybeam.variable_beam(
        8, 2.0, 3, n_best=3, scoring=scoring.power(0.6), **SHORT
    ),
    "variable, ratios": pybeam.variable_beam(
        8, None, 4, 0.05, 0.02, n_best=3, min_length=2, **SHORT
    ),
    "variable, patience": pybeam.variable_beam(
        5, 3.0, n_best=2, stop=stopping.Stop(patience=2), **SHORT
    ),
    "variable, optimal": pybeam.variable_beam(5, n_best=2, stop=stopping.optimal(), **SHORT),
    "shrinking": pybeam.shrinking_beam(5, 3.0, n_best=3, **SHORT),
    "shrinking, cut too": pybeam.shrinking_beam(
        5, n_best=3, ended_only=False, stop=stopping.top_finished(), max_length=6
    ),
    "optimal": pybeam.optimal_beam(4, 0.5, 1.5, n_best=2, **SHORT),
    "huang": pybeam.huang_beam(4, 0.4, n_best=2, **SHORT),
    "huang, counted": pybeam.huang_beam(4, n_best=4, stop=stopping.count(), **SHORT),
    "processors": pybeam.fixed_beam(4, n_best=3, processors=BANS, **SHORT),
    "processors, held": pybeam.variable_beam(
        5,
        3.0,
        n_best=3,
        processors=[*BANS[:2], processors.eos_penalty(0.8), processors.token_penalty(9, 0.7)],
        **SHORT,
    ),
    "fireredasr": compat.fireredasr.beam_search(
        5, nbest=4, softmax_smoothing=1.25, length_penalty=0.6, eos_penalty=0.9
    ),
    "fireredasr, plain": compat.fireredasr.beam_search(4, nbest=2, decode_max_len=9),
    "ctranslate2": compat.ctranslate2.beam_search(
        4,
        patience=2,
        num_hypotheses=3,
        repetition_penalty=1.2,
        no_repeat_ngram_size=3,
        suppress_sequences=[[8], [9, 30]],
        disable_unk=True,
        unk_id=3,
        max_decoding_length=12,
    ),
    "ctranslate2, raw": compat.ctranslate2.beam_search(
        4, num_hypotheses=2, length_penalty=0, max_decoding_length=12, min_decoding_length=2
    ),
    "huggingface": compat.huggingface.beam_search(
        4,
        num_return_sequences=3,
        max_new_tokens=12,
        min_new_tokens=2,
        repetition_penalty=1.2,
        no_repeat_ngram_size=2,
        bad_words_ids=[[8], [9, 30]],
        suppress_tokens=[11],
        begin_suppress_tokens=[7],
        exponential_decay_length_penalty=(3, 1.2),
    ),
    "huggingface, early": compat.huggingface.beam_search(
        4, early_stopping=True, max_new_tokens=10, forced_bos_token_id=6, forced_eos=True
    ),
    "huggingface, never": compat.huggingface.beam_search(
        4, early_stopping="never", num_return_sequences=2, max_new_tokens=10, length_penalty=0.8
    ),
    "fairseq": compat.fairseq.beam_search(
        4,
        nbest=4,
        max_len_a=0.5,
        max_len_b=4,
        unkpen=0.5,
        temperature=1.2,
        pad_id=1,
        unk_id=3,
        no_repeat_ngram_size=2,
    ),
    "opennmt": compat.opennmt.beam_search(4, n_best=3, max_length=12, block_ngram_repeat=2),
    "opennmt, wu": compat.opennmt.beam_search(4, length_penalty="wu", alpha=0.9, max_length=12),
}
# their tokens are those of the translator, which has more of them
OF_TRANSLATOR = ("processors", "ctranslate2", "huggingface", "huggingface, early")
QUICK = ("variable, pruned", "optimal", "fireredasr", "ctranslate2", "huggingface", "opennmt")


def slow_but(quick, names) -> list:
    """The names, of which `make test` tries few."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> pybeam.models.Transformer:
    """A tiny model whose EOS is a token that it likes."""
    directory = tmp_path_factory.mktemp("translator")
    save_tiny_model(directory, "m2m_100")
    model = pybeam.load_model(directory, device="cpu")
    outputs = pybeam.Decoder(model, pybeam.greedy(max_length=8)).decode(SOURCES)
    liked = Counter(token for result in outputs for token in result.hypotheses[0].tokens)
    eos = {"eos_token_id": liked.most_common(1)[0][0]}
    path = directory / "generation_config.json"
    path.write_text(json.dumps({"decoder_start_token_id": model.start_id} | eos))
    return pybeam.load_model(directory, device="cpu")


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory) -> pybeam.models.Transformer:
    directory = tmp_path_factory.mktemp("recogniser")
    save_tiny_speech_model(directory, eos_nats=1.5)
    return pybeam.load_model(directory, device="cpu")


def exported(model, directory: Path, algorithm=None):
    export_onnx(model, directory, algorithm)
    onnx.checker.check_model(directory / "search.onnx", full_check=True)
    return load_graph(directory)


def assert_finds(graph, model, algorithm, sources, behind=0, prefixes=None, **more) -> list:
    """Check that the graph finds what the engine finds, for all sources at once and for some alone."""
    prefixes = prefixes or [[] for _ in sources]
    requests = [
        pybeam.Request(source, prefix=prefix)
        for source, prefix in zip(sources, prefixes, strict=True)
    ]
    expected = pybeam.Decoder(model, algorithm, pybeam.Fifo(3)).decode(requests)
    numbers = numbers_of(algorithm, model)
    if any(prefixes):
        more["prefix"] = prefixes
    found = hypotheses(graph, sources, *numbers, behind, **more)
    assert_agree(found, expected)
    for i in (0, 1):
        own = more | ({"prefix": prefixes[i : i + 1]} if "prefix" in more else {})
        alone = hypotheses(graph, sources[i : i + 1], *numbers, **own)
        assert_agree(alone, expected[i : i + 1])
    return expected


def test_no_name_comes_twice(translator, tmp_path):
    """In the loop neither: tools that change graphs make new names of those of nodes."""
    export_onnx(translator, tmp_path, SEARCHES["fireredasr"])
    names = []
    graphs = [onnx.load(tmp_path / "search.onnx").graph]
    while graphs:
        for node in graphs.pop().node:
            names += [node.name, *node.output]
            graphs += [one.g for one in node.attribute if one.type == onnx.AttributeProto.GRAPH]
    assert len(set(names)) == len(names)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", slow_but(QUICK, SEARCHES))
def test_every_rule_of_a_translator(translator, name, tmp_path):
    algorithm = SEARCHES[name]
    graph = exported(translator, tmp_path, algorithm)
    expected = assert_finds(graph, translator, algorithm, SOURCES)
    assert any(h.ended for result in expected for h in result.hypotheses)


RECOGNISED = [name for name in SEARCHES if name not in OF_TRANSLATOR]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", slow_but(("fireredasr", "variable, pruned"), RECOGNISED))
def test_every_rule_of_a_recogniser(recogniser, name, tmp_path):
    algorithm = SEARCHES[name]
    graph = exported(recogniser, tmp_path, algorithm)
    assert_finds(graph, recogniser, algorithm, random_features(5), behind=float("nan"))
