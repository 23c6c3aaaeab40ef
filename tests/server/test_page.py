"""The files of the page at `/`: what a browser is not needed for."""

import re
import tomllib
from html.parser import HTMLParser

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from pybeam.server import errors
from pybeam.server.endpoints import page as endpoint
from pybeam.server.endpoints.page import FILES, TYPES
from support.paths import ROOT

SCRIPTS = {path.name: path.read_text("utf-8") for path in FILES.glob("*.js")}
SCRIPT = "\n".join(SCRIPTS.values())
STYLES = [path.read_text("utf-8") for path in FILES.glob("*.css")]
# of text, by WCAG 2 level AA
LEAST_CONTRAST = 4.5


def client() -> TestClient:
    """A client of the page alone, without a model."""
    app = FastAPI()
    app.include_router(endpoint.router)
    errors.install(app)
    return TestClient(app)


class Page(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self._labels = 0
        self.unlabelled: list[str] = []
        self.feed((FILES / "index.html").read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self._labels += tag == "label"
        is_named = self._labels or attributes.get("aria-label")
        if tag in ("input", "select", "textarea") and not is_named:
            self.unlabelled.append(attributes["id"])

    def handle_endtag(self, tag):
        self._labels -= tag == "label"


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in TYPES)])
def test_files_have_their_type_and_a_strict_policy(path):
    answer = client().get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(TYPES[path.rpartition("/")[2] or "index.html"])
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_only_files_of_the_page_are_given():
    for name in ("app.py", "%2e%2e/app.py", "none.js"):
        assert client().get(f"/page/{name}").status_code == 404


def test_every_file_of_the_folder_is_given_and_packaged():
    assert {path.name for path in FILES.iterdir()} == set(TYPES)
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    assert packaged["package-data"]["pybeam.server"] == ["page/*"]


def test_nothing_is_inline_and_nothing_comes_from_elsewhere():
    page = Page()
    for tag, attributes in page.elements:
        assert tag != "style" and "style" not in attributes
        assert tag != "script" or attributes["src"]
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href"):
            assert not re.match(r"(\w+:)?//|/", attributes.get(name) or ""), attributes
    assert "innerHTML" not in SCRIPT
    # the name of SVG's elements, which nobody fetches
    assert set(re.findall(r"\w+://[\w./]*", SCRIPT)) == {"http://www.w3.org/2000/svg"}
    assert not [style for style in STYLES if "@import" in style or "url(" in style]


def test_scripts_import_what_is_there():
    loaded = {attributes["src"] for tag, attributes in Page().elements if tag == "script"}
    for name, script in SCRIPTS.items():
        imported = re.findall(r"import (?:[^;]*? from )?\"([^\"]+)\"", script)
        assert len(imported) == len(re.findall(r"^import\b", script, re.M)), name
        for other in imported:
            given = SCRIPTS[other.removeprefix("./")]
            loaded.add(f"page/{other.removeprefix('./')}")
            names = re.findall(rf"import {{([^}}]*)}} from \"{re.escape(other)}\"", script)
            for one in ",".join(names).split(","):
                assert not one or re.search(rf"^export .*\b{one.strip()}\b", given, re.M), (
                    name,
                    one,
                )
    # none is dead
    assert loaded == {f"page/{name}" for name in SCRIPTS}


def test_names_in_the_script_and_in_labels_are_those_of_the_page():
    page = Page()
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'\bat\("([\w-]+)"\)', SCRIPT)) <= set(ids)
    for _, attributes in page.elements:
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert attributes.get(name, ids[0]) in ids
    labels = {attributes.get("for") for tag, attributes in page.elements if tag == "label"}
    assert set(page.unlabelled) <= labels


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_stand_out_from_their_ground(scheme):
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", "".join(STYLES))
    colours = {name: pair[scheme] for name, *pair in pairs}
    for text in ("text", "open", "accent", "problem"):
        for ground in ("ground", "raised"):
            assert contrast(colours[text], colours[ground]) >= LEAST_CONTRAST, (text, ground)


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio."""
    light = sorted((luminance(one), luminance(other)))
    return (light[1] + 0.05) / (light[0] + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
