"""Callers of `search.onnx` may give numbers, prefixes or nothing. Some algorithms cannot be a graph."""

import dataclasses
import json

import pytest
import torch

import pybeam
from pybeam import compat, processors, scoring
from pybeam.cli import main
from pybeam.export import export_onnx
from pybeam.speech import load_transcription
from support.onnx_search import assert_agree, hypotheses, load_graph, numbers_of
from support.paths import MODEL
from support.speech_models import random_features, save_tiny_whisper
from support.tiny_models import save_tiny_model, tiny_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

SOURCES = [[5, 9, 30, 2], [7], [11, 3, 4, 30, 31, 32, 33, 34, 2], [8, 8, 8, 2, 6], [21, 40]]
PREFIXES = [[12], [], [8, 31, 4], [6, 6], [40]]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pybeam.models.Transformer:
    """A tiny model with two tokens that end a hypothesis."""
    directory = tmp_path_factory.mktemp("model")
    save_tiny_model(directory, "m2m_100")
    ends = {"decoder_start_token_id": 2, "eos_token_id": 9}
    (directory / "generation_config.json").write_text(json.dumps(ends))
    model = pybeam.load_model(directory, device="cpu")
    model.other_eos_ids = (30,)
    return model


def graph_of(model, directory, algorithm=None):
    export_onnx(model, directory, algorithm)
    return load_graph(directory)


def decoded(model, algorithm, sources, prefixes=None) -> list:
    prefixes = prefixes or [[] for _ in sources]
    requests = map(pybeam.Request, sources)
    pairs = zip(requests, prefixes, strict=True)
    requests = [dataclasses.replace(one, prefix=prefix) for one, prefix in pairs]
    return pybeam.Decoder(model, algorithm, pybeam.Fifo(3)).decode(requests)


