"""Change the core one small thing at a time and look whether a test notices: `make mutate [MINUTES=...]`.

cosmic-ray says what can be changed. Tests run on a changed copy of the tree, in `build/mutants`: those that
run the changed line, of the files that hold the laws of its module (`mutants.toml`) and then of the others,
the fastest first. Each mutant is a fork of a process that has collected all of them, with a limit of time
and of memory. Results are kept beside the copy, so that the next run goes on. A mutant that survived is
tried again, before new ones, when tests have changed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import multiprocessing
import random
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from tqdm import tqdm

from fuzz.mutated_tree import INVALID, KILLED, ROOT, SURVIVED, Tree, digest_of, is_in_a_function

FOLDER = ROOT / "build" / "mutants"
LAWS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
# operators whose mutants do as the original does, and why
LEFT_OUT = {
    "core/ReplaceComparisonOperator_Eq_Is": "small ints and names are equal if they are the same",
    "core/ReplaceComparisonOperator_NotEq_IsNot": "small ints and names are equal if they are the same",
    "core/ReplaceComparisonOperator_Is_Eq": "None and enums equal nothing but themselves",
    "core/ReplaceComparisonOperator_IsNot_NotEq": "None and enums equal nothing but themselves",
}

EQUIVALENT: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("equivalent_mutants.toml").read_text("utf-8")
)["reason"]
# of the comparison that they put in place of another
ORDERS = ("_Lt", "_LtE", "_Gt", "_GtE")


class Mutant(NamedTuple):
    """A change of one place of a module: cosmic-ray's operator and its how-manieth occurrence."""

    module: str
    operator: str
    occurrence: int
    line: int

    def code(self, original: str) -> str:
        """Return the module's text with the change."""
        return mutate_code(original, get_operator(self.operator)(), self.occurrence)


class Results:
    """Outcomes of mutants, in this run and earlier ones, as long as they are about this code."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[Mutant, dict[str, Any]] = {}
        # they survived older tests
        self.doubtful: set[Mutant] = set()
        self._code = {module: digest_of([module]) for module in LAWS}
        self._tests = digest_of(sorted({file for files in LAWS.values() for file in files}))
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            found = json.loads(line)
            mutant, module = Mutant(*found["mutant"]), found["mutant"][0]
            is_old = found["code"] != self._code.get(module)
            if is_old or (found["outcome"] == SURVIVED and found["tests"] != self._tests):
                self.known.pop(mutant, None)
                self.doubtful.add(mutant)
            else:
                self.known[mutant] = found

    def add(self, mutant: Mutant, outcome: str, diff: str) -> None:
        """Remember the outcome of a mutant, here and in the file."""
        found = {"mutant": mutant, "outcome": outcome, "diff": diff}
        found |= {"code": self._code[mutant.module], "tests": self._tests}
        self.known[mutant] = found
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")

    def show(self, module: str) -> None:
        """Print what survived in a module, with its changes, and the score."""
        found = {mutant: one for mutant, one in self.known.items() if mutant.module == module}
        for mutant in sorted(found, key=lambda mutant: mutant.line):
            if found[mutant]["outcome"] == SURVIVED:
                print(f"\n{module}:{mutant.line} {mutant.operator}\n{found[mutant]['diff']}")
        counts = Counter(one["outcome"] for one in found.values())
        if found:
            print(f"{module}: {counts[KILLED]} of {counts[KILLED] + counts[SURVIVED]} killed")


def mutants_of(module: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, but those that can make no difference."""
    text = (ROOT / module).read_text("utf-8")
    idle = list(_idle(ast.parse(text)))
    names = list(_compared_with_a_name(ast.parse(text)))
    nodes = list(ast_nodes(get_ast(text)))
    for name in operator_names():
        kind = get_operator(name)
        # the others insert variables that must be named
        if kind.arguments() or name in LEFT_OUT:
            continue
        positions = [at for node in nodes for at in kind().mutation_positions(node)]
        kept = [*idle, *_equivalent(module, text.splitlines(), name)]
        kept += names if name.endswith(ORDERS) else []
        for occurrence, (begin, end) in enumerate(positions):
            if not any(first <= begin and end <= last for first, last in kept):
                yield Mutant(module, name, occurrence, begin[0])


