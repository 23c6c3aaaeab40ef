"""Say why the native kernels are not there, and what to do."""

from __future__ import annotations

from pathlib import Path

import torch

PACKAGE = Path(__file__).parents[1]


def reason(error: ImportError, package: Path = PACKAGE) -> str:
    """Why `import pybeam._C` raised `error`, and the remedy."""
    files = sorted(path.name for path in package.glob("_C*.*") if path.suffix in (".so", ".pyd"))
    if not files:
        why = "this installation has no compiled kernels"
    elif isinstance(error, ModuleNotFoundError):
        why = f"the compiled kernels ({', '.join(files)}) are for another Python or machine"
    else:
        why = (
            f"the compiled kernels ({', '.join(files)}) cannot be loaded beside torch "
            f"{torch.__version__}: {error}"
        )
    return f"{why}; {remedy(package)}"


def remedy(package: Path) -> str:
    if (package.parent / "csrc").exists():  # a clone
        return "run `make build`, which needs a C++ compiler (Debian: `apt install g++`)"
    return (
        "run `pip install --force-reinstall --no-deps pybeam-search`, which takes a wheel that has "
        "them, or builds them where there is none and a C++ compiler is installed"
    )
