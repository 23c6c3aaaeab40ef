"""Rules of the house that a search through the source can check, a test each.

A test lists every place that breaks its rule.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.paths import ROOT

# `pybeam/triton_kernels` is a link, which `rglob` does not follow
LIBRARY = sorted(
    {*(ROOT / "pybeam").rglob("*.py")}
    | {ROOT / "pybeam" / p.relative_to(ROOT) for p in (ROOT / "triton_kernels").rglob("*.py")}
)
OTHERS = sorted(
    p
    for name in ("tests", "benchmarks", "packages", "release")
    for p in (ROOT / name).rglob("*.py")
)
KERNELS = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".cpp", ".h", ".cu", ".cuh"})
# the floors of the house, top first: a room may import those on lower floors, never one beside it or above
WINGS = [
    ["cli"],
    ["ray"],
    ["server", "tasks"],
    ["compat", "corpus", "inspect", "reranking", "serving", "study", "traffic"],
    ["hub"],
    ["catalogue", "ctc", "diversity", "export", "shortlist"],
    ["speech"],
]
CORE = [
    ["decoder"],
    ["engine"],
    ["state"],
    ["search"],
    ["drafts"],
    ["request"],
    ["processors"],
    ["models"],
    ["automata", "kvcache", "ops"],
    ["backends", "scoring", "stopping", "text"],
    ["triton_kernels"],
    ["arguments", "contracts", "limits", "platforms"],
]
FLOORS = WINGS + CORE
# they stand outside: the public face and the way in import everything, and nothing inside imports them
ENTRANCES = {"__init__", "__main__"}
MAX_FLAT_FILES = 11
# of a function
MAX_LINES, MAX_PARAMETERS = 60, 8
# of a function that a Triton kernel calls
MAX_KERNEL_PARAMETERS = 12


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_search_loop_stands_once():
    callers = [name_of(p) for p in LIBRARY if re.search(r"session\.step\(", p.read_text("utf-8"))]
    assert callers == ["pybeam/engine/engine.py"]


def test_inference_mode_is_left_whatever_is_raised():
    """`pybeam.backends.inference` says why torch's own way is not enough."""
    pattern = re.compile(r"torch\.(inference_mode|no_grad|set_grad_enabled)\(")
    assert not [name_of(p) for p in LIBRARY if pattern.search(p.read_text("utf-8"))]


def test_algorithms_never_loop_or_call_the_model():
    found = []
    for path in (ROOT / "pybeam" / "search").glob("*.py"):
        text = path.read_text("utf-8")
        loops = any(isinstance(node, ast.While) for node in ast.walk(ast.parse(text)))
        if loops or ".step(" in text:
            found.append(name_of(path))
    assert not found


def room_of(module: str) -> str:
    """The folder or file below `pybeam/` that holds this module; "__init__" for the package itself."""
    return module.split(".")[1] if "." in module else "__init__"


def statements(path: Path) -> Iterator[ast.AST]:
    """The statements of a file. Expressions, which are most of its nodes, are not looked into."""
    left: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while left:
        yield (node := left.pop())
        for blocks in ("body", "handlers", "orelse", "finalbody", "cases"):
            left += getattr(node, blocks, [])


@cache
def imports_of(path: Path) -> set[str]:
    """The modules of pybeam that a file imports anywhere: at the top, in a function, for types alone."""
    found = set()
    for node in statements(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in whole]
        found.update(name for name in names if name in MODULES)
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in LIBRARY}


def test_every_room_has_its_floor():
    rooms = {room_of(module) for module in MODULES} | {"__main__"}
    known = {room for floor in FLOORS for room in floor} | ENTRANCES
    assert rooms == known
    flat = [path.name for path in LIBRARY if path.parent == ROOT / "pybeam"]
    assert len(flat) <= MAX_FLAT_FILES


def test_imports_go_down():
    found = []
    for module, path in MODULES.items():
        room = room_of(module)
        if room in ENTRANCES:
            continue
        [floor] = [i for i, rooms in enumerate(FLOORS) if room in rooms]
        allowed = {room for rooms in FLOORS[floor + 1 :] for room in rooms} | {room}
        # these are users of the public face, or ask it for the version
        allowed |= {"__init__"} if room in ("cli", "corpus", "server") else set()
        found += [f"{module} -> {one}" for one in imports_of(path) if room_of(one) not in allowed]
    assert not found


def test_no_import_comes_back():
    imports = {module: imports_of(path) for module, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, way: list[str]) -> None:
        assert module not in way, " -> ".join([*way, module])
        if module not in done:
            for name in imports[module]:
                visit(name, [*way, module])
            done.add(module)

    for module in imports:
        visit(module, [])


