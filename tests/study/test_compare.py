"""`compare` beside sacrebleu, jiwer, plain sums, and itself when it is interrupted."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import pybeam
from pybeam.study import Comparison, Exact
from pybeam.study.identity import digest
from pybeam.study.metrics import Bootstrap, metric_of
from support.paths import MODEL, ROOT
from support.search_models import random_model

SEARCHES = {
    "greedy": pybeam.greedy(max_length=8),
    "beam": pybeam.fixed_beam(4, max_length=8),
    "drawn": pybeam.sample(1, seed=3, max_length=8),
}
NUM = 12
SOURCES = [[1]] * NUM
OUTPUTS = ["a cat sat", "the dog ran off", "", "one two three four five", "so it goes", "yes"]
OTHERS = ["a cat sat down", "the dog ran", "two", "one two three six", "so it went", "yes"]
REFERENCES = [
    "a cat sat down",
    "the dog ran off",
    "two",
    "one two three four six",
    "so it goes",
    "no",
]


def compared(model=None, searches=SEARCHES, **options) -> Comparison:
    options = dict(latency=0, progress=False) | options
    model = random_model(7, eos_bonus=0.5) if model is None else model
    return pybeam.compare(searches, model, options.pop("sources", SOURCES), **options)


def without_times(comparison: Comparison) -> list:
    rows = {
        name: {column: one for column, one in row.items() if "ms" not in column}
        for name, row in comparison.rows.items()
    }
    found = {
        n: [one._replace(cpu_seconds=0.0) for one in own] for n, own in comparison.found.items()
    }
    return [repr(rows), found, comparison.best, comparison.proven]


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_as_sacrebleu_has_it(name, monkeypatch):
    sacrebleu = pytest.importorskip("sacrebleu")
    from sacrebleu.significance import PairedTest

    monkeypatch.setenv("SACREBLEU_SEED", "5")
    theirs = getattr(sacrebleu.metrics, name.upper())()
    outputs = [OUTPUTS * 5, OTHERS * 5]
    named = list(zip(("a", "b"), outputs, strict=True))
    test = PairedTest(named, {name: theirs}, [REFERENCES * 5], test_type="bs", n_samples=400)
    [*_, results] = test()
    metric = metric_of(name)
    statistics = [metric.statistics(own, REFERENCES * 5) for own in outputs]
    found = Bootstrap(30, 400, 5).measures(metric.value, statistics)
    [expected] = [own for key, own in results.items() if key != "System"]
    for ours, their in zip(found, expected, strict=True):
        assert ours.value == pytest.approx(their.score)
        assert (ours.high - ours.low) / 2 == pytest.approx(their.ci)
        assert ours.p_value == (None if their.p_value is None else pytest.approx(their.p_value))


def test_equal_outputs_do_not_differ():
    metric = metric_of("exact_match")
    statistics = [metric.statistics(OUTPUTS, REFERENCES)] * 2
    first, second = Bootstrap(len(OUTPUTS), 100, 1).measures(metric.value, statistics)
    assert (first.p_value, second.p_value) == (None, 1.0)
    assert first[:3] == second[:3]


def test_words_and_functions():
    jiwer = pytest.importorskip("jiwer")
    metric = metric_of("wer")
    value = metric.value(metric.statistics(OUTPUTS, REFERENCES).sum(0))
    assert value == pytest.approx(100 * jiwer.wer(REFERENCES, OUTPUTS))

    def longer(output: str, reference: str) -> float:
        return len(output) > len(reference)

    metric = metric_of(longer)
    assert metric.name == "longer"
    assert metric.value(metric.statistics(OTHERS, REFERENCES).sum(0)) == 1 / 6


def test_numbers_are_those_of_the_decoders():
    model = random_model(7, eos_bonus=0.5)
    comparison = compared(model, references=[[2, 3]] * NUM)
    assert comparison.baseline == "greedy"
    for name, search in SEARCHES.items():
        results = pybeam.Decoder(model, search).decode(SOURCES)
        row, found = comparison.rows[name], comparison.found[name]
        for one, result in zip(found, results, strict=True):
            [hypothesis] = result.hypotheses
            assert one.output == tuple(hypothesis.tokens)
            assert one.length == len(hypothesis.tokens) + hypothesis.ended
            assert one[3:7] == (
                hypothesis.ended,
                result.stop_reason,
                result.steps,
                result.expansions,
            )
            if hypothesis.ended and name != "drawn":
                assert one.log_prob == pytest.approx(hypothesis.score, abs=1e-5)
        for column in ("length", "expansions", "steps"):
            assert row[column].value == np.mean([getattr(one, column) for one in found])
        assert row["log prob"].value == pytest.approx(np.mean([one.log_prob for one in found]))
        right = [one.output == (2, 3) for one in found]
        assert row["exact match"].value == pytest.approx(100 * np.mean(right))
        worse = [
            one.log_prob < best - 1e-3 for one, best in zip(found, comparison.best, strict=True)
        ]
        assert row["search errors"].value == pytest.approx(100 * np.mean(worse))
    assert comparison.rows["drawn"]["search errors"].value > 0
    assert comparison.proven is None


def test_an_exact_search_has_no_errors():
    exact = Exact(max_length=5)
    searches = {"exact": exact, "greedy": pybeam.greedy(max_length=5)}
    # without EOS of its own accord, greedy search misses the mode
    comparison = compared(random_model(4, eos_bonus=-1.0), searches, against=exact)
    assert comparison.rows["exact"]["search errors"].value == 0
    assert comparison.rows["greedy"]["search errors"].value > 0
    assert comparison.proven == NUM
    assert "proven to be the best" in str(comparison)
    alone = compared(random_model(4, eos_bonus=-1.0), {"greedy": searches["greedy"]})
    assert alone.rows["greedy"]["search errors"].value == 0
    assert "at least" in str(alone)


def test_schedules_change_nothing():
    assert without_times(compared()) == without_times(compared(schedule=pybeam.Batch(5)))


def test_what_was_decoded_is_not_decoded_again(tmp_path, monkeypatch):
    path = tmp_path / "journal"
    expected = without_times(compared())
    model = random_model(7, eos_bonus=0.5)
    asked: list[int] = []
    original = model.fn

    def counted(prefixes, lengths, source_ids):
        asked.extend(source_ids.tolist())
        if is_stopped and len(asked) > 60:
            raise KeyboardInterrupt
        return original(prefixes, lengths, source_ids)

    monkeypatch.setattr(model, "fn", counted)
    schedule, is_stopped = pybeam.Fifo(2), True
    with pytest.raises(KeyboardInterrupt):
        compared(model, schedule=schedule, journal=str(path))
    known = len(path.read_text().splitlines()) - 1
    assert 0 < known < len(SEARCHES) * NUM
    # killed in the middle of a line
    with path.open("a") as file:
        file.write('{"by": "' + "x" * 20_000)
    is_stopped = False
    asked.clear()
    assert without_times(compared(model, schedule=schedule, journal=str(path))) == expected
    num_first = len(asked)
    asked.clear()
    again = compared(model, schedule=schedule, journal=str(path))
    assert without_times(again) == expected
    # one source for each search and one for the model say that they are the same
    assert {*asked} == {0}
    assert len(asked) < num_first
    lines = path.read_text()
    more = SEARCHES | {"wide": pybeam.fixed_beam(6, max_length=8)}
    wider = compared(model, more, schedule=schedule, journal=str(path), references=[[2]] * NUM)
    assert wider.found["beam"] == again.found["beam"]
    assert path.read_text().startswith(lines)


KILLED = """
import sys, pybeam
model = pybeam.load(sys.argv[1], progress=False)
lines = [f"Jesús lloró {i} veces." for i in range(40)]
searches = {"one": pybeam.greedy(), "five": pybeam.fixed_beam(5)}
found = pybeam.compare(searches, model, lines, lines, metrics=["exact_match"], latency=2, journal=sys.argv[2],
                       schedule=pybeam.Fifo(2), progress=False)
