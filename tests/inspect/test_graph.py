"""The decoding graph: its numbers against a plain Jacobi iteration, and its drawings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

import pybeam
from pybeam.cli import main
from pybeam.inspect import decoding_graph
from pybeam.inspect.graph import SOURCE, dependencies
from support.paths import MODEL
from support.search_models import EOS, next_logits, random_model


def iterated(
    model, output: list[int], prefix: list[int], pad: int
) -> list[list[tuple[int, float]]]:
    """Algorithm 1 of the paper as it stands: all tokens again, until nothing changes."""
    tokens, lines = [pad] * len(output), []
    while True:
        line = []
        for i in range(len(output)):
            logits = next_logits(model, 0, prefix + tokens[:i])
            token = int(torch.argmax(logits))
            line.append((token, float(logits.softmax(0)[token])))
        lines.append(line)
        if [token for token, _ in line] == tokens:
            return lines
        tokens = [token for token, _ in line]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("prefix", [[], [4, 2, 5]])
def test_against_the_plain_iteration(prefix):
    num_parallel = 0
    for seed in range(12):
        model = random_model(seed, contexts=9, eos_bonus=-0.5)
        request = pybeam.Request([1], prefix=torch.tensor(prefix, dtype=torch.long))
        algorithm = pybeam.greedy(max_length=14)
        graph = decoding_graph(model, request, algorithm=algorithm)
        (result,) = pybeam.Decoder(model, algorithm).decode([request])
        (hypothesis,) = result.hypotheses
        output = hypothesis.tokens[len(prefix) :] + [EOS] * hypothesis.ended
        assert graph.tokens == output
        lines = iterated(model, output, prefix, pad=0)
        assert [token for token, _ in lines[-1]] == output
        # what is proven is not computed again, and the last iteration of the paper changes nothing
        for k, (guesses, numbers) in enumerate(
            zip(graph.guesses, graph.probabilities, strict=True)
        ):
            assert guesses == [token for token, _ in lines[k]]
            assert numbers == pytest.approx([number for _, number in lines[k]], abs=1e-6)
        right = [[t == o for (t, _), o in zip(line, output, strict=True)] for line in lines]
        assert graph.is_correct == right[: graph.num_iterations]
        assert all(map(all, right[graph.num_iterations - 1 :]))
        assert graph.num_iterations == 1 or not all(right[graph.num_iterations - 2])
        for i, first in enumerate(graph.first):
            column = [line[i] for line in right]
            assert all(column[first:])
            assert first == 0 or not column[first - 1]
        for i, is_parallel in enumerate(graph.in_parallel):
            assert is_parallel == (i > 0 and graph.first[i] <= graph.first[i - 1])
        num_parallel += sum(graph.in_parallel)
    assert num_parallel > 5


@pytest.mark.parametrize("first", [[0, 1, 2], [0, 0, 1, 1, 2, 0], [0, 2, 1, 3], [0, 1, 1, 1, 2, 2]])
def test_edges_are_those_that_follow_from_no_others(first):
    closed = {(i, j) for j, own in enumerate(first) for i in range(j) if first[i] < own}
    expected = {
        (i, j)
        for i, j in closed
        if not any((i, k) in closed and (k, j) in closed for k in range(len(first)))
    }
    expected |= {(SOURCE, j) for j in range(len(first)) if not any(b == j for _, b in closed)}
    assert set(dependencies(first)) == expected


def test_what_cannot_be_drawn(tmp_path):
    model = random_model(1, eos_bonus=-9.0)
    with pytest.raises(ValueError, match="128 tokens at most, but this output has 200"):
        decoding_graph(model, [1], algorithm=pybeam.greedy(max_length=200))
    with pytest.raises(ValueError, match="the source is empty"):
        decoding_graph(model, [])
    graph = decoding_graph(model, [1], algorithm=pybeam.greedy(max_length=5))
    with pytest.raises(ValueError, match=r"one of .html, .*, but not as 'graph.pdf'"):
        graph.save(tmp_path / "graph.pdf")
    data = json.loads(graph.save(tmp_path / "graph.json").read_text())
    assert data["tokens"] == graph.tokens
    assert data["probabilities"] == graph.probabilities


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("models/spoken-numbers-en", "reads sound, and TEXT is none; give its features"),
        ("semantic_parsing/geo", "a step of this Rnn cannot score guesses behind one another"),
    ],
)
def test_models_whose_text_cannot_be_drawn_say_so_in_the_shell(model, message, tmp_path, capsys):
    path = str(tmp_path / "graph.json")
    options = ["--model", str(MODEL.parents[1] / model), "--output", path]
    assert main(["graph", "hello", *options]) == 1
    assert message in capsys.readouterr().err


def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch):
    graph = decoding_graph(random_model(1), [1], algorithm=pybeam.greedy(max_length=5))
    for name, library in (("graph.html", "plotly"), ("graph.png", "matplotlib")):
        for module in list(sys.modules):
            if module.partition(".")[0] == library:
                monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(
            ImportError, match=rf"needs {library}, .*pip install 'pybeam-search\[graph\]'"
        ):
            graph.save(tmp_path / name)


@pytest.fixture(scope="module")
def graph():
    if not (MODEL / "model.safetensors").exists():
        pytest.skip(f"{MODEL} is missing")
    model, tokenizer = pybeam.load_model(MODEL), pybeam.load_tokenizer(MODEL)
    return decoding_graph(model, tokenizer.encode("Sea la luz."), labels={2: "<end> & more"})


@pytest.mark.slow
def test_pictures(graph, tmp_path):
    pytest.importorskip("matplotlib")
    svg = graph.save(tmp_path / "graph.svg").read_text()
    assert svg.count("&lt;end&gt; &amp; more") == 1
    assert f"{graph.probabilities[0][0]:.2f}".lstrip("0") in svg
    assert graph.save(tmp_path / "graph.svg").read_text() == svg
    assert graph.save(tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_page_in_a_browser(graph, tmp_path):
    pytest.importorskip("plotly")
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("chromium is not installed (Debian: apt install chromium)")
    page = graph.save(tmp_path / "graph.html")
    text = page.read_text()
    assert not re.search(r"<(script|link)[^>]+(src|href)=", text), "the page loads something"
    run = subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    drawn = run.stdout
    assert drawn.count('class="slider-label"') >= graph.num_iterations
    assert drawn.count("&lt;end&gt; &amp;") >= 1
    for number in graph.probabilities[-1]:
        assert f">{number:.2f}".replace("0.", ".") in drawn


@pytest.mark.slow
def test_in_a_notebook(graph):
    pytest.importorskip("plotly")
    fragment = graph._repr_html_()
    assert "<html" not in fragment
    assert "Plotly.newPlot" in fragment
