"""The example that finds verses, on a few queries."""

from __future__ import annotations

import sys

import pytest

from support.paths import ROOT

DATA = ROOT.parent / "shared" / "data" / "bible-es-en"


@pytest.mark.slow
def test_verses_are_found(monkeypatch, capsys):
    if not DATA.is_dir():
        pytest.skip(f"there is no {DATA}")
    monkeypatch.syspath_prepend(ROOT / "examples" / "retrieval")
    import verses

    options = ["--data", str(DATA), "--queries", "8", "--widths", "4"]
    monkeypatch.setattr(sys, "argv", ["verses.py", *options])
    verses.main()
    _, catalogue, translation = capsys.readouterr().out.strip().splitlines()[-3:]
    for line in (catalogue, translation):
        first, among = (float(share.rstrip("%")) for share in line.split()[-3:-1])
        assert 50 <= first <= among
