"""The example that extracts JSON."""

from __future__ import annotations

import io
import json
import sys

import jsonschema
import pytest

from support.paths import ROOT

# the last one is about nothing that the schema knows
VERSES = "Y dijo Dios: Sea la luz; y fué la luz.\nMas Moisés habló del agua al pueblo.\nY lloró.\n"


@pytest.mark.slow
def test_records_are_what_the_schema_allows(monkeypatch, capsys):
    pytest.importorskip("llguidance")
    monkeypatch.syspath_prepend(ROOT / "examples" / "extraction")
    import extract

    monkeypatch.setattr(sys, "stdin", io.StringIO(VERSES))
    extract.main()
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(records) == 3
    for record in records:
        jsonschema.validate(record, extract.SCHEMA)
    assert records[:2] == [
        {"speaker": "God", "about": "light"},
        {"speaker": "Moses", "about": "water"},
    ]
