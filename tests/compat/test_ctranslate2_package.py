"""`pybeam.compat.ctranslate2` in the place of CTranslate2's Python package: names, defaults, results."""

from __future__ import annotations

import asyncio
import inspect
import logging

import numpy as np
import pytest
import torch

import pybeam
from pybeam.compat import ctranslate2 as ours
from pybeam.compat.ctranslate2.computing import Computing, dtype_of
from support.ctranslate2_folders import convert, tiny_generator, tiny_translator
from support.tiny_models import save_tiny_model

theirs = pytest.importorskip("ctranslate2")

# no token six times: hypotheses that tie at the edge of a beam differ from CPU to CPU
SOURCES = [["t5", "t6", "t7", "</s>"], ["t20"], ["t9", "t10", "</s>"], ["t30", "t8", "t21"] * 2]
PREFIXES = [["t12", "t5"], None, ["t7"], []]
CLOSE = 2e-4
LENGTHS = dict(max_decoding_length=12, min_decoding_length=2)


@pytest.fixture(scope="module")
def translators(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator")
    convert(tiny_translator("m2m_100-even"), folder)
    return ours.Translator(str(folder)), theirs.Translator(str(folder), compute_type="float32")


@pytest.fixture(scope="module")
def generators(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator")
    convert(tiny_generator("qwen3"), folder)
    return ours.Generator(str(folder)), theirs.Generator(str(folder), compute_type="float32")


def both(pair, method: str, *given, **options):
    return [getattr(one, method)(*given, **options) for one in pair]


def same(one, other) -> None:
    """Compare two results, or lists of them, whose numbers may differ a little."""
    assert len(one) == len(other)
    for mine, their in zip(one, other, strict=True):
        for name in ("hypotheses", "sequences", "sequences_ids", "tokens"):
            assert getattr(mine, name, None) == getattr(their, name, None)
        for name in ("scores", "log_probs"):
            found = getattr(mine, name, [])
            # CTranslate2's greedy scores differ as much from its own of given outputs
            assert found == pytest.approx(getattr(their, name, []), abs=CLOSE)


OPTIONS = {
    "defaults": {},
    "greedy": dict(beam_size=1),
    "a beam of five": dict(beam_size=5, num_hypotheses=3, length_penalty=0.6, patience=2),
    "penalties": dict(repetition_penalty=1.3, no_repeat_ngram_size=2, disable_unk=True),
    "no sequences": dict(suppress_sequences=[["t5"], ["t7", "t9"]]),
    "its end": dict(end_token=["t11", "</s>"], return_end_token=True),
    "greedy, its end": dict(end_token="t11", return_end_token=True, beam_size=1),
    "small batches": dict(max_batch_size=2, beam_size=3),
    "tokens": dict(max_batch_size=9, batch_type="tokens"),
    "short inputs": dict(max_input_length=3),
}


@pytest.mark.thinned(most=5)
@pytest.mark.parametrize("name", OPTIONS)
def test_translations_are_the_same(translators, name):
    options = {**LENGTHS, **OPTIONS[name]}
    same(*both(translators, "translate_batch", SOURCES, return_scores=True, **options))
    same(*both(translators, "translate_batch", SOURCES, PREFIXES, return_scores=True, **options))


def test_a_vocabulary_map_leaves_its_tokens(tmp_path):
    """Those of all sources of a batch, and of all prefixes."""
    convert(tiny_translator("m2m_100-even"), tmp_path)
    rules = [
        f"t{i}\t" + " ".join(f"t{5 + (7 * i + k) % 35}" for k in range(4)) for i in range(5, 31)
    ]
    (tmp_path / "vmap.txt").write_text(
        "\n".join([*rules, "t5 t6\tt22 t23", "\tt8"]) + "\n", "utf-8"
    )
    pair = ours.Translator(str(tmp_path)), theirs.Translator(str(tmp_path), compute_type="float32")
    options = dict(use_vmap=True, return_scores=True, num_hypotheses=2, **LENGTHS)
    for prefixes in (None, PREFIXES):
        mine, their = both(pair, "translate_batch", SOURCES, prefixes, **options)
        same(mine, their)
    assert mine != pair[0].translate_batch(SOURCES, PREFIXES, return_scores=True, **LENGTHS)
    (tmp_path / "vmap.txt").write_bytes(b"t5\tt6\nt6\t\xff\n")
    with pytest.raises(ValueError, match=r"vmap.txt, line 2: must be UTF-8"):
        ours.Translator(str(tmp_path)).translate_batch(SOURCES, use_vmap=True)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_attention_and_logits_are_the_same(translators, beam_size):
    lengths = dict(max_decoding_length=12, min_decoding_length=0)
    # in a batch, CTranslate2 gives some hypotheses the attention of others
    for source in SOURCES:
        options = dict(beam_size=beam_size, return_attention=True, **lengths)
        [one], [other] = both(translators, "translate_batch", [source], **options)
        np.testing.assert_allclose(one.attention[0], other.attention[0], atol=1e-4)
        options = dict(beam_size=1, return_logits_vocab=True, **lengths)
        [one], [other] = both(translators, "translate_batch", [source], **options)
        found, expected = ([np.array(step) for step in x.logits[0]] for x in (one, other))
        np.testing.assert_allclose(found, expected, atol=CLOSE)


def test_alternatives_are_the_same(translators):
    options = dict(num_hypotheses=4, return_alternatives=True, **LENGTHS)
    mine, their = both(translators, "translate_batch", SOURCES[:1], [["t12"]], **options)
    assert mine[0].hypotheses == their[0].hypotheses


def test_results_come_one_by_one(translators):
    options = dict(beam_size=3, max_batch_size=2, **LENGTHS)
    mine, their = both(translators, "translate_iterable", SOURCES, **options)
    assert inspect.isgenerator(mine)
    same(list(mine), list(their))
    mine, their = both(translators, "translate_batch", SOURCES, asynchronous=True, **LENGTHS)
    same([one.result() for one in mine], [one.result() for one in their])
    assert all(one.done() for one in mine)
    with pytest.raises(ValueError, match="length"):
        list(translators[0].translate_iterable(SOURCES, [["t5"]]))


def test_tokens_come_one_by_one(translators):
    for source in SOURCES:
        mine, their = both(translators, "generate_tokens", source, return_log_prob=True, **LENGTHS)
        steps = [list(mine), list(their)]
        for name in ("step", "batch_id", "hypothesis_id", "token_id", "token", "is_last"):
            assert [getattr(one, name) for one in steps[0]] == [
                getattr(one, name) for one in steps[1]
            ]
        found, expected = ([one.log_prob for one in line] for line in steps)
        assert found == pytest.approx(expected, abs=CLOSE)


def test_a_callback_stops_what_it_is_told_of(translators):
    told = []

    def stop(step) -> bool:
        told.append((step.batch_id, step.token))
        return step.batch_id != 1

    [*_] = results = translators[0].translate_batch(SOURCES, beam_size=1, callback=stop, **LENGTHS)
    assert [len(one.hypotheses[0]) for one in results if one is not results[1]] == [1, 1, 1]
    assert len(results[1].hypotheses[0]) > 1
    assert sum(i != 1 for i, _ in told) == len(SOURCES) - 1


def test_scores_are_the_same(translators, tmp_path):
    targets = [["t5", "t6"], ["t9"], [], ["t30", "t31", "t32"]]
    same(*both(translators, "score_batch", SOURCES, targets))
    same(*both(translators, "score_batch", SOURCES, targets, offset=1, max_batch_size=2))
    same(*both(translators, "score_batch", [[], []], [["t5"], []]))
    (tmp_path / "source").write_text("\n".join(map(" ".join, SOURCES)) + "\n")
    (tmp_path / "target").write_text("\n".join(map(" ".join, targets)) + "\n")
    paths = [str(tmp_path / name) for name in ("source", "target", "out")]
    stats = []
    lines = []
    for one in translators:
        stats.append(one.score_file(*paths, with_tokens_score=True))
        lines.append((tmp_path / "out").read_text().splitlines())
    assert [one.split(" ||| ")[1] for one in lines[0]] == [
        one.split(" ||| ")[1] for one in lines[1]
    ]
    assert (stats[0].num_tokens, stats[0].num_examples) == (
        stats[1].num_tokens,
        stats[1].num_examples,
    )


def test_files_are_translated_alike(translators, tmp_path):
    (tmp_path / "source").write_text("\n".join(map(" ".join, SOURCES)) + "\n")
    texts = []
    for one in translators:
        one.translate_file(str(tmp_path / "source"), str(tmp_path / "out"), beam_size=3, **LENGTHS)
        texts.append((tmp_path / "out").read_text())
    assert texts[0] == texts[1] and texts[0].count("\n") == len(SOURCES)


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(beam_size=4, num_hypotheses=2),
        dict(include_prompt_in_result=False, beam_size=2),
        dict(static_prompt=["t8", "t9"], include_prompt_in_result=False),
        dict(end_token="t7", return_end_token=True, min_length=3),
        dict(repetition_penalty=1.4),
    ],
)
def test_generations_are_the_same(generators, options):
    # prompts of one length: CTranslate2 forces what is longer than the shortest prompt of a batch
    prompts = [["<s>", "t5", "t6"], ["t9", "t10", "t11"]]
    same(*both(generators, "generate_batch", prompts, max_length=9, return_scores=True, **options))


