"""Attack the library for some minutes: `make fuzz [MINUTES=...]`."""

from __future__ import annotations

import argparse
import random
import sys
import time
from importlib import import_module

from fuzz.running import TARGETS, attack, run_cases

HELP = {
    "files": "damaged directories of models, recordings and catalogues",
    "programs": "random calls of one decoder, with odd values; then it must give known bits",
    "operators": "random arguments of the kernels, against the reference",
    "searches": "whole searches, all options crossed, against a search in plain Python",
}


def main() -> int:
    targets = "\n".join(f"  {name:<10} {HELP[name]}" for name in TARGETS)
    parser = argparse.ArgumentParser(
        prog="python -m fuzz",
        description=f"{__doc__}\n\ntargets:\n{targets}",
        epilog="A failure prints the seed that repeats it: python -m fuzz TARGET --seed N --cases 1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all of them")
    parser.add_argument("--minutes", type=float, default=15.0, help="for each target (default: 15)")
    parser.add_argument("--seed", type=int, help="the first case; default: a random one")
    parser.add_argument("--cases", type=int, help="so many cases of each target at most")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.targets:
        if name not in TARGETS:
            parser.error(f"TARGET must be one of {', '.join(TARGETS)}, but is {name}")
    seed = random.randrange(10**9) if options.seed is None else options.seed
    if options.worker:
        [name] = options.targets
        # what it takes to start belongs to its minutes
        start = time.monotonic()
        module = import_module(f"fuzz.{name}")
        left = 60 * options.minutes - (time.monotonic() - start)
        return run_cases(module.case, seed, left, options.cases)
    failed = [
        name
        for name in options.targets or TARGETS
        if not attack(name, seed, 60 * options.minutes, options.cases)
    ]
    print(f"failed: {', '.join(failed)}" if failed else "clean")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