def test_files_stay_readable():
    long, vague, unfinished, foreign = [], [], [], []
    for path in LIBRARY + KERNELS + OTHERS:
        text, name = path.read_text("utf-8"), name_of(path)
        long += [name] if text.count("\n") >= 400 else []
        vague += [name] if path.stem in {"utils", "common", "misc", "helpers"} else []
        # a test may feed what the library must not contain
        is_unfinished = path not in OTHERS and re.search(r"TODO|FIXME|-1e\d+|-65504", text)
        unfinished += [name] if is_unfinished else []
        foreign += [name] if re.search(r"^\s*(import|from) triton_kernels", text, re.M) else []
    assert not long, "400 lines or more"
    assert not vague, "the name does not say what is in the file"
    assert not unfinished, "something to do, or a number for minus infinity"
    assert not foreign, "`triton_kernels` is another package's name"


# with all names in parentheses
IMPORT = re.compile(r"^\s*(?:from|import)\s[^(\n]*(?:\([^)]*\))?", re.M)


def test_what_tests_share_stands_in_support():
    """Any test file can be read, run and deleted alone."""
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        imports = " ".join(IMPORT.findall(path.read_text("utf-8")))
        if re.search(r"\b(test_\w+|conftest)\b", imports):
            found.append(name_of(path))
    assert not found


def long_functions(path: Path) -> Iterator[str]:
    """The functions beyond the limits whose comment does not say why. Docstrings do not count."""
    lines = path.read_text("utf-8").split("\n")
    for node in statements(path):
        if not isinstance(node, ast.FunctionDef):
            continue
        first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
        length = node.end_lineno - first.lineno + 1
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        num_parameters = sum(argument.arg not in ("self", "cls") for argument in given)
        if length > MAX_LINES or num_parameters > MAX_PARAMETERS:
            top = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if not lines[top - 2].strip().startswith("#"):
                yield f"{name_of(path)}: {node.name}: {length} lines, {num_parameters} parameters"


def test_functions_stay_readable():
    # a kernel is one function, and may be long
    paths = [path for path in LIBRARY if "triton_kernels" not in path.parts]
    found = [one for path in paths for one in long_functions(path)]
    assert not found, "say why in a comment above"


def test_only_kernels_take_their_arguments_one_by_one():
    """`triton_kernels/__init__.py` says why they do, and why nothing that they call does."""
    found, num_functions = [], 0
    for path in (path for path in LIBRARY if "triton_kernels" in path.parts):
        for node in statements(path):
            is_function = isinstance(node, ast.FunctionDef) and not node.name.endswith("_kernel")
            if is_function and any("jit" in ast.unparse(mark) for mark in node.decorator_list):
                num_functions += 1
                num_parameters = len(node.args.args)
                is_long = num_parameters > MAX_KERNEL_PARAMETERS
                found += [f"{name_of(path)}: {node.name}: {num_parameters}"] if is_long else []
    assert num_functions > 70
    assert not found, "gather arguments in a NamedTuple"


def test_one_file_holds_the_headers_of_torch():
    is_torch = re.compile(r"#include <(torch|ATen|c10)/")
    assert [name_of(p) for p in KERNELS if is_torch.search(p.read_text())] == ["csrc/torch.h"]
    is_operator = re.compile(r'#include "(\.\./)?(ops/|torch\.h)')
    users = {
        name_of(p) for p in KERNELS if p.suffix == ".cpp" and is_operator.search(p.read_text())
    }
    assert users == {"csrc/cuda/registration.cpp", "csrc/registration.cpp", "csrc/torch.cpp"}


def test_suffixes_of_kernels_mean_one_thing():
    """Code that is compiled once per instruction set, and nothing else, is in files `-inl.h`."""
    for path in KERNELS:
        included = re.findall(r'#include "([^"]*-inl\.h)"', path.read_text())
        is_set = re.search(r"= make_kernels\(", path.read_text())
        assert bool(is_set) or not included or path.name == "kernels-inl.h"
        assert "-inl" not in path.name or path.parent.name == "cpu"


def test_weights_are_never_pickled():
    loaders = [
        name_of(p)
        for p in LIBRARY
        if re.search(r"torch\.load\(|import pickle", p.read_text("utf-8"))
    ]
    # a published file, through the reader that runs no code; and between processes of one user, as all that
    # Ray sends, or that an engine says to the process that it is a copy of, which is never a file
    assert loaders == [
        "pybeam/export/pickled.py",
        "pybeam/ray/weights.py",
        "pybeam/serving/engine_process.py",
    ]
    text = (ROOT / loaders[0]).read_text("utf-8")
    assert text.count("torch.load(") == text.count("weights_only=True, ") == 1
    assert "pickle.load" not in text