def test_generators_score_stream_and_read_at_once(generators):
    lines = [["<s>", "t5", "t6", "</s>"], ["t9", "t10"], ["t9"]]
    same(*both(generators, "score_batch", lines))
    for flag in (False, True):
        mine, their = both(generators, "forward_batch", lines[:2], return_log_probs=flag)
        found, expected = np.array(mine), np.array(their)
        np.testing.assert_allclose(found[0], expected[0], atol=CLOSE)
        np.testing.assert_allclose(found[1, :2], expected[1, :2], atol=CLOSE)
    mine, their = both(generators, "generate_tokens", lines[0][:2], max_length=8)
    assert [one.token for one in mine] == [one.token for one in their]

    async def listen() -> list[str]:
        steps = generators[0].async_generate_tokens(lines[0][:2], max_length=8)
        return [one.token async for one in steps]

    expected = generators[1].generate_tokens(lines[0][:2], max_length=8)
    assert asyncio.run(listen()) == [one.token for one in expected]


def test_a_folder_of_transformers_gives_the_same(translators, tmp_path):
    """Tokens of a folder without a tokenizer are not known, so there must be one."""
    tiny_translator("m2m_100-even").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no vocabulary"):
        ours.Translator(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (dict(sampling_topk=0), "beam"),
        (dict(callback=print, beam_size=1, return_logits_vocab=True), "return_logits_vocab"),
    ],
)
def test_what_is_not_there_says_so(translators, options, problem):
    with pytest.raises(NotImplementedError, match=problem):
        translators[0].translate_batch(SOURCES, **options)


