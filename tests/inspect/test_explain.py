"""The tree of a search: its rules beside those of `select`, its output beside that of a decoder, its page."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess

import pytest
import torch

import pybeam
from pybeam.cli import main
from pybeam.contracts import Finishing, SelectOptions
from pybeam.inspect import SearchTree, explain
from pybeam.inspect.rules import Asked, Judge, ranked_candidates
from pybeam.inspect.tree import ROOT, Fate
from pybeam.scoring import power
from support.paths import MODEL
from support.search_models import EOS, random_model

V = 7
STAYING = (Fate.GIVEN, Fate.KEPT, Fate.HELD, Fate.FINISHED)
SEARCHES = {
    "greedy": pybeam.greedy(max_length=8),
    "fixed": pybeam.fixed_beam(3, n_best=3, max_length=8, min_length=2),
    "by step": pybeam.fixed_beam([2, 4], max_length=8, scoring=power(1.0)),
    "variable": pybeam.variable_beam(4, threshold=1.2, max_candidates=3, max_length=8),
    "local": pybeam.variable_beam(
        4, local_threshold=0.4, relative_threshold=0.1, keep_ties=True, max_length=8
    ),
    "shrinking": pybeam.shrinking_beam(4, threshold=2.0, max_length=8),
    "optimal": pybeam.optimal_beam(3, max_length=8),
    "huang": pybeam.huang_beam(3, 0.3, max_length=8),
    "penalty": pybeam.fixed_beam(
        3, max_length=8, processors=[pybeam.processors.repetition_penalty(1.5)]
    ),
}


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("levels", [None, 3])
def test_the_output_is_that_of_a_decoder(name, levels):
    model = random_model(3, V, levels=levels, eos_bonus=0.3)
    for prefix in ([], [4, 2]):
        request = pybeam.Request([1], prefix=prefix)
        [result] = pybeam.Decoder(model, SEARCHES[name]).decode([request])
        tree = explain(model, request, SEARCHES[name], shown=20)
        assert (tree.num_steps, tree.expansions) == (
            result.steps,
            result.expansions,
        )
        assert tree.stop_reason == result.stop_reason
        assert len(tree.outputs) == len(result.hypotheses)
        for (node, score), hypothesis in zip(tree.outputs, result.hypotheses, strict=True):
            tokens = [tree.nodes[one].token for one in tree.path(node)]
            generated = [*hypothesis.tokens[len(prefix) :], *([EOS] if hypothesis.ended else [])]
            assert tokens[-len(generated) :] == generated
            assert tree.nodes[node].score == pytest.approx(hypothesis.score, abs=1e-5)
            assert score == hypothesis.final_score
            if hypothesis.ended and SEARCHES[name].finishing != Finishing.HELD:
                assert tree.nodes[node].events[-1].fate == Fate.FINISHED
        check_tree(tree)


def check_tree(tree: SearchTree) -> None:
    """Nodes go on from what was kept in the step before, and scores add up."""
    for node in tree.nodes:
        before = None if node.parent == ROOT else tree.nodes[node.parent]
        score = 0.0 if before is None else before.score
        assert node.score == pytest.approx(score + node.log_prob, abs=1e-5)
        first = node.events[0]
        if before is not None:
            assert before.events[-1].step == first.step - 1
            assert before.events[-1].fate in (Fate.KEPT, Fate.GIVEN)
        assert [one.step for one in node.events] == [
            *range(first.step, first.step + len(node.events))
        ]
        assert all(one.fate == Fate.HELD for one in node.events[:-1])
        for event in node.events:
            assert bool(event.reason) == (event.fate not in STAYING)


@pytest.mark.parametrize("finishing", [*Finishing][1:])
def test_the_rules_are_those_of_select(finishing):
    """Each rule decides, in some of these cases."""
    generator = torch.Generator().manual_seed(5 + finishing)
    seen = set()

    def number(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand(1, generator=generator))

    for case in range(120):
        size, width = 1 + case % 4, 1 + case % 5
        score = -torch.rand(size, generator=generator).sort().values
        held = [finishing == Finishing.HELD and number(0, 1) < 0.3 for _ in range(size)]
        logits = torch.randn(size - sum(held), 6, generator=generator) * 2
        is_whole = case % 6 == 0
        # then differences are exactly at a threshold
        if is_whole:
            score, logits = (2 * score).round(), -logits.abs().round()
        if case % 7 == 0:
            logits[:, 3] = -math.inf
        given = dict(
            is_ended=torch.tensor(held) if any(held) else None,
            max_candidates=torch.tensor([1 + case % 6], dtype=torch.int32),
            margin=torch.tensor([2.0 if is_whole else number(0.3, 3.0)]) * (-1) ** case,
            local_margin=torch.tensor([2.0 if is_whole else number(0.5, 4.0)]),
            best_finished=torch.tensor([number(-3.0, 0.0)]) if case % 4 == 1 else None,
            ban_eos=torch.tensor([case % 5 == 0]),
        )
        offset = torch.tensor([0, size], dtype=torch.int32)
        widths = torch.tensor([width], dtype=torch.int32)
        options = SelectOptions(2 * width, (0, 4), finishing, not is_whole, **given)
        asked = Asked(logits, score, offset, widths, options)
        survivors = pybeam.ops.select(
            logits,
            score,
            offset,
            width=widths,
            eos_id=[0, 4],
            finishing=finishing,
            normalise=not is_whole,
            **given,
        )
        num, num_finished = int(survivors.count[0]), int(survivors.num_finished[0])
        pairs = list(zip(survivors.parent[0].tolist(), survivors.token[0].tolist(), strict=True))
        ranked = ranked_candidates(asked, 0)
        fates = [fate for fate, _ in Judge(asked, 0).fates(ranked)]
        seen |= {*fates}
        found = {one.key: fate for one, fate in zip(ranked, fates, strict=True)}
        finished = [key for key, fate in found.items() if fate == Fate.FINISHED]
        going_on = [key for key, fate in found.items() if fate in (Fate.KEPT, Fate.HELD)]
        assert finished == pairs[:num_finished]
        assert going_on == pairs[num_finished:num]
    expected = {*Fate} - {Fate.GIVEN, Fate.HELD, Fate.LATE_END}
    expected |= {Fate.HELD} if finishing == Finishing.HELD else set()
    expected |= {Fate.LATE_END} if finishing == Finishing.REFILL else set()
    assert seen == expected


def test_a_step_by_hand():
    """A beam of two: the third is too many, and the fourth would end too early."""
    log_probs = torch.tensor([0.1, 0.2, 0.4, 0.3]).log()
    model = pybeam.models.FunctionModel(lambda p, *_: log_probs.repeat(len(p), 1), 4, 0, EOS)
    algorithm = pybeam.fixed_beam(2, min_length=1, max_length=2)
    tree = explain(model, [1], algorithm, labels={2: "two", 3: "three"})
    first = [(tree.text(i), node.events[0]) for i, node in enumerate(tree.nodes[:4])]
    assert [(text, fate, reason) for text, (step, fate, reason) in first if step == 1] == [
        ("two", "kept", ""),
        ("three", "kept", ""),
        ("1", "banned", "the output would be too short"),
        ("0", "width", "rank 3, in a beam of 2"),
    ]
    assert str(tree).count("step ") == tree.num_steps == 2


def test_few_are_shown():
    model = random_model(3, 50)
    tree = explain(model, [1], pybeam.fixed_beam(3, max_length=6), shown=2)
    for step, left in enumerate(tree.left, 1):
        fates = [e.fate for node in tree.nodes for e in node.events if e.step == step]
        assert sum(fate not in (Fate.KEPT, Fate.FINISHED) for fate in fates) == 2
        assert left > 30


def test_forms(tmp_path):
    model = random_model(3, V)
    tree = explain(model, [1], SEARCHES["variable"], labels={3: "</script><b>"})
    page = tree.to_html()
    assert page.count("</script>") == 1
    data = json.loads(re.search(r"const tree = (.*);\n", page)[1])
    assert data == json.loads(tree.to_json())
    assert len(data["nodes"]) == len(tree.nodes)
    assert not re.findall(r"""(?:src|href)=["']""", page)
    assert tree._repr_html_().startswith("<iframe")
    for name in ("a.html", "a.json", "a.txt"):
        assert tree.save(tmp_path / name).read_text("utf-8")
    with pytest.raises(
        ValueError, match=r"saved as one of .html, .json, .txt, but not as 'a\.png'"
    ):
        tree.save(tmp_path / "a.png")


NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_script_can_be_read(tmp_path):
    page = explain(random_model(3, V), [1], SEARCHES["fixed"]).to_html()
    script = tmp_path / "page.js"
    script.write_text(re.search(r"<script>(.*)</script>", page, re.S)[1])
    subprocess.run([NODE, "--check", script], check=True)


def later(candidates, beam):
    candidates.score -= beam.num_generated


def at_three(beam):
    return beam.num_generated >= 3


def ruled(*hooks, **named):
    return pybeam.fixed_beam(2, processors=[pybeam.rule(*hooks, **named)])


@pytest.mark.parametrize(
    "algorithm, error, message",
    [
        (None, TypeError, "`algorithm` is needed"),
        (5, TypeError, "`algorithm` must be one"),
        (pybeam.jacobi(), ValueError, "decoding_graph shows those that guess"),
        (pybeam.diverse(pybeam.fixed_beam(2), 2, 0.5), ValueError, "no groups, and no samples"),
        (pybeam.stochastic_beam(2), ValueError, "no groups, and no samples"),
        (pybeam.sample(), ValueError, "no groups, and no samples"),
        (ruled(later), ValueError, r"but pybeam.rule\(later\) changes them"),
        (ruled(finish=later), ValueError, r"but pybeam.rule\(later\) changes them"),
    ],
)
def test_searches_without_a_tree(algorithm, error, message):
    with pytest.raises(error, match=message):
        explain(random_model(3, V), [1], algorithm)


