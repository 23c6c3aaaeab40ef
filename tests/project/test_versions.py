"""The site of each version stands beside those of the others, and the newest release comes first."""

import importlib.util
import json

from support.paths import ROOT

SPEC = importlib.util.spec_from_file_location("versions", ROOT / "docs" / "versions.py")
versions = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(versions)


def test_a_site_joins_those_that_are_there(tmp_path):
    built, sites = tmp_path / "html", tmp_path / "sites"
    built.mkdir()
    # a candidate alone is the front page
    (built / "index.html").write_text("0.1.0rc1")
    versions.publish(built, sites, "0.1.0rc1")
    assert 'url=0.1.0rc1/"' in (sites / "index.html").read_text()
    for version in ("0.9.0", "0.10.0", "0.11.0rc1", "0.10.0rc1", "0.1.0"):
        (built / "index.html").write_text(version)
        versions.publish(built, sites, version)
    assert json.loads((sites / "versions.json").read_text()) == [
        "0.11.0rc1",
        "0.10.0",
        "0.10.0rc1",
        "0.9.0",
        "0.1.0",
        "0.1.0rc1",
    ]
    assert (sites / "0.9.0" / "index.html").read_text() == "0.9.0"
    assert 'url=0.10.0/"' in (sites / "index.html").read_text()
    (built / "index.html").write_text("mended")
    assert len(versions.publish(built, sites, "0.9.0")) == 6
    assert (sites / "0.9.0" / "index.html").read_text() == "mended"