def _idle(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where nothing is done: annotations, and what is asserted, as no call makes it false."""
    for node in ast.walk(tree):
        parts = [getattr(node, name, None) for name in ("annotation", "returns")]
        is_asserted = isinstance(node, ast.Assert) or (
            isinstance(node, ast.keyword) and node.arg == "strict"
        )
        for found in [*parts, node if is_asserted else None]:
            if found is not None:
                end = found.end_lineno, found.end_col_offset
                yield (found.lineno, found.col_offset), end


def _equivalent(
    module: str, lines: list[str], operator: str
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where a change by this operator makes no difference, as `equivalent_mutants.toml` says."""
    reasons = (one for one in EQUIVALENT if operator.endswith(tuple(one.get("operators", [""]))))
    begins = tuple(begin for reason in reasons for begin in reason.get(module, []))
    for number, line in enumerate(lines, 1):
        if begins and line.strip().startswith(begins):
            yield (number, 0), (number, len(line))


def _compared_with_a_name(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where something is compared with a constant string: of names nobody asks which comes first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for one in (node.left, *node.comparators):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield (
                        (node.lineno, node.col_offset),
                        (node.end_lineno or 0, node.end_col_offset or 0),
                    )


def in_turn(seed: int) -> list[Mutant]:
    """All mutants, shuffled: one of every line comes before a second one of any."""
    shuffler, rounds = random.Random(seed), defaultdict(list)
    for module in LAWS:
        lines = defaultdict(list)
        for mutant in mutants_of(module):
            lines[mutant.line].append(mutant)
        for same in lines.values():
            shuffler.shuffle(same)
            for turn, mutant in enumerate(same):
                rounds[turn].append(mutant)
    for same in rounds.values():
        shuffler.shuffle(same)
    return [mutant for turn in sorted(rounds) for mutant in rounds[turn]]


def diff(name: str, original: str, changed: str) -> str:
    """Return what differs between two texts of a module."""
    lines = (text.splitlines(keepends=True) for text in (original, changed))
    return "".join(difflib.unified_diff(*lines, name, name, n=1))


class Worker:
    """A process that tries mutants on a tree of its own."""

    tree: Tree | Exception
    end: float

    @classmethod
    def start(cls, numbers: Any, seconds: float, end: float) -> None:
        """Begin, with the next number; the first job says what fails here."""
        cls.end = end
        try:
            cls.tree = Tree(FOLDER / f"tree-{numbers.get()}", LAWS, seconds)
        except Exception as error:
            cls.tree = error

    @classmethod
    def watch(cls, file: str) -> None:
        """See what the tests of a file run."""
        if isinstance(cls.tree, Exception):
            raise cls.tree
        cls.tree.watch(file)

    @classmethod
    def outcome(cls, mutant: Mutant) -> tuple[Mutant, str, str]:
        """Return a mutant's outcome, which is nothing when the time is over, and its change."""
        if time.monotonic() > cls.end:
            return mutant, "", ""
        original = (ROOT / mutant.module).read_text("utf-8")
        code = mutant.code(original)
        assert isinstance(cls.tree, Tree)
        outcome = cls.tree.outcome(mutant.module, mutant.line, code)
        return mutant, outcome, diff(mutant.module, original, code)


def try_them(left: list[Mutant], results: Results, options: argparse.Namespace) -> None:
    """Try mutants in this order for so many minutes."""
    processes = multiprocessing.get_context("fork")
    numbers = processes.SimpleQueue()
    for number in range(options.workers):
        numbers.put(number)
    end = time.monotonic() + 60 * options.minutes
    files = sorted({file for files in LAWS.values() for file in files})
    with processes.Pool(options.workers, Worker.start, (numbers, options.seconds, end)) as pool:
        for _ in tqdm(pool.imap_unordered(Worker.watch, files), "files of tests", len(files)):
            pass
        for mutant, outcome, change in tqdm(
            pool.imap_unordered(Worker.outcome, left), "mutants", len(left)
        ):
            if outcome:
                results.add(mutant, outcome, change)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="default: all of mutants.toml")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="default: 60; 0 shows what is known"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order of mutants (default: 0)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of tests for each mutant (default: 6)"
    )
    options = parser.parse_args()
    unknown = sorted(set(options.modules) - set(LAWS))
    if unknown:
        parser.error(f"MODULE must be one of {', '.join(LAWS)}, but is {unknown[0]}")
    modules = options.modules or list(LAWS)
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = Results(FOLDER / "results.jsonl")
    every = [mutant for mutant in in_turn(options.seed) if mutant.module in modules]
    left = [mutant for mutant in every if mutant not in results.known]
    left.sort(key=lambda mutant: mutant not in results.doubtful)
    left.sort(key=lambda mutant: not is_in_a_function(mutant.module, mutant.line))
    if options.minutes:
        try_them(left, results, options)
    for module in modules:
        results.show(module)
    tried = [results.known[mutant]["outcome"] for mutant in every if mutant in results.known]
    # no mutant: a `*` between parameters, say
    tried = [outcome for outcome in tried if outcome != INVALID]
    killed, share = tried.count(KILLED), tried.count(KILLED) / max(1, len(tried))
    print(f"\n{killed} of {len(tried)} mutants killed ({share:.1%}); {len(every)} can be made")
    return 0


if __name__ == "__main__":
    sys.exit(main())
