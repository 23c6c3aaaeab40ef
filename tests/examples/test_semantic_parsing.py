"""The example models of logical forms: what they were recorded to get right, and the laws of search."""

import pytest

import pybeam
from examples.semantic_parsing import questions
from examples.semantic_parsing.questions import Lexicon
from support.device_loop import assert_alike
from support.paths import DATA, ROOT

EXAMPLES = ROOT / "examples" / "semantic_parsing"
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


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", RECORDED)
def test_the_weights_give_the_recorded_exact_matches(name):
    directory = EXAMPLES / name
    model, tokenizer = pybeam.load_model(directory, device="cpu"), pybeam.load_tokenizer(directory)
    asked = [(text, {}) for text, _, _ in RECORDED[name]]
    if name == "atis":
        lexicon = Lexicon.load(directory / "names.json")
        asked = [lexicon.identify(text) for text, _ in asked]
    sources = [tokenizer.encode(text) for text, _ in asked]
    found = []
    for schedule in (pybeam.Batch(1), pybeam.Streaming(2, row_budget=30), pybeam.Fifo(4)):
        found.append(pybeam.Decoder(model, ALGORITHM, schedule).decode(sources))
        assert_alike(found[-1], found[0])
    for (text, form, is_exact), (_, placeholders), result in zip(
        RECORDED[name], asked, found[0], strict=True
    ):
        tokens = result.hypotheses[0].tokens
        written = questions.with_constants(tokenizer.decode(tokens), placeholders)
        assert (written == form) == is_exact, f"{text}: {written}"
    assert (directory / "model.safetensors").stat().st_size < 3e6


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("geo", (598, 279)), ("atis", (4534, 503))])
def test_the_parts_and_vocabularies_are_those_of_the_weights(name, sizes):
    if not (DATA / name).exists():
        pytest.skip(f"needs shared/data/{name} beside the checkout")
    train, test, lexicon = questions.load(name, DATA)
    assert (len(train), len(test)) == sizes
    tokens, num_targets = questions.vocabulary(train)
    tokenizer = pybeam.load_tokenizer(EXAMPLES / name)
    model = pybeam.load_model(EXAMPLES / name, device="cpu")
    assert (model.config.source_vocab_size, model.vocab_size) == (len(tokens), num_targets)
    assert tokenizer.encode(" ".join(tokens[10:20])) == [*range(10, 20), model.eos_id]
    # both sides are read by one tokenizer, whose first ids are those of logical forms
    form = train[7].form
    assert tokenizer.decode(tokenizer.encode_target(" ".join(form))) == " ".join(form)
    if lexicon:
        assert lexicon.names == Lexicon.load(EXAMPLES / name / "names.json").names


def test_constants_become_placeholders_and_come_back():
    lexicon = Lexicon(
        {"new": "new : ci", "new york": "new_york : ci", "nyc": "new_york : ci", "us": "us : al"}
    )
    text = "from new to new york not nyc after 1205am or 630pm on us flight 281 at 281 dollars in 99 usual"
    form = (
        "( and ( from $0 new : ci ) ( to $0 new_york : ci ) ( not $0 new_york : ci ) ( > $0 5 : ti ) "
        "( or $0 1830 : ti ) ( airline $0 us : al ) ( flight $0 281 : fn ) ( < $0 281 : do ) "
        "( stop $0 boston : ci ) ( airline : e $0 ) ( loc : t $0 ) )"
    )
    found, placeholders = lexicon.identify(text)
    assert found == (
        "from ci0 to ci1 not ci1 after ti0 or ti1 on al0 flight nu0 at nu0 dollars in 99 usual"
    )
    written = questions.with_placeholders(form, placeholders)
    assert written == (
        "( and ( from $0 ci0 ) ( to $0 ci1 ) ( not $0 ci1 ) ( > $0 ti0 ) "
        "( or $0 ti1 ) ( airline $0 al0 ) ( flight $0 nu0 : fn ) ( < $0 nu0 : do ) "
        "( stop $0 boston : ci ) ( airline : e $0 ) ( loc : t $0 ) )"
    )
    assert questions.with_constants(written, placeholders) == form


