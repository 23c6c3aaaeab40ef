"""The way in for the command `pybeam`, outside the folder `pybeam/`.

PyPI has another distribution, `pybeam`, which reads Erlang files from a folder of the same name. If both
are installed, the later one overwrites `pybeam/__init__.py`; when one is uninstalled, the file is gone.
Nothing inside the folder can tell then. This module can.
"""

import sys
from importlib import import_module
from types import ModuleType


def in_the_way() -> str:
    """Say which distribution is in the way, and the remedy."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        state = f"{version('pybeam')} is installed"
    except PackageNotFoundError:
        state = "was installed once"
    return (
        f"another distribution is in the way: `pybeam`, a reader of Erlang files, {state}. Its files "
        "and those of pybeam-search share the folder `pybeam` and replace each other. To have the beam "
        "search, run `pip uninstall -y pybeam pybeam-search`, then `pip install pybeam-search`"
    )


def is_ours(package: ModuleType) -> bool:
    """Whether `import pybeam` gave the beam search, and not another module or an empty folder."""
    return "load_model" in getattr(package, "__all__", ())


def main() -> int:
    """Run the command `pybeam`; returns the exit code."""
    try:
        found = is_ours(import_module("pybeam"))
    except ImportError:  # the other one needs packages of its own; ours needs none here
        found = False
    if not found:
        print(f"pybeam: {in_the_way()}", file=sys.stderr)
        return 1
    return int(import_module("pybeam.__main__").main())
