"""Put the built site into a folder of sites, one for each version: `python docs/versions.py SITES`.

`versions.json` there lists them, the newest first, and `index.html` leads to the newest release. Before the
first one, it leads to the newest candidate.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from packaging.version import Version

BUILT = Path(__file__).parent / "_build" / "html"


def publish(built: Path, sites: Path, version: str) -> list[str]:
    """Copy a site to SITES/VERSION, and return all versions that are there."""
    shutil.rmtree(sites / version, ignore_errors=True)
    shutil.copytree(built, sites / version)
    names = sorted((path.parent.name for path in sites.glob("*/index.html")), key=Version)[::-1]
    front = next((name for name in names if not Version(name).is_prerelease), names[0])
    (sites / "versions.json").write_text(json.dumps(names) + "\n")
    leads = f'<!doctype html><meta http-equiv="refresh" content="0; url={front}/">\n'
    (sites / "index.html").write_text(leads)
    # GitHub would leave out folders that begin with `_`
    (sites / ".nojekyll").touch()
    return names


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import pybeam

    print(*publish(BUILT, Path(sys.argv[1]), pybeam.__version__))