def test_names_are_learnt_from_what_questions_and_forms_share():
    shared = [
        # a code and its name; a name within another
        *[("american _ to new york", "( al aa : al ) ( to new_york : ci )")] * 4,
        *[("_ to york", "( to york : ci )")] * 3,
        *[("united on the twenty seventh _", "( al ua : al ) ( on 27 : dn )")] * 4,
        *[("on the seventh _", "( on 7 : dn )")] * 5,
        # twice is not enough, but for what reads like the constant
        *[("delta _ to st. paul", "( al dl : al ) ( to st_paul : ci )")] * 2,
        # numbers and times need no name
        *[("flight _ 281 at 5pm", "( flight 281 : fn ) ( at 1700 : ti )")] * 4,
        # and are no part of one
        *[("nonstop 747 _", "( stops 0 : i )")] * 3,
        # too often of something else
        *[("boeing _", "( of boeing : mf )")] * 3,
        ("boeing _", "( of airbus : mf )"),
        # a function is none of the constants
        *[("airline _", "( = ( airline : e $0 ) $1 )")] * 3,
    ]
    # words that differ leave nothing else that is shared
    pairs = [(text.replace("_", f"w{i} v{i}"), form) for i, (text, form) in enumerate(shared)]
    assert questions.learn(pairs).names == {
        "american": "aa : al",
        "united": "ua : al",
        "new york": "new_york : ci",
        "york": "york : ci",
        "twenty seventh": "27 : dn",
        "seventh": "7 : dn",
        "st. paul": "st_paul : ci",
        "nonstop": "0 : i",
    }


def test_variables_are_numbered_as_they_appear():
    text = "( argmax $v1 ( and ( to $v1 a : ci ) ( from $0 b : ci ) ) $x )"
    expected = "( argmax $0 ( and ( to $0 a : ci ) ( from $1 b : ci ) ) $2 )"
    assert questions._renumbered(text) == expected


def test_nothing_is_taken_from_the_forms_of_the_test():
    line = "flights to boston on {} ||| ( and ( to $0 boston : ci ) ( on $0 {} : da ) )"
    lines = [line.format(day, day) for day in ["monday"] * 5 + ["friday"] * 4]
    train, test, lexicon = questions._atis("\n".join([*lines, line.format("sunday", "sunday")]))
    assert lexicon.names.keys() == {"boston", "monday", "friday"}
    assert " ".join(train[0].form) == "( and ( to $0 ci0 ) ( on $0 da0 ) )"
    assert " ".join(test[0].text) == "flights to ci0 on sunday"
    assert " ".join(test[0].form) == "( and ( to $0 ci0 ) ( on $0 sunday : da ) )"
    other = questions._atis("\n".join([*lines, "flights to boston on sunday ||| to_boston : ti"]))
    assert (other.test[0].text, other.lexicon.names) == (test[0].text, lexicon.names)


def test_brackets_left_open_are_closed():
    assert questions._closed("( a ( b $0 )") == "( a ( b $0 ) )"
    assert questions._closed("qw : fb") == "qw : fb"


def test_questions_about_jobs_have_parts_of_their_own(tmp_path):
    (tmp_path / "jobs").mkdir()
    for part in ("train", "test"):
        (tmp_path / "jobs" / f"{part}.txt").write_text(f"what {part}\tjob ( ANS )\nall\tjob")
    train, test, lexicon = questions.load("jobs", tmp_path)
    assert train == [(["what", "train"], ["job", "(", "ANS", ")"]), (["all"], ["job"])]
    assert (test[0].text, len(test), lexicon) == (["what", "test"], 2, None)


def test_data_that_are_missing_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"geography-logic\.json is missing; pass --data"):
        questions.load("geo", tmp_path)
