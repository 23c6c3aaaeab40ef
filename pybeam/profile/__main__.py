"""`python -m pybeam.profile`."""

import sys

from pybeam.profile.command import main

sys.exit(main())
