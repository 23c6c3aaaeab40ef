"""Whatever the library can search for, the command line can, with the same results."""

import json
import re
import shutil

import pytest

import pybeam
from pybeam import backends, compat, stopping
from pybeam.cli import main
from pybeam.cli.options.recipes import ARGUMENTS
from pybeam.cli.options.search import STOPS, TAKEN
from pybeam.processors import language_model
from pybeam.shortlist import allowed_translations
from support.ngrams import ARPA
from support.paths import MODEL, ROOT

LINES = ["Y dijo Dios: Sea la luz; y fué la luz.", "Y el rey dijo.", "Jesús lloró."]
NORMALISED = pybeam.scoring.power(1.0)
TOKENIZER = pybeam.load_tokenizer(MODEL)
UNK = TOKENIZER.unk_id
PRUNED = dict(threshold=2.0, max_candidates=3)
SEARCHES = {
    "--algorithm greedy": pybeam.greedy(scoring=NORMALISED),
    "--width 3": pybeam.fixed_beam(3, scoring=NORMALISED),
    "--algorithm variable --width 9 --threshold 2 --max-candidates 3": pybeam.variable_beam(
        9, **PRUNED, scoring=NORMALISED
    ),
    "--algorithm variable --threshold 1 --keep-ties": pybeam.variable_beam(
        5, 1.0, keep_ties=True, scoring=NORMALISED
    ),
    "--algorithm shrinking --width 3 --cut-too --max-length 4": pybeam.shrinking_beam(
        3, scoring=NORMALISED, ended_only=False, max_length=4
    ),
    "--ended-only --max-length 9": pybeam.fixed_beam(
        5, scoring=NORMALISED, ended_only=True, max_length=9
    ),
    "--algorithm huang --scoring reward:0.5": pybeam.huang_beam(5, 0.5),
    "--algorithm huang": pybeam.huang_beam(5),
    "--algorithm shrinking --width 3 --relative-threshold 0.1": pybeam.shrinking_beam(
        3, relative_threshold=0.1, scoring=NORMALISED
    ),
    "--algorithm optimal --n-best 2": pybeam.optimal_beam(5, n_best=2),
    "--algorithm optimal --scoring reward:0.5:1.2": pybeam.optimal_beam(5, 0.5, 1.2),
    "--algorithm jacobi": pybeam.jacobi(scoring=NORMALISED),
    "--algorithm gauss-seidel-jacobi --block 4": pybeam.gauss_seidel_jacobi(4, scoring=NORMALISED),
    "--algorithm hybrid-jacobi --horizon 0": pybeam.hybrid_jacobi(horizon=0, scoring=NORMALISED),
    "--algorithm adaptive-jacobi --max-window 5": pybeam.adaptive_jacobi(5, scoring=NORMALISED),
    "--stop count": pybeam.fixed_beam(5, stop=stopping.count(), scoring=NORMALISED),
    "--stop top-finished": pybeam.fixed_beam(5, stop=stopping.top_finished(), scoring=NORMALISED),
    "--stop optimal": pybeam.fixed_beam(5, stop=stopping.optimal()),
    "--stop end --max-length 20": pybeam.fixed_beam(
        5, stop=stopping.end(), max_length=20, scoring=NORMALISED
    ),
    "--patience 1.5": pybeam.fixed_beam(5, stop=stopping.Stop(patience=1.5), scoring=NORMALISED),
    "--length-penalty 0": pybeam.fixed_beam(5),
    "--scoring gnmt:0.6:0.2": pybeam.fixed_beam(5, scoring=pybeam.scoring.gnmt(0.6, 0.2)),
    "--samples 3 --seed 5": pybeam.stochastic_beam(3, 5),
    "--samples 2": pybeam.stochastic_beam(2),
    "--algorithm sample --seed 4": pybeam.sample(seed=4),
    "--algorithm sample --samples 3 --temperature 0.8 --top-k 40 --top-p 0.9 --min-p 0.01": (
        pybeam.sample(3, temperature=0.8, top_k=40, top_p=0.9, min_p=0.01)
    ),
    "--algorithm sample --repetition-penalty 1.2 --max-length 9": pybeam.sample(
        processors=[pybeam.processors.repetition_penalty(1.2)], max_length=9
    ),
    "--width 2,4,3 --n-best 3": pybeam.fixed_beam([2, 4, 3], n_best=3, scoring=NORMALISED),
    "--algorithm variable --width 6,2": pybeam.variable_beam([6, 2], scoring=NORMALISED),
    "--width 2 --groups 3 --diversity-penalty 0.7": pybeam.diverse(
        pybeam.fixed_beam(2, scoring=NORMALISED), 3, 0.7
    ),
    "--algorithm greedy --groups 2": pybeam.diverse(pybeam.greedy(scoring=NORMALISED), 2, 0.5),
    "--recipe ctranslate2": compat.ctranslate2.beam_search(),
    "--recipe ctranslate2 --width 4 --patience 2 --no-unk": compat.ctranslate2.beam_search(
        4, patience=2, disable_unk=True, unk_id=UNK
    ),
    "--recipe fairseq --max-length 9 --length-penalty 0.5": compat.fairseq.beam_search(
        lenpen=0.5, max_len_b=8
    ),
    "--recipe fairseq --recipe-option unkpen=2 --recipe-option max_len_a=1": (
        compat.fairseq.beam_search(unkpen=2, unk_id=UNK, max_len_a=1)
    ),
    "--recipe fireredasr --width 3 --temperature 1.25 --eos-penalty 0.9": (
        compat.fireredasr.beam_search(3, softmax_smoothing=1.25, eos_penalty=0.9)
    ),
    "--recipe huggingface --n-best 2": compat.huggingface.beam_search(5, num_return_sequences=2),
    "--recipe huggingface --recipe-option early_stopping=never --suppress 9,7": (
        compat.huggingface.beam_search(5, early_stopping="never", bad_words_ids=[(9, 7)])
    ),
    "--recipe opennmt --recipe-option length_penalty=wu": (
        compat.opennmt.beam_search(length_penalty="wu")
    ),
    "--recipe ctranslate2 --width 2 --groups 2": pybeam.diverse(
        compat.ctranslate2.beam_search(2), 2, 0.5
    ),
}


