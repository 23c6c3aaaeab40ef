"""The command `pybeam`, which is also `python -m pybeam`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from pybeam import cli

        return cli.main()
    except KeyboardInterrupt:  # while modules are loaded; later the command line sees to it
        return 130


if __name__ == "__main__":
    sys.exit(main())
