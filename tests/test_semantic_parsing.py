"""The example models of logical forms: what they were recorded to get right, and the laws of search."""

from pathlib import Path

import pytest

import pybeam
from examples.semantic_parsing import questions
from test_device_loop import assert_alike

EXAMPLES = Path(__file__).parents[1] / "examples" / "semantic_parsing"
DATA = Path(__file__).parents[2] / "shared" / "data"
ALGORITHM = pybeam.variable_beam(10, 10.0, 3, n_best=10, max_length=150)
# questions of the test set: the right form, and whether the model gives it
RECORDED = {
    "geo": [
        (
            "give me the number of rivers in var0",
            "( A , _count ( B , ( _river ( B ) , _loc ( B , C ) , _const ( C , _stateid ( var0 ) ) ) , A ) )",
            True,
        ),
        (
            "which states does the var0 run through",
            "( A , ( _state ( A ) , _const ( B , _riverid ( var0 ) ) , _traverse ( B , A ) ) )",
            True,
        ),
        (
            "what is the capital of the state with the largest population density",
            "( A , ( _capital ( A ) , _loc ( A , B ) , "
            "_largest ( C , ( _state ( B ) , _density ( B , C ) ) ) ) )",
            True,
        ),
        (
            "which rivers do not run through var0",
            "( A , ( _river ( A ) , \\+ ( _traverse ( A , B ) , _const ( B , _stateid ( var0 ) ) ) ) )",
            True,
        ),
        (
            "what is the population of var0 city",
            "( A , ( _population ( B , A ) , _const ( B , _cityid ( var0 , _ ) ) ) )",
            False,
        ),
        (
            "what state has the largest capital",
            "( A , ( _state ( A ) , _loc ( B , A ) , _largest ( B , _capital ( B ) ) ) )",
            False,
        ),
    ],
    "atis": [
        (
            "does continental fly from boston to san francisco",
            "( lambda $0 e ( and ( flight $0 ) ( airline $0 co : al ) ( from $0 boston : ci ) "
            "( to $0 san_francisco : ci ) ) )",
            True,
        ),
        ("what is fare code qw", "qw : fb", True),
        (
            "what are the cheapest flights from pittsburgh to atlanta",
            "( argmin $0 ( and ( flight $0 ) ( from $0 pittsburgh : ci ) ( to $0 atlanta : ci ) ) "
            "( fare $0 ) )",
            True,
        ),
        (
            "what is the first class fare from indianapolis to orlando",
            "( lambda $0 e ( exists $1 ( and ( class_type $1 first : cl ) ( from $1 indianapolis : ci ) "
            "( to $1 orlando : ci ) ( = ( fare $1 ) $0 ) ) ) )",
            True,
        ),
        ("what does d/s stand for for meals", "d_s : rc", False),
    ],
}


@pytest.mark.parametrize("name", RECORDED)
def test_the_weights_give_the_recorded_exact_matches(name):
    directory = EXAMPLES / name
    model, tokenizer = pybeam.load_model(directory, device="cpu"), pybeam.load_tokenizer(directory)
    sources = [tokenizer.encode(text) for text, _, _ in RECORDED[name]]
    found = []
    for schedule in (pybeam.Batch(1), pybeam.Streaming(2, row_budget=30), pybeam.Fifo(4)):
        found.append(pybeam.Decoder(model, ALGORITHM, schedule).decode(sources, on_error="raise"))
        assert_alike(found[-1], found[0])
    for (text, form, is_exact), result in zip(RECORDED[name], found[0], strict=True):
        written = tokenizer.decode(result.hypotheses[0].tokens)
        assert (written == form) == is_exact, f"{text}: {written}"
    assert (directory / "model.safetensors").stat().st_size < 3e6


@pytest.mark.parametrize(("name", "sizes"), [("geo", (598, 279)), ("atis", (4534, 503))])
def test_the_splits_and_vocabularies_are_those_of_the_weights(name, sizes):
    if not (DATA / name).exists():
        pytest.skip(f"needs shared/data/{name} beside the checkout")
    train, test = questions.load(name, DATA)
    assert (len(train), len(test)) == sizes
    tokens, num_targets = questions.vocabulary(train)
    tokenizer = pybeam.load_tokenizer(EXAMPLES / name)
    model = pybeam.load_model(EXAMPLES / name, device="cpu")
    assert (model.config.source_vocab_size, model.vocab_size) == (len(tokens), num_targets)
    assert tokenizer.encode(" ".join(tokens[10:20])) == [*range(10, 20), model.eos_id]
    # both sides are read by one tokenizer, whose first ids are those of logical forms
    form = train[7].form
    assert tokenizer.decode(tokenizer.encode_target(" ".join(form))) == " ".join(form)


def test_variables_are_numbered_as_they_appear():
    text = "( argmax $v1 ( and ( to $v1 a : ci ) ( from $0 b : ci ) ) $x )"
    expected = "( argmax $0 ( and ( to $0 a : ci ) ( from $1 b : ci ) ) $2 )"
    assert questions._renumbered(text) == expected


def test_data_that_are_missing_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"geography-logic\.json is missing; pass --data"):
        questions.load("geo", tmp_path)