@pytest.fixture(scope="module")
def model():
    return pybeam.load_model(MODEL)


@pytest.fixture
def records(tmp_path, capfd):
    """Run `pybeam translate --json` on lines; returns the objects it writes."""

    def run(*options: str, lines=LINES, model=MODEL):
        path = tmp_path / "in.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        files = ["--model", str(model), "--input", str(path)]
        code = main(["translate", *files, "--json", "--quiet", *options])
        output = capfd.readouterr()
        assert code == 0, output.err
        return [json.loads(line) for line in output.out.splitlines()]

    return run


@pytest.mark.thinned(most=5)
@pytest.mark.parametrize("options", SEARCHES)
def test_results_are_those_of_the_library(records, model, options):
    found = records(*options.split())
    sources = TOKENIZER.encode(LINES)
    results = pybeam.Decoder(model, SEARCHES[options]).decode(sources)
    for record, result in zip(found, results, strict=True):
        assert (record["stop_reason"], record["steps"]) == (result.stop_reason, result.steps)
        for ours, theirs in zip(record["hypotheses"], result.hypotheses, strict=True):
            assert ours["text"] == TOKENIZER.decode(theirs.tokens)
            assert ours["final_score"] == pytest.approx(theirs.final_score, abs=1e-6)


def test_nothing_was_forgotten():
    words = {word for options in SEARCHES for word in options.split()}
    assert words >= {*TAKEN, *STOPS, *ARGUMENTS} - {"fixed"}
    assert {*ARGUMENTS} == {*compat.__all__}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reference", "native"])