def test_numbers_are_inputs(model, tmp_path):
    """One graph is the same rule with any numbers; what is left out has the value of the export."""
    first = pybeam.variable_beam(
        6,
        3.0,
        4,
        0.02,
        n_best=2,
        min_length=2,
        max_length=12,
        processors=[processors.temperature(1.2), processors.eos_penalty(0.9)],
    )
    graph = graph_of(model, tmp_path, first)
    required = ["source", "source_length", "width", "max_length", "length_penalty"]
    assert [one.name for one in graph.get_inputs()] == required
    optional = {one.name for one in graph.get_overridable_initializers()}
    assert optional == {
        *("prefix", "n_best", "min_length", "threshold", "relative_threshold", "max_candidates"),
        *("temperature", "eos_penalty"),
    }
    facts = {"width": "6", "max_length": "12", "length_penalty": "0.0"}
    assert graph.get_modelmeta().custom_metadata_map == facts
    assert_agree(hypotheses(graph, SOURCES, 6, 12, 0.0), decoded(model, first, SOURCES))
    other = pybeam.variable_beam(
        9,
        1.5,
        2,
        0.1,
        n_best=5,
        min_length=1,
        max_length=7,
        scoring=scoring.power(0.8),
        processors=[processors.temperature(0.8), processors.eos_penalty(0.7)],
    )
    given = dict(n_best=5, min_length=1, threshold=1.5, relative_threshold=0.1, max_candidates=2)
    given |= dict(temperature=0.8, eos_penalty=0.7)
    found = hypotheses(graph, SOURCES, 9, 7, 0.8, **given)
    assert_agree(found, decoded(model, other, SOURCES))


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    "algorithm",
    [
        pybeam.fixed_beam(
            4,
            n_best=3,
            max_length=9,
            processors=[
                processors.no_repeat_ngram(2),
                processors.suppress_tokens_at_start([31], skips=2),
                processors.force_eos(is_scored=False),
                processors.eos_growth(1, 1.1),
            ],
        ),
        pybeam.variable_beam(5, 2.5, n_best=3, max_length=9, min_length=2),
        compat.ctranslate2.beam_search(
            4, num_hypotheses=3, max_decoding_length=9, min_decoding_length=4
        ),
        compat.huggingface.beam_search(4, max_new_tokens=9, forced_bos_token_id=7),
        pybeam.fixed_beam(3, n_best=3),
    ],
    ids=["fixed", "variable", "ctranslate2", "huggingface", "to the last position"],
)
def test_prefixes_of_any_length(model, algorithm, tmp_path):
    """Those of a batch may differ, and one may serve all."""
    if algorithm.prefix.leading_eos:
        model = pybeam.load_model(model.config.path.parent, device="cpu")
        model.other_eos_ids = ()
    graph = graph_of(model, tmp_path, algorithm)
    numbers = numbers_of(algorithm, model)
    for prefixes in (PREFIXES, [[] for _ in SOURCES]):
        expected = decoded(model, algorithm, SOURCES, prefixes)
        assert_agree(hypotheses(graph, SOURCES, *numbers, prefix=prefixes), expected)
    expected = decoded(model, algorithm, SOURCES, [[6, 40]] * len(SOURCES))
    assert_agree(hypotheses(graph, SOURCES, *numbers, prefix=[[6, 40]]), expected)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    "algorithm",
    [
        None,
        pybeam.variable_beam(5, 3.0, n_best=2, max_length=10, scoring=scoring.power(1.0)),
        compat.fireredasr.beam_search(4, nbest=3, length_penalty=0.6),
    ],
    ids=["plain", "variable", "fireredasr"],
)
def test_whisper(algorithm, tmp_path):
    """Its outputs begin with a prefix, and the plain search never writes what the files suppress."""
    save_tiny_whisper(tmp_path / "original")
    model = pybeam.load_model(tmp_path / "original", device="cpu")
    asked = load_transcription(tmp_path / "original", "en")
    own = algorithm or pybeam.fixed_beam(4, n_best=4, max_length=10)
    own = dataclasses.replace(own, processors=(*own.processors, *asked.processors))
    graph = graph_of(model, tmp_path / "onnx", None if algorithm is None else own)
    assert [one.name for one in graph.get_inputs()][-1] == "prefix"
    sources = random_features(6)
    prefixes = [[*asked.prefix, *more] for more in ([], [3], [], [4, 6], [], [1])]
    numbers = numbers_of(own, model)
    found = hypotheses(graph, sources, *numbers, float("nan"), prefix=prefixes)
    assert_agree(found, decoded(model, own, sources, prefixes))
    assert_agree(
        hypotheses(graph, sources, *numbers, prefix=[list(asked.prefix)]),
        decoded(model, own, sources, [asked.prefix] * 6),
    )


@pytest.mark.slow
def test_ties_go_to_the_earlier(tmp_path):
    """Tokens in pairs that no number tells apart: the same hypotheses in the same order."""
    original = tiny_model("m2m_100", seed=4)
    with torch.no_grad():
        table = original.model.shared.weight
        table[5::2] = table[4:-1:2]
        for layer in original.model.decoder.layers:
            # earlier tokens matter nothing, so that the order of sums does not either
            layer.self_attn.out_proj.weight.zero_()
    original.save_pretrained(tmp_path / "original")
    model = pybeam.load_model(tmp_path / "original", device="cpu")
    for i, algorithm in enumerate(
        (
            pybeam.fixed_beam(6, n_best=6, max_length=7),
            pybeam.variable_beam(6, 4.0, n_best=6, max_length=7, scoring=scoring.power(0.5)),
            pybeam.optimal_beam(6, n_best=6, max_length=7, ended_only=False),
        )
    ):
        graph = graph_of(model, tmp_path / str(i), algorithm)
        expected = decoded(model, algorithm, SOURCES)
        finals = [h.final_score for result in expected for h in result.hypotheses]
        assert len(set(finals)) < len(finals)
        found = hypotheses(graph, SOURCES, *numbers_of(algorithm, model))
        assert [[tokens for tokens, *_ in one] for one in found] == [
            [h.tokens for h in result.hypotheses] for result in expected
        ]


