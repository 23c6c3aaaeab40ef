"""Tables of `compare` where names meet, numbers are missing and sources fail."""

from __future__ import annotations

import json
import math

import pytest

import pybeam
from pybeam.study.metrics import Bootstrap, metric_of
from support.search_models import random_model

SEARCHES = {"a": pybeam.greedy(max_length=4), "b": pybeam.fixed_beam(2, max_length=4)}


def compared(searches=SEARCHES, sources=([1], [1], [1]), **options):
    options = dict(latency=0, progress=False, samples=50) | options
    return pybeam.compare(searches, random_model(7, vocab_size=7), list(sources), **options)


def refused(name: str) -> None:
    raise ValueError(f"{name} is in a JSON text")


def test_a_metric_may_not_have_the_name_of_a_column():
    def length(output, reference):
        return 42.0

    with pytest.raises(ValueError, match="built-in columns, but one is 'length'"):
        compared(references=[[2]] * 3, metrics=[length])


def test_every_column_has_its_name_taken():
    from pybeam.study.comparison import BUILT_IN

    bad = pybeam.Request([1], prefix=[99])
    assert {*compared(sources=[bad, [1]], latency=1).digits} == {*BUILT_IN}


def test_json_with_sources_that_fail():
    bad = pybeam.Request([1], prefix=[99])
    found = json.loads(compared(sources=[[1], bad]).to_json(), parse_constant=refused)
    assert found["rows"]["a"]["no output"] == 1
    assert found["found"]["a"][1]["log_prob"] is None


def test_json_of_a_tree_with_a_score_that_is_infinite():
    tree = pybeam.inspect.explain(random_model(7, vocab_size=7), [1], SEARCHES["b"])
    tree.nodes[0] = tree.nodes[0]._replace(score=-math.inf)
    found = json.loads(tree.to_json(), parse_constant=refused)
    assert found["nodes"][0]["score"] is None


def test_a_picture_of_a_name_with_dollars(tmp_path):
    pytest.importorskip("matplotlib")
    searches = {"a $\\x$": SEARCHES["a"]}
    text = compared(searches).save(tmp_path / "out.svg").read_text("utf-8")
    assert text.startswith("<?xml")


def test_empty_references_leave_intervals():
    pytest.importorskip("jiwer")
    metric = metric_of("wer")
    statistics = [metric.statistics(["a b", "c"], ["a c", ""])] * 2
    for one in Bootstrap(2, 100, 1).measures(metric.value, statistics):
        assert all(math.isfinite(bound) for bound in one[:3])
    nothing = [metric.statistics(["a"], [""])] * 2
    assert Bootstrap(1, 100, 1).measures(metric.value, nothing)[1].p_value is None


def test_two_metrics_of_a_kind():
    sacrebleu = pytest.importorskip("sacrebleu")
    from pybeam.study.comparison import _metrics

    given = ["bleu", sacrebleu.metrics.BLEU(tokenize="char"), "chrf"]
    first, second, third = (one.name for one in _metrics(given, True, True))
    assert "char" in second
    assert first != second
    assert third == "chrF"