def test_backends(records, name):
    if name not in backends.available():
        pytest.skip(f"{name} is not installed")
    texts = [record["hypotheses"][0]["text"] for record in records("--backend", name)]
    assert texts == [record["hypotheses"][0]["text"] for record in records()]


def test_keys_and_values_in_bfloat16(records, capfd):
    rounded = pybeam.load_model(MODEL, device="cpu", cache_dtype="bfloat16")
    results = pybeam.Decoder(rounded, pybeam.fixed_beam(5, scoring=NORMALISED)).decode(
        TOKENIZER.encode(LINES)
    )
    found = records("--device=cpu", "--cache-dtype=bfloat16")
    scores = [record["hypotheses"][0]["score"] for record in found]
    assert scores == pytest.approx([result.hypotheses[0].score for result in results], abs=1e-6)
    plain = [record["hypotheses"][0]["score"] for record in records("--device=cpu")]
    assert scores != pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "--input=TEXT"],
        ["score", "--input=TEXT", "--target=TEXT"],
        ["transcribe", str(ROOT / "examples" / "speech" / "first.wav")],
        ["profile"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_cache_that_the_model_does_not_have(arguments, tmp_path, capfd):
    (tmp_path / "TEXT").write_text("one\n")
    arguments = [argument.replace("TEXT", str(tmp_path / "TEXT")) for argument in arguments]
    lstm = ROOT / "examples" / "semantic_parsing" / "geo"
    assert main([*arguments, "--model", str(lstm), "--cache-dtype=bfloat16"]) == 1
    assert "--cache-dtype must be 'auto' for" in capfd.readouterr().err


def test_a_shortlist(records, model, tmp_path, capfd):
    """A lexical table, which leaves out what no output holds, or a map of tokens."""
    table, mapped = tmp_path / "lex.s2t", tmp_path / "vmap.txt"
    table.write_text("▁light ▁luz 0.8\n</s> ▁luz 0.1\n▁said ▁dijo 0.9\n", "utf-8")
    mapped.write_text("\t▁And ▁he\n▁luz\t▁light\n▁dijo\t▁said </s>\n", "utf-8")
    for path in (table, mapped):
        rule = allowed_translations(pybeam.Shortlist.load(path, MODEL))
        search = pybeam.fixed_beam(5, scoring=NORMALISED, processors=[rule])
        results = pybeam.Decoder(model, search).decode(TOKENIZER.encode(LINES))
        found = records("--shortlist", str(path))
        for record, result in zip(found, results, strict=True):
            assert record["hypotheses"][0]["text"] == TOKENIZER.decode(result.hypotheses[0].tokens)
    assert {word for one in found for word in one["hypotheses"][0]["text"].split()} <= {
        *("And", "he", "light", "said")
    }
    assert main(["translate", "--model", str(MODEL), "--shortlist", str(tmp_path / "none")]) == 1
    assert "none" in capfd.readouterr().err


@pytest.mark.slow
def test_outputs_of_a_form(records, tmp_path, capfd):
    """JSON of a schema, texts of a grammar, and what a pattern matches."""
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"enum": ["light", "God said"]}', "utf-8")
    grammar.write_text('start: "And" (" " WORD)~2\nWORD: /[a-z]+/\n', "utf-8")
    forms = {
        f"--json-schema={schema}": '"light"|"God said"',
        f"--grammar={grammar}": "And( [a-z]+){2}",
        r"--regex=\w+ \w+ \w+[.]": r"\w+ \w+ \w+[.]",
    }
    for option, pattern in forms.items():
        for record in records(option, "--max-length=20"):
            [hypothesis] = record["hypotheses"]
            assert re.fullmatch(pattern, hypothesis["text"]), option
    schema.write_text("{", "utf-8")
    assert main(["translate", "--model", str(MODEL), "--json-schema", str(schema)]) == 2
    assert "--json-schema must be JSON" in capfd.readouterr().err
    assert main(["translate", "--model", str(MODEL), "--grammar", str(tmp_path / "none")]) == 1
    assert "none" in capfd.readouterr().err


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("unit", ["token", "word"])
def test_a_language_model(records, model, tmp_path, capfd, unit):
    path = tmp_path / "own.arpa"
    path.write_text(ARPA, "utf-8")
    rule = language_model(path, TOKENIZER, weight=0.7, unit=unit)
    search = pybeam.fixed_beam(5, scoring=NORMALISED, processors=[rule])
    results = pybeam.Decoder(model, search).decode(TOKENIZER.encode(LINES))
    options = ("--language-model-weight=0.7", f"--language-model-unit={unit}")
    found = records(f"--language-model={path}", *options)
    for record, result in zip(found, results, strict=True):
        [theirs] = result.hypotheses
        assert record["hypotheses"][0]["score"] == pytest.approx(theirs.score, abs=1e-3)
    assert main(["translate", "--model", str(MODEL), options[0]]) == 2
    assert "--language-model-weight needs --language-model FILE" in capfd.readouterr().err


