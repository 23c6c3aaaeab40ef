"""The command `pybeam`, which is also `python -m pybeam`."""

from __future__ import annotations

import os
import sys

# the exit codes of a process that a signal has ended are larger
SIGNALLED = 128


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from pybeam import cli
        from pybeam.cli import signals

        signals.own_process()
        code = cli.main()
    except KeyboardInterrupt:  # while modules are loaded; later the command line sees to it
        return 130
    if code > SIGNALLED:
        # the end of an interpreter waits for threads, and aborts if one wakes up in it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
