"""What Triton compiles with the C compiler of the machine: its driver, and a launcher for each signature.

Kernels themselves need no C compiler. Triton keeps all of them in its cache on disk (TRITON_CACHE_DIR).
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

REMEDY = "install gcc and the headers of this Python (Debian: `apt install gcc python3-dev`)"


def problem() -> str | None:
    """Say what Triton would not find if it had to compile a launcher; None: all is there."""
    # in its order
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    missing = [] if compiler and shutil.which(compiler) else ["no C compiler"]
    missing += [] if header.exists() else [f"no {header}"]
    return f"there is {' and '.join(missing)}; {REMEDY}" if missing else None


def load_driver() -> None:
    """Have Triton compile its driver, or find it in its cache. Raises ImportError if it cannot."""
    import triton

    try:
        # makes the driver, and uses no device
        triton.runtime.driver.active.is_active()
    except Exception as error:
        reason = problem() or f"{type(error).__name__}: {error}"
        raise ImportError(f"Triton cannot compile its driver: {reason}") from error
