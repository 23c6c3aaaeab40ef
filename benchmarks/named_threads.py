"""`python -m pybeam`, whose threads have the first letters of their names for the system, too.

Python does so by itself from 3.14 on. Threads that are not Python's have the name of the one that made them.
"""

import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from pybeam.__main__ import main

# that Linux keeps of a name
LETTERS = 15


def name_threads() -> None:
    """Give threads that begin from now on their names, where there is /proc."""
    kind: Any = threading.Thread
    begin = kind._set_native_id

    def named(thread: threading.Thread) -> None:
        begin(thread)
        with suppress(OSError):
            Path(f"/proc/self/task/{thread.native_id}/comm").write_text(thread.name[:LETTERS])

    kind._set_native_id = named


if __name__ == "__main__":
    name_threads()
    sys.exit(main())
