"""Put the built site into a folder of sites, one for each version: `python docs/versions.py SITES`.

`versions.json` there lists them, the newest first, and `index.html` leads to the newest one.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

BUILT = Path(__file__).parent / "_build" / "html"


def publish(built: Path, sites: Path, version: str) -> list[str]:
    """Copy a site to SITES/VERSION, and return all versions that are there."""
    shutil.rmtree(sites / version, ignore_errors=True)
    shutil.copytree(built, sites / version)
    names = sorted((path.parent.name for path in sites.glob("*/index.html")), key=_order)[::-1]
    (sites / "versions.json").write_text(json.dumps(names) + "\n")
    leads = f'<!doctype html><meta http-equiv="refresh" content="0; url={names[0]}/">\n'
    (sites / "index.html").write_text(leads)
    # GitHub would leave out folders that begin with `_`
    (sites / ".nojekyll").touch()
    return names


def _order(version: str) -> list[tuple[bool, int, str]]:
    # 0.10.0 follows 0.9.0, and 0.1.0 follows 0.1.0rc1
    parts = re.findall(r"\d+|[a-z]+", version)
    numbers = [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
    return [*numbers, (True, -1, "")]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import pybeam

    print(*publish(BUILT, Path(sys.argv[1]), pybeam.__version__))