def test_alignment(records, model):
    found = records("--alignment", "--n-best=2", lines=[LINES[0], ""])
    source = TOKENIZER.encode(LINES[0])
    search = pybeam.fixed_beam(5, n_best=2, scoring=NORMALISED)
    [result] = pybeam.Decoder(model, search, alignment=True).decode([source])
    assert found[0]["source"][-1] == "</s>" and "▁Dios" in found[0]["source"]
    assert len(found[0]["source"]) == len(source)
    for ours, theirs in zip(found[0]["hypotheses"], result.hypotheses, strict=True):
        assert "".join(ours["tokens"]).replace("▁", " ").strip() == ours["text"]
        assert len(ours["attention"]) == len(ours["tokens"]) == len(theirs.tokens)
        for shares, row in zip(ours["attention"], theirs.attention.tolist(), strict=True):
            assert shares == pytest.approx(row, abs=1e-4)
    assert found[1]["hypotheses"][0]["text"] == ""


@pytest.fixture
def directory(tmp_path):
    """The example model, whose generation config the test writes."""
    path = tmp_path / "model"
    path.mkdir()
    for file in MODEL.iterdir():
        (path / file.name).symlink_to(file)

    def write(**settings):
        config = json.loads((MODEL / "generation_config.json").read_text())
        (path / "generation_config.json").unlink()
        (path / "generation_config.json").write_text(json.dumps({**config, **settings}))
        return path

    yield write
    shutil.rmtree(path)


@pytest.mark.slow
def test_the_length_penalty_of_the_model_is_the_default(records, directory):
    path = directory(length_penalty=0.3)
    expected = records("--length-penalty=0.3")
    assert records(model=path) == expected != records()
    assert records("--length-penalty=1", model=path) == records()
    assert records("--scoring=raw", model=path) == records("--scoring=raw")
    recipe = ("--recipe", "fairseq")
    assert records(*recipe, model=path) == records(*recipe, "--length-penalty=0.3")
    assert records(*recipe, "--length-penalty=1", model=path) == records(*recipe)


def test_hugging_face_settings_of_the_model_are_the_defaults_of_its_recipe(records, directory):
    path = directory(num_beams=3, early_stopping=True, max_length=12, length_penalty=0.5)
    search = compat.huggingface.beam_search(
        3, early_stopping=True, max_new_tokens=11, length_penalty=0.5
    )
    found = records("--recipe=huggingface", model=path)
    results = pybeam.Decoder(pybeam.load_model(MODEL), search).decode(TOKENIZER.encode(LINES))
    assert [record["expansions"] for record in found] == [r.expansions for r in results]
    assert found == records(
        *("--recipe=huggingface", "--width=3", "--recipe-option=early_stopping=true"),
        *("--max-length=11", "--length-penalty=0.5"),
    )
