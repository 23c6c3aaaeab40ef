"""The page of a search in headless Chromium: gone through step by step, on screens of three widths."""

from __future__ import annotations

import functools
import math

import pytest
import torch

import pybeam
from pybeam.inspect import explain
from pybeam.models import FunctionModel
from support.paths import MODEL
from support.search_models import BOS, EOS, random_model

pytest.importorskip("selenium.webdriver")
from support import browser as chromium
from support.browser import AXE, END, ENTER, HOME, RIGHT, TAB

pytestmark = pytest.mark.slow

LEFT = "\ue012"
LONG = "ja" * 90
# what stands beyond the window, or over a neighbour in the tree
FAULTS = """
const wide = document.documentElement.scrollWidth - window.innerWidth;
const boxes = [...document.querySelectorAll("svg text")].map(text => text.getBoundingClientRect());
const before = (a, b) => a.left < b.right - 1 && a.top < b.bottom - 4;
const meet = (a, b) => before(a, b) && before(b, a);
const over = boxes.filter((a, i) => boxes.slice(i + 1, i + 200).some(b => meet(a, b)));
return [...(wide > 0 ? [`${wide} px too wide`] : []), ...(over.length ? [`${over.length} overlap`] : [])];
"""


@pytest.fixture(scope="module")
def whole_browser():
    if not (chromium.CHROMIUM and chromium.DRIVER):
        pytest.skip("needs `apt-get install chromium chromium-driver`")
    browser = chromium.Browser("about:blank")
    yield browser
    browser.driver.quit()


@pytest.fixture
def opened(whole_browser, tmp_path):
    """Opens the page of a tree; no script of it may complain."""

    def open_page(tree, width=1280, scheme="light"):
        whole_browser.url = tree.save(tmp_path / "tree.html").as_uri()
        whole_browser.load(width, scheme)
        return whole_browser

    yield open_page
    assert not whole_browser.driver.get_log("browser")


@functools.cache
def translated(width=4):
    search = pybeam.variable_beam(width, 2.0, 3) if width < 9 else pybeam.fixed_beam(width)
    return explain(pybeam.load(MODEL), "Y fué la tarde y la mañana un día.", search)


@functools.cache
def odd_trees():
    model, search = random_model(3, 12), pybeam.fixed_beam(3, max_length=4)
    nothing = FunctionModel(lambda rows, *_: torch.full((len(rows), 12), -math.inf), 12, BOS, EOS)
    infinite = explain(model, [1], search)
    infinite.nodes[0] = infinite.nodes[0]._replace(score=-math.inf, log_prob=-math.inf)
    return {
        "long": explain(model, [1], search, labels={i: f"{LONG}{i}" for i in range(12)}),
        "letters that are wide": explain(
            model, [1], search, labels=dict.fromkeys(range(12), "光あれ" * 3)
        ),
        "infinite": infinite,
        "one step": explain(model, [1], pybeam.greedy(max_length=1)),
        "no survivors": explain(nothing, [1], search),
    }


def test_steps_by_keys_slider_and_buttons(opened):
    tree = translated()
    page, last = opened(tree), tree.num_steps
    assert page.text("place") == f"step {last} of {last}"
    page.press(LEFT)
    assert page.text("place") == f"step {last - 1} of {last}"
    page.press(RIGHT)
    page.press(RIGHT)
    assert page.text("place") == f"step {last} of {last}"
    page.click("#back")
    assert page.text("place") == f"step {last - 1} of {last}"
    page.press(TAB)
    assert page.focused() == "slider"
    page.press(HOME)
    assert page.text("place") == f"before the first of {last} steps"
    assert page.texts("#table td") == []
    page.press(RIGHT)
    lines = [
        [f"{node.score:.2f}", node.events[0].fate, tree.text(i)]
        for i, node in enumerate(tree.nodes)
        if node.events[0].step == 1
    ]
    lines.sort(key=lambda line: -float(line[0]))
    cells = page.texts("#table td")
    assert [[*cells[i : i + 5][::2]] for i in range(0, len(cells), 5)] == lines
    visible = "svg g:not(.later) text"
    assert len(page.texts(visible)) == len(lines)
    page.press(END)
    assert len(page.texts(visible)) == len(tree.nodes)


def test_play_goes_on_to_the_end(opened):
    tree = translated()
    page = opened(tree)
    page.run("document.getElementById('play').focus()")
    page.press(ENTER)
    assert page.text("play") == "stop"
    chromium.wait_until(
        lambda: page.text("place") == f"step {tree.num_steps} of {tree.num_steps}", 60
    )
    chromium.wait_until(lambda: page.text("play") == "play")


def test_arrows_scroll_the_tree_where_it_has_the_focus(opened):
    page = opened(translated(), 390)
    before = page.text("place")
    page.run("const e = document.getElementById('scene'); e.focus(); e.scrollLeft = 0")
    page.press(RIGHT)
    chromium.wait_until(lambda: page.run("return document.getElementById('scene').scrollLeft") > 0)
    assert page.text("place") == before


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_what_a_step_keeps_is_seen(opened, width):
    tree = translated(50)
    page = opened(tree, width)
    for _ in range(tree.num_steps):
        assert page.run(
            "const scene = document.getElementById('scene').getBoundingClientRect();"
            "return [...document.querySelectorAll('g.kept.now text, g.finished.now text')].some(one => {"
            "  const box = one.getBoundingClientRect();"
            "  return box.left >= scene.left && box.left < scene.right && box.top >= scene.top &&"
            "    box.bottom <= scene.bottom;"
            "})"
        )
        page.press(LEFT)
    assert page.run(FAULTS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1280])
def test_odd_trees_fit_and_keep_nobody_out(opened, width, scheme):
    for name, tree in {**odd_trees(), "plain": translated()}.items():
        page = opened(tree, width, scheme)
        assert page.text("place") == f"step {tree.num_steps} of {tree.num_steps}", name
        page.press(LEFT)
        for _ in range(tree.num_steps):
            assert page.run(FAULTS) == [], name
            page.press(RIGHT)
        assert not AXE or page.barriers() == [], name