@pytest.mark.parametrize(
    "options",
    [
        dict(min_decoding_length=10, max_decoding_length=5),
        dict(num_hypotheses=3),
        dict(beam_size=0),
        dict(patience=0),
        dict(repetition_penalty=0),
        dict(prefix_bias_beta=1),
        dict(callback=print),
        dict(suppress_sequences=[["nothing"]]),
        dict(batch_type="words", max_batch_size=2),
    ],
)
def test_both_refuse_the_same(translators, options):
    for one in translators:
        with pytest.raises(ValueError):
            one.translate_batch(SOURCES, **options)


def test_a_model_is_loaded_as_it_was_asked_for(translators, generators, tmp_path):
    translator = ours.Translator(str(translators[0]._directory), inter_threads=2)
    assert (translator.device, translator.device_index) == ("cpu", [0])
    assert (translator.num_translators, translator.num_queued_batches) == (2, 0)
    assert translator.compute_type == "float32" and translator.model_is_loaded
    translator.unload_model()
    with pytest.raises(RuntimeError, match="unloaded"):
        translator.translate_batch(SOURCES)
    translator.load_model()
    same(*both((translator, translators[1]), "translate_batch", SOURCES, **LENGTHS))
    kinds = {"int8": "int8_float32", "int16": "float32", "auto": "int8_float32"}
    for given, found in kinds.items():
        assert (
            ours.Translator(str(translators[0]._directory), compute_type=given).compute_type
            == found
        )
    with pytest.raises(ValueError, match="compute type"):
        ours.Translator(str(translators[0]._directory), compute_type="float64")
    with pytest.raises(ValueError, match="device_index"):
        ours.Translator(str(translators[0]._directory), device_index=[0, 1])
    with pytest.raises(NotImplementedError, match="tensor_parallel"):
        ours.Translator(str(translators[0]._directory), tensor_parallel=True)
    with pytest.raises(RuntimeError, match="cannot be used"):
        ours.Translator(str(generators[0]._directory))
    with pytest.raises(RuntimeError, match="open file"):
        ours.Translator(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("int8", "float32"), ("int8_float16", "float16"), ("int8_bfloat16", "bfloat16")],
)
def test_gpus_compute_in_the_floats_beside_int8(asked, expected):
    assert (dtype_of("cuda", asked), dtype_of("cpu", asked)) == (expected, "int8")


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("compute_type", ["auto", "default"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int4])
def test_quantised_folders_stay_as_they_are(dtype, compute_type, tmp_path):
    save_tiny_model(tmp_path / "tiny", "m2m_100")
    pybeam.quantize(tmp_path / "tiny", tmp_path / "quantised", dtype=dtype)
    model = Computing.of("cpu", 0, compute_type).load(tmp_path / "quantised")
    assert model.weight_dtype == dtype


def test_files_may_come_from_memory(translators):
    folder = translators[0]._directory
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    translator = ours.Translator("in memory", files=files)
    same(*both((translator, translators[1]), "translate_batch", SOURCES, **LENGTHS))


def test_functions_of_the_package(translators, tmp_path):
    assert ours.contains_model(str(translators[0]._directory))
    assert not ours.contains_model(str(tmp_path))
    assert {"float32", "int8", "int8_float32"} <= ours.get_supported_compute_types("cpu")
    level = ours.get_log_level()
    ours.set_log_level(logging.ERROR)
    assert ours.get_log_level() == logging.ERROR
    ours.set_log_level(level)


def test_samples_follow_the_seed(translators):
    drawn = []
    for _ in range(2):
        ours.set_random_seed(3)
        drawn.append(
            translators[0].translate_batch(
                SOURCES,
                beam_size=1,
                sampling_topk=9,
                sampling_topp=0.9,
                num_hypotheses=3,
                return_scores=True,
                **LENGTHS,
            )
        )
    same(*drawn)
    assert all(len(one.hypotheses) == 3 for one in drawn[0])
    assert drawn[0][0].scores == sorted(drawn[0][0].scores, reverse=True)


def test_unknown_words_are_replaced(translators):
    options = dict(replace_unknowns=True, suppress_sequences=[[f"t{i}"] for i in range(4, 45)])
    same(*both(translators, "translate_batch", SOURCES[:1], beam_size=2, **options, **LENGTHS))
