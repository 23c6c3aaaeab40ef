"""Print the oldest packages that pyproject.toml allows, as arguments for pip: `numpy==1.23.2 …`.

torch is left out: `make wheel-test` runs the oldest one.
"""

import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
OLDEST_PYTHON = (3, 11)


def oldest(requirements: list[str]) -> list[str]:
    """Pin each requirement `name>=version` to that version."""
    pins = []
    for requirement in requirements:
        name, bound, version = requirement.partition(">=")
        if not bound or not version.replace(".", "").isdigit():
            raise SystemExit(f"pyproject.toml: {requirement!r} must be of the form name>=version")
        if name != "torch":
            pins.append(f"{name}=={version}")
    return pins


def main() -> None:
    if sys.version_info[:2] != OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:2]))
        raise SystemExit(
            f"the oldest packages have wheels for Python 3.11 alone, but this is {found}: "
            "make test-oldest PYTHON=python3.11"
        )
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    print(*oldest(project["dependencies"]), "pytest>=8")


if __name__ == "__main__":
    main()