@pytest.mark.slow
def test_the_end_at_once(model, tmp_path):
    """A search of one token; one that a model ends in its first step; one that may not end."""
    algorithm = compat.fireredasr.beam_search(3, nbest=3, eos_penalty=0.01, length_penalty=0.5)
    graph = graph_of(model, tmp_path / "eager", algorithm)
    expected = decoded(model, algorithm, SOURCES)
    assert any(h.ended and not h.tokens for result in expected for h in result.hypotheses)
    assert_agree(hypotheses(graph, SOURCES, *numbers_of(algorithm, model)), expected)
    for name, algorithm in (
        ("one", pybeam.variable_beam(4, n_best=4, max_length=1)),
        (
            "none",
            pybeam.fixed_beam(
                3,
                n_best=3,
                max_length=4,
                ended_only=True,
                processors=[processors.suppress_tokens([9, 30])],
            ),
        ),
        (
            "nothing",
            pybeam.variable_beam(
                3,
                n_best=3,
                max_length=4,
                processors=[processors.suppress_tokens(range(45), stage="log_probs")],
            ),
        ),
    ):
        graph = graph_of(model, tmp_path / name, algorithm)
        expected = decoded(model, algorithm, SOURCES)
        assert_agree(hypotheses(graph, SOURCES, *numbers_of(algorithm, model)), expected)


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (pybeam.fixed_beam([2, 4]), "widths by step"),
        (pybeam.diverse(pybeam.fixed_beam(2), 2, 0.5), "groups"),
        (pybeam.jacobi(), "tokens guessed ahead"),
        (pybeam.stochastic_beam(3, 1), "samples"),
        (pybeam.fixed_beam(2, scoring=scoring.power(1.0, 0.2)), "coverage"),
        (pybeam.greedy(processors=[processors.allowed_sequences([[5]])]), "Constraint"),
        (
            pybeam.greedy(processors=[processors.temperature(2.0), processors.temperature(3.0)]),
            "one processor at most that takes `temperature`",
        ),
        (pybeam.greedy(processors=[processors.suppress_tokens([45])]), "vocabulary, 0 to 44"),
    ],
)
def test_what_cannot_be_a_graph_is_refused_by_name(model, algorithm, problem, tmp_path):
    with pytest.raises(ValueError, match=problem):
        export_onnx(model, tmp_path / "onnx", algorithm)
    assert not (tmp_path / "onnx").exists()


def test_what_is_no_algorithm_is_refused(model, tmp_path):
    with pytest.raises(TypeError, match="`algorithm` must come from a function such as"):
        export_onnx(model, tmp_path / "onnx", pybeam.fixed_beam)


@pytest.mark.slow
def test_command_line(tmp_path, capfd):
    """Options of the search become the graph's; what no graph has is refused by its option."""
    command = ["export-onnx", "--model", str(MODEL), "--output", str(tmp_path)]
    options = ["--algorithm", "variable", "--width", "7", "--threshold", "1.6", "--n-best", "2"]
    assert main([*command, *options, "--length-penalty", "0.5", "--max-length", "30"]) == 0
    graph = load_graph(tmp_path)
    facts = {"width": "7", "max_length": "30", "length_penalty": "0.5"}
    assert graph.get_modelmeta().custom_metadata_map == facts
    model, tokenizer = pybeam.load_model(MODEL, device="cpu"), pybeam.load_tokenizer(MODEL)
    algorithm = pybeam.variable_beam(7, 1.6, n_best=2, scoring=scoring.power(0.5), max_length=30)
    sources = [tokenizer.encode(line) for line in ("Jesús lloró.", "Y dijo Dios: Sea la luz.")]
    assert_agree(hypotheses(graph, sources, 7, 30, 0.5), decoded(model, algorithm, sources))
    assert main([*command, "--recipe", "ctranslate2", "--width", "3", "--no-unk"]) == 0
    algorithm = compat.ctranslate2.beam_search(3, disable_unk=True, unk_id=tokenizer.unk_id)
    found = hypotheses(load_graph(tmp_path), sources, *numbers_of(algorithm, model))
    assert_agree(found, decoded(model, algorithm, sources))
    capfd.readouterr()
    assert main([*command, "--algorithm", "jacobi"]) == 1
    assert "--algorithm must be one that a graph can express" in capfd.readouterr().err
