"""Sentences begin with their subject: none begins with a clause or a genitive that stands for one."""

import re
from pathlib import Path

from support.paths import ROOT

# after quotes, marks of comments and lists, or the end of another sentence; a question is no such sentence
BEGINNING = re.compile(r"(?:^[^\w\n]*|\. )(?:What|Of) [a-z][^?\n]*$", re.MULTILINE)
# of a page, and of options in a help text
PAGE_TITLE = re.compile(r"^#+ .*$", re.MULTILINE)
HELP_TITLE = re.compile(r'^\s*"[^"\n]*",$', re.MULTILINE)
FOLDERS = (
    "benchmarks",
    "csrc",
    "deploy",
    "docs",
    "examples",
    "pybeam",
    "release",
    "tests",
    "triton_kernels",
)
FILES = [
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".h", ".cpp", ".cu", ".cuh", ".md", ".js", ".html"}
    and not {"_build", "node_modules"} & set(path.parts)
    and path != Path(__file__)
]
FILES += ROOT.glob("*.md")


def sentences(path: Path) -> str:
    """Return the text of a file without its titles."""
    title = PAGE_TITLE if path.suffix == ".md" else HELP_TITLE
    return title.sub("", path.read_text("utf-8"))


def test_such_sentences_are_found():
    for line in (
        '    """What is read."""',
        "// Of all rows.",
        "# What is read",
        "* A b. What c is d.",
    ):
        assert BEGINNING.search(line), line
    for line in ("What is it?", '    """Say what is read."""', "A part. Often a"):
        assert not BEGINNING.search(line), line


def test_no_sentence_begins_so():
    assert len(FILES) > 500
    found = [
        f"{path.relative_to(ROOT)}: {match[0].strip()[:80]}"
        for path in FILES
        for match in BEGINNING.finditer(sentences(path))
    ]
    assert not found, "begin these sentences with their subject:\n" + "\n".join(found)
