"""`SECURITY.md` names the test that holds each answer to a threat."""

import re

from support.paths import ROOT

NAME = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_threat_has_a_test_that_exists():
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        found = NAME.findall(row)
        assert found, row
        for path, function in found:
            assert f"def {function}(" in (ROOT / path).read_text("utf-8"), function
