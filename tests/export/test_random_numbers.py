"""One graph of each rule, with random sources, prefixes and numbers: it finds what the engine finds."""

import dataclasses
import json
import random

import pytest

import pybeam
from pybeam import compat, processors, scoring, stopping
from pybeam.export import export_onnx
from support.onnx_search import assert_agree, hypotheses, load_graph, numbers_of
from support.tiny_models import save_tiny_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

EOS, OTHER_EOS, TOKENS = 9, 30, 45
EAGER = [processors.token_penalty(EOS, -2.5), processors.eos_penalty(0.6)]


def eager(algorithm):
    """The algorithm with hypotheses that end early."""
    return dataclasses.replace(algorithm, processors=(*algorithm.processors, *EAGER))


RULES = {
    "held": pybeam.variable_beam(4, 2.0, 3, n_best=2, min_length=1, processors=EAGER),
    "held, local": pybeam.variable_beam(4, None, None, 0.1, 0.1, n_best=2, processors=EAGER),
    "held, ties stay": pybeam.variable_beam(4, 2.0, 3, 0.1, 0.1, True, n_best=2, processors=EAGER),
    "held, the best": pybeam.variable_beam(
        4, 2.0, n_best=2, stop=stopping.Stop(patience=1.5), processors=EAGER
    ),
    "held, optimal": pybeam.variable_beam(
        4, n_best=2, stop=stopping.optimal(), scoring=scoring.power(-0.8), processors=EAGER
    ),
    "refilling": pybeam.fixed_beam(4, n_best=2, min_length=1, processors=EAGER),
    "refilling, the best": pybeam.fixed_beam(
        4, n_best=2, stop=stopping.Stop(patience=1.5), processors=EAGER
    ),
    "shrinking": pybeam.shrinking_beam(
        4, 2.0, n_best=2, ended_only=False, stop=stopping.top_finished(), processors=EAGER
    ),
    "optimal": pybeam.optimal_beam(
        4, n_best=2, scoring=scoring.power(0.5), ended_only=False, processors=EAGER
    ),
    "huang": pybeam.huang_beam(4, 0.3, 0.9, n_best=2, processors=EAGER),
    "ctranslate2": eager(
        compat.ctranslate2.beam_search(4, num_hypotheses=2, patience=1.5, no_repeat_ngram_size=2)
    ),
    "ctranslate2, raw": eager(
        compat.ctranslate2.beam_search(4, num_hypotheses=2, length_penalty=0)
    ),
    "huggingface": compat.huggingface.beam_search(4, num_return_sequences=2, length_penalty=0.7),
    "huggingface, never": compat.huggingface.beam_search(
        4, early_stopping="never", num_return_sequences=2, forced_eos=True
    ),
    "fairseq": compat.fairseq.beam_search(4, nbest=2, min_len=1, no_repeat_ngram_size=2),
    "opennmt": compat.opennmt.beam_search(4, n_best=2, block_ngram_repeat=2),
    "fireredasr": compat.fireredasr.beam_search(
        4, nbest=2, length_penalty=0.6, eos_penalty=0.6, decode_max_len=20
    ),
}
QUICK = ("held", "ctranslate2", "huggingface")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pybeam.models.Transformer:
    directory = tmp_path_factory.mktemp("model")
    save_tiny_model(directory, "m2m_100", seed=3)
    ids = {"decoder_start_token_id": 2, "eos_token_id": EOS}
    (directory / "generation_config.json").write_text(json.dumps(ids))
    return pybeam.load_model(directory, device="cpu")


def draw(base, rng: random.Random):
    """Return the algorithm with other numbers, and the inputs that say so."""
    width = rng.randint(2, 9)
    given = {"n_best": rng.randint(1, width)}
    if base.min_length:
        given["min_length"] = rng.randint(0, 3)
    of_pruning = dict(
        threshold=rng.uniform(0.3, 4),
        max_candidates=rng.randint(1, width),
        relative_threshold=rng.uniform(0.01, 0.5),
        local_threshold=rng.uniform(0.01, 0.5),
    )
    given |= {
        name: number
        for name, number in of_pruning.items()
        if getattr(base.pruning, name) is not None
    }
    numbers = {name: given[name] for name in ("n_best", "min_length") if name in given}
    pruning = {name: given[name] for name in of_pruning if name in given}
    # some recipes stop otherwise where the penalty is 0
    alpha = base.scoring.alpha * rng.uniform(0.2, 1.5)
    algorithm = dataclasses.replace(
        base,
        width=width,
        max_length=rng.randint(5, 12),
        scoring=dataclasses.replace(base.scoring, alpha=alpha),
        pruning=dataclasses.replace(base.pruning, **pruning),
        **numbers,
    )
    return algorithm, given


def sentence(rng: random.Random, longest: int, least: int = 0) -> list[int]:
    words = [token for token in range(3, TOKENS) if token not in (EOS, OTHER_EOS)]
    return rng.choices(words, k=rng.randint(least, longest))


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_eos", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RULES],
)
def test_any_numbers(model, name, num_eos, tmp_path):
    base, rng = RULES[name], random.Random(len(name))
    if base.prefix.leading_eos and num_eos > 1:
        pytest.skip("CTranslate2's models have one token that ends a hypothesis")
    model.other_eos_ids = (OTHER_EOS,) * (num_eos - 1)
    export_onnx(model, tmp_path, base)
    graph = load_graph(tmp_path)
    for _ in range(12):
        algorithm, given = draw(base, rng)
        sources = [sentence(rng, 9, least=1) for _ in range(4)]
        prefixes = [rng.choice([[], sentence(rng, 4)]) for _ in sources]
        requests = [
            pybeam.Request(source, prefix=prefix)
            for source, prefix in zip(sources, prefixes, strict=True)
        ]
        expected = pybeam.Decoder(model, algorithm).decode(requests)
        numbers = numbers_of(algorithm, model)
        assert_agree(hypotheses(graph, sources, *numbers, prefix=prefixes, **given), expected)