print(found.to_json())
"""


@pytest.mark.slow
def test_a_killed_process(tmp_path):
    path = tmp_path / "journal"
    command = [sys.executable, "-c", KILLED, str(MODEL), str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while not path.exists() or path.read_bytes().count(b"\n") < 10:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    known = path.read_bytes()
    assert known.count(b"\n") < 80

    def output(journal: str) -> dict:
        done = subprocess.run(
            [*command[:-1], journal], cwd=ROOT, check=True, capture_output=True, text=True
        )
        found = json.loads(done.stdout)
        for own in found["found"].values():
            for one in own:
                del one["cpu_seconds"]
        for row in found["rows"].values():
            for column in ("CPU ms", "latency ms", "95 %"):
                del row[column]
        return found

    assert output(str(path)) == output(str(tmp_path / "other"))
    assert path.read_bytes().startswith(known[: known.rfind(b"\n")])


def test_texts_in_and_out(tmp_path):
    model = pybeam.load(MODEL, progress=False)
    lines, texts = ["Jesús lloró.", "Y fué la tarde."], ["Jesus wept.", "And the evening was."]
    searches = {"greedy": pybeam.greedy(max_length=20), "int8": pybeam.fixed_beam(2, max_length=20)}
    found = pybeam.compare(searches, model, lines, texts, metrics=["exact_match"], latency=1)
    assert found.found["greedy"][0].output == "Jesus wept."
    assert found.rows["greedy"]["latency ms"].value > 0
    with_tokenizer = pybeam.compare(
        searches,
        model.model,
        lines,
        texts,
        metrics=["exact_match"],
        tokenizer=model.tokenizer,
        latency=0,
    )
    assert [one.output for one in with_tokenizer.found["int8"]] == [
        one.output for one in found.found["int8"]
    ]


def test_a_source_that_fails_has_no_output():
    searches = {"a": pybeam.greedy(max_length=4), "b": pybeam.fixed_beam(2, max_length=4)}
    model = random_model(7, vocab_size=7)
    bad = pybeam.Request([1], prefix=[99])
    comparison = compared(model, searches, sources=[[1], bad, [1]], references=[[2], [2], [2]])
    assert comparison.rows["a"]["no output"].value == 1
    assert comparison.found["a"][1].output == ()
    assert "99" in comparison.found["a"][1].error
    assert math.isfinite(comparison.rows["a"]["log prob"].value)


def test_a_search_that_fails_throughout_is_an_error():
    bad = [pybeam.Request([1], prefix=[99])] * 2
    with pytest.raises(RuntimeError, match=r"search 'a' fails for every source.*99"):
        compared(random_model(7), {"a": pybeam.greedy(max_length=4)}, sources=bad)


def test_forms(tmp_path):
    comparison = compared(references=[[2, 3]] * NUM, samples=50)
    lines = str(comparison).splitlines()
    assert lines[0].split()[:2] == ["exact", "match"]
    assert [line.split()[0] for line in lines[1:4]] == [*SEARCHES]
    html = comparison._repr_html_()
    assert html.count("<tr>") == 4
    assert "p = " in html
    for suffix in (".txt", ".html", ".json"):
        assert comparison.save(tmp_path / f"out{suffix}").stat().st_size > 100
    with pytest.raises(ValueError, match=r"saved as one of .*'out\.pdf'"):
        comparison.save(tmp_path / "out.pdf")
    [first, *_] = comparison.differences("greedy", "drawn")
    assert first.outputs[0] != first.outputs[1]
    with pytest.raises(ValueError, match="`second` must be one of greedy, beam, drawn"):
        comparison.differences("greedy", "wide")
    without = compared(samples=0)
    assert "±" not in str(without)


@pytest.mark.slow
def test_a_data_frame_and_a_picture(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    comparison = compared(samples=50)
    frame = comparison.to_frame()
    assert list(frame.index) == [*SEARCHES]
    assert frame.loc["beam", "length"] == comparison.rows["beam"]["length"].value
    assert math.isnan(frame.loc["greedy", "length p"])
    assert (frame["length low"] <= frame["length high"]).all()
    assert "beam" in comparison.save(tmp_path / "out.svg").read_text("utf-8")
    assert comparison.save(tmp_path / "out.csv").read_text("utf-8").startswith("search,log prob,")
    picture = comparison.plot()._repr_svg_()
    assert "drawn" in picture
    assert picture == compared(samples=50).plot()._repr_svg_()
    with pytest.raises(ValueError, match="`cost` must be one of"):
        comparison.plot("seconds")


@pytest.mark.parametrize(
    "options, error, message",
    [
        (dict(searches={}), TypeError, "`searches`"),
        (dict(searches={"a": 5}), TypeError, "'a' is 5"),
        (dict(model="model"), TypeError, "`model`"),
        (dict(sources=[]), ValueError, "`sources`"),
        (dict(sources="text"), TypeError, "`sources`"),
        (dict(references=[[1]]), ValueError, "`references` must have one for each of the 12"),
        (dict(references=["a"] * NUM), TypeError, "`references` must be lists of token ids"),
        (dict(references=[[1]] * NUM, metrics=["bleu"]), ValueError, "'bleu' reads texts"),
        (dict(references=[[1]] * NUM, metrics=["blue"]), ValueError, "'blue'"),
        (dict(references=[[1]] * NUM, metrics="exact_match"), TypeError, "`metrics`"),
        (dict(references=[[1]] * NUM, metrics=[len, len]), ValueError, "names that differ"),
        (dict(metrics=["exact_match"]), ValueError, "where no references are given"),
        (dict(latency=-1), ValueError, "`latency`"),
        (dict(samples=1.5), TypeError, "`samples`"),
        (dict(against=3), TypeError, "3"),
        (dict(beams=3), TypeError, "`beams` is no option"),
    ],
)
def test_wrong_options(options, error, message):
    with pytest.raises(error, match=message):
        compared(options.pop("model", None), options.pop("searches", SEARCHES), **options)


def test_a_file_that_is_no_journal_stays_as_it_is(tmp_path):
    for content in ("my poem", "my poem\nhas lines\n"):
        (tmp_path / "poem").write_text(content)
        with pytest.raises(ValueError, match="`journal` must be a new file"):
            compared(journal=str(tmp_path / "poem"))
        assert (tmp_path / "poem").read_text() == content


def test_identity_tells_searches_apart():
    import torch

    def of(weight: float):
        return lambda rows: rows * weight

    assert digest(of(1.0)) == digest(of(1.0))
    assert digest(of(1.0)) != digest(of(2.0))
    assert digest(lambda rows: rows + 1) != digest(lambda rows: rows - 1)
    large = torch.zeros(5000)
    other = large.clone()
    other[2500] = 1
    assert digest(large) == digest(large.clone()) != digest(other)
    assert digest(pybeam.fixed_beam(2)) != digest(pybeam.fixed_beam(3))
