"""`python -m pybeam` is the command `pybeam`."""

import sys

from pybeam.cli import main

sys.exit(main())
