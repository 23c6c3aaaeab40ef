"""Files that were measured or written on one machine do not name its folders."""

import re

from support.paths import ROOT

FOLDER = re.compile(r"(?<![\w.])/(?:work|tmp|root|home|Users)/[^\s\"']*")
# what `make docs` builds and npm installs is not part of the tree
FILES = [
    path
    for folder in ("benchmarks/results", "docs", "examples", "deploy")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".json", ".svg", ".md", ".ipynb", ".html", ".yaml", ".toml"}
    and not {"_build", "node_modules"} & set(path.parts)
]
FILES += ROOT.glob("*.md")


def test_what_is_such_a_path():
    assert FOLDER.findall('"--data /work/shared/data", /home/me/a') == [
        "/work/shared/data",
        "/home/me/a",
    ]
    assert not FOLDER.search("docs/work/a ../tmp/a https://a.org/home/a tmpfs: ['/tmp']")


def test_the_files_are_found():
    assert len(FILES) > 90


def test_no_file_names_a_folder_of_a_machine():
    named = {path: FOLDER.findall(path.read_text("utf-8")) for path in FILES}
    found = [f"{path.relative_to(ROOT)}: {names[:3]}" for path, names in named.items() if names]
    assert not found, "leave these folders out"