def test_a_rule_may_stop_the_search():
    model, algorithm = random_model(3, V), ruled(stop=at_three)
    tree = explain(model, [1], algorithm)
    [result] = pybeam.Decoder(model, algorithm).decode([[1]])
    assert (tree.num_steps, tree.stop_reason) == (3, "heuristic")
    assert [score for _, score in tree.outputs] == [one.final_score for one in result.hypotheses]


def test_an_empty_source_has_an_empty_tree():
    tree = explain(random_model(3, V), [], pybeam.fixed_beam(2))
    assert (tree.nodes, tree.outputs, tree.num_steps) == ([], [], 0)
    assert tree.stop_reason == "empty_source"
    assert str(tree) and tree.to_html()


def test_wrong_arguments():
    model = random_model(3, V)
    with pytest.raises(TypeError, match="`model` must be a"):
        explain("model", [1], pybeam.greedy())
    with pytest.raises(ValueError, match="`source` must have no target"):
        explain(model, pybeam.Request([1], target=[2]), pybeam.greedy())
    with pytest.raises(ValueError, match="`shown`"):
        explain(model, [1], pybeam.greedy(), shown=-1)
    with pytest.raises(ValueError, match="99"):
        explain(model, pybeam.Request([1], prefix=[99]), pybeam.greedy())


def test_a_text_and_the_command(tmp_path, capfd):
    text, path = "Jesús lloró.", tmp_path / "tree.json"
    search = pybeam.variable_beam(3, threshold=1.5, max_length=9, scoring=power(1.0))
    tree = explain(pybeam.load(MODEL, progress=False), text, search)
    assert tree.text(tree.outputs[0][0]) == "▁Jesus ▁wept . </s>"
    options = "--algorithm variable --width 3 --threshold 1.5 --max-length 9".split()
    assert main(["explain", "--model", str(MODEL), text, *options, "--output", str(path)]) == 0
    assert "stopped by" in capfd.readouterr().out
    assert json.loads(path.read_text("utf-8")) == json.loads(tree.to_json())
    for more, message in [
        (["--output", "tree.pdf"], "--output must end in .html"),
        (["--algorithm", "jacobi"], "decoding_graph shows"),
    ]:
        assert main(["explain", "--model", str(MODEL), text, *more]) == 2
        assert message in capfd.readouterr().err
