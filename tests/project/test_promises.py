"""Sentences that promise something of every case are held by a test, which `promises.toml` names."""

import re
import tomllib

from support.pages import PAGES
from support.paths import ROOT

PROMISE = re.compile(
    r"\b(?:any|never)\b|\bno \w+(?: \w+)? stops?\b|\bcosts? (?:next to )?nothing\b",
    re.IGNORECASE,
)
CODE = re.compile(r"^( *)```.*?^\1```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
# between paragraphs, points of a list, rows of a table
BREAK = re.compile(r"\n\s*\n|\n\s*(?=[-*] |\d+\. )|\n(?=\|)|(?<=[.!?])\s+")
LISTED: dict[str, list[str]] = tomllib.loads(
    (ROOT / "tests" / "project" / "promises.toml").read_text("utf-8")
)


def promises_of(text: str) -> list[str]:
    """Return the sentences of a page that promise; what stands in code does not."""
    sentences = (" ".join(part.split()) for part in BREAK.split(CODE.sub("\n\n", text)))
    return [one for one in sentences if PROMISE.search(re.sub(r"`[^`]*`|\"[^\"]*\"", "", one))]


def test_promises_are_found():
    text = "# A\n\nIt is fast. No line\nstops it! `never` is a\nword.\n\n```py\n# any\n```\n- Never so\n"
    assert promises_of(text) == ["No line stops it!", "- Never so"]
    assert promises_of("| a | b |\n| c | That costs next to nothing |") == [
        "| c | That costs next to nothing |"
    ]


def test_every_promise_is_held_by_a_test():
    found = {one: page for page in PAGES for one in promises_of(page.read_text("utf-8"))}
    listed = [one for sentences in LISTED.values() for one in sentences]
    unheld = [f"{found[one].relative_to(ROOT)}: {one}" for one in found if one not in listed]
    assert not unheld, "name a test in promises.toml, or promise less:\n" + "\n".join(unheld)
    assert sorted(listed) == sorted(found), f"no page says {set(listed) - set(found)}"


def test_the_tests_exist():
    for name in LISTED:
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text("utf-8"), name
