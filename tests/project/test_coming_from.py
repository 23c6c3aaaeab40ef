"""The tables of "Coming from …" are those of their data, and all that they say is so."""

import importlib.util
import re
import shlex
import subprocess
import sys

import pytest

from pybeam.cli import main
from support import pages
from support.paths import ROOT

SPEC = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)
# pages whose code takes more than a second
SLOW = {"ctranslate2", "faster-whisper", "transformers"}
ABSENT = re.compile(r"not there|not in the recipe|not repeated|no weights")


class CommandFailed(Exception):
    pass


class Prover:
    """Runs the code of one page, whose pieces share their names; `runs_commands` says whether all of it."""

    def __init__(self, capfd, runs_commands: bool) -> None:
        self.names, self.runs_commands, self._capfd = {}, runs_commands, capfd

    def run(self, code: str) -> None:
        if not code.startswith("pybeam "):
            exec(code, self.names)
            return
        arguments = shlex.split(code)[1:]
        if "--processes" in arguments:
            # they are copies of the process that starts them, in which no other threads may have run
            command = [sys.executable, "-m", "pybeam", *arguments]
            run = subprocess.run(command, capture_output=True, text=True)
            status, said = run.returncode, run.stderr
        else:
            try:
                status = main(arguments)
            except SystemExit as end:
                status = end.code
            said = self._capfd.readouterr().err
        if status:
            raise CommandFailed(said)

    def problems_of(self, row: dict) -> list[str]:
        """Return what is not as the row says."""
        found = []
        for code in filter(self._is_run, row.get("runs", [])):
            try:
                self.run(code)
            except Exception as error:
                found.append(f"{code} raised {type(error).__name__}: {error}")
        for name, code in row.get("fails", {}).items():
            try:
                self.run(code)
            except Exception as error:
                if name not in str(error):
                    found.append(f"{code} raised an error without {name!r}: {error}")
            else:
                found.append(f"{code} should not work")
        return found

    def _is_run(self, code: str) -> bool:
        return self.runs_commands or not code.startswith("pybeam ")


@pytest.mark.parametrize(
    "runs_commands", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["python", "commands"]
)
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=pytest.mark.slow if file.stem in SLOW else ())
        for file in tables.FILES
    ],
)
def test_what_a_page_says_is_so(file, runs_commands, tmp_path, monkeypatch, capfd):
    pytest.importorskip("transformers")
    pages.fill(tmp_path)
    if file.stem == "faster-whisper":
        pages.fill_with_whisper(tmp_path)
    if file.stem == "fireredasr":
        pages.fill_with_fireredasr(tmp_path)
    monkeypatch.chdir(tmp_path)
    data = tables.tables_of(file)
    prover = Prover(capfd, runs_commands)
    prover.run(data["setup"])
    rows = [row for table in data["table"] for row in table["row"]]
    found = [f"{row['cells'][0]}: {one}" for row in rows for one in prover.problems_of(row)]
    assert not found, "\n".join(found)


def test_every_row_has_a_proof():
    for file in tables.FILES:
        for table in tables.tables_of(file)["table"]:
            for row in table["row"]:
                assert len(row["cells"]) == len(table["columns"]), row["cells"]
                is_absent = ABSENT.search(row["cells"][1])
                assert row.get("fails") or (row.get("runs") and not is_absent), row["cells"]


def test_pages_have_the_tables_of_their_data_and_no_others():
    pages_with_tables = set((ROOT / "docs" / "coming-from").glob("*.md"))
    assert {file.with_suffix(".md") for file in tables.FILES} == pages_with_tables
    for file in tables.FILES:
        page, data = file.with_suffix(".md").read_text("utf-8"), tables.tables_of(file)["table"]
        assert tables.filled(page, data) == page, f"{file}: run `python docs/tables.py`"
        # the first line of every table that has a column for pybeam
        heads = [
            line for line in re.findall(r"^(\|.*\|)\n\|[-|:]+\|$", page, re.M) if "pybeam" in line
        ]
        assert len(heads) == len(data), f"{file.stem} has a table that its data lack: {heads}"
