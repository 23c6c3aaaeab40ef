"""The recipes of `CONTRIBUTING.md`: what they ask for is there, and whoever follows them passes.

A recipe is followed in a clone. Then a step is left out, and a test of the house must notice. How long the
core may be (`test_core.py`) is another question: what is new there takes the place of something.
"""

from __future__ import annotations

import shutil

import pytest

from law import axes
from law.models import model_of
from law.oracle import ORACLES, ORACLES_BESIDE, SEARCHES, public_name
from pybeam import ops
from support.contributions import ALGORITHM, KERNEL, KERNEL_TOO, PROCESSOR, Clone
from support.new_kernel import write_stubs
from support.paths import ROOT

# they draw, or are functions of others: tests beside them say what they do
WITHOUT_ORACLE = {"Gumbel", "Sample", "AllowedTokens", "Function", "function"}
HOUSE = (
    "tests/project/test_reference_pages.py",
    "tests/project/test_public_defaults.py",
    "tests/project/test_public_names.py",
    "tests/project/test_docstrings.py",
    "tests/project/test_architecture.py",
    "tests/project/test_typed_options.py",
)
RECIPES = "tests/project/test_recipes.py"
AXIS = "tests/law/test_law.py"
OF_AXIS = "test_every_public_name_is_on_an_axis"
PAGE = "tests/project/test_reference_pages.py"
OF_PAGE = "test_every_public_name_is_on_a_page"
IS_SLOW = pytest.mark.slow


def test_every_processor_has_an_oracle():
    model = model_of("function", "float32")
    found = {type(one).__name__ for make in axes.PROCESSORS.values() for one in make(model)}
    assert found - set(ORACLES) == WITHOUT_ORACLE


def test_every_algorithm_has_an_oracle():
    assert set(map(public_name, axes.ALGORITHMS)) == {*SEARCHES, *ORACLES_BESIDE}
    for name, path in ORACLES_BESIDE.items():
        assert name in (ROOT / path).read_text("utf-8"), path


def test_every_kernel_has_its_files():
    """A test beside an oracle, the operator's own checks, and a benchmark."""
    benchmarks = "".join(
        path.read_text("utf-8")
        for path in sorted((ROOT / "benchmarks" / "kernels").glob("bench_*.py"))
    )
    operators = [name for name in ops.__all__ if name[0].islower()]
    assert len(operators) >= 5
    for name in operators:
        assert (ROOT / "tests" / "ops" / f"test_{name}.py").exists(), name
        assert f"\nbench_{name} = " in benchmarks, f"{name} has no benchmark"
        assert hasattr(ops.checks, name), name


@pytest.fixture
def clone(tmp_path) -> Clone:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    return Clone(tmp_path / "clone")


@IS_SLOW
def test_a_processor(clone):
    clone.follow(PROCESSOR)
    assert clone.formatted() == ""
    own = *HOUSE, RECIPES, AXIS, "tests/processors/test_processors.py"
    wanted = f"project or {OF_AXIS} or odd_penalty"
    assert clone.failed(own, "-m", "not slow", "-k", wanted) == set()
    cases = "tests/law/test_law.py", "-k", "two_values and odd_penalty", "-m", "not slow"
    assert clone.failed(cases[:1], *cases[1:]) == set()
    for step, test, name in (
        ("oracle", RECIPES, "test_every_processor_has_an_oracle"),
        ("axis", AXIS, OF_AXIS),
        ("page", PAGE, OF_PAGE),
    ):
        clone.follow(PROCESSOR, without=step)
        assert clone.failed([f"{test}::{name}"]) == {name}, step


@IS_SLOW
def test_an_algorithm(clone):
    clone.follow(ALGORITHM)
    assert clone.formatted() == ""
    own = *HOUSE, RECIPES, AXIS
    assert clone.failed(own, "-m", "not slow", "-k", f"project or {OF_AXIS}") == set()
    cases = "tests/law/test_law.py", "-k", "two_values and near_beam", "-m", "not slow"
    assert clone.failed(cases[:1], *cases[1:]) == set()
    for step, test, name in (
        ("oracle", RECIPES, "test_every_algorithm_has_an_oracle"),
        ("axis", AXIS, OF_AXIS),
        ("page", PAGE, OF_PAGE),
    ):
        clone.follow(ALGORITHM, without=step)
        assert clone.failed([f"{test}::{name}"]) == {name}, step


def fill(clone: Clone) -> None:
    """Write a rule, its oracle and its kernels in place of the stubs."""
    for replaced in (KERNEL, KERNEL_TOO):
        for path, (old, new) in replaced.items():
            text = (clone.root / path).read_text("utf-8")
            assert text.count(old) == 1, path
            (clone.root / path).write_text(text.replace(old, new), "utf-8")
    contract = clone.root / "pybeam" / "ops" / "__init__.py"
    text = contract.read_text("utf-8")
    contract.write_text(
        text.replace("``out[r, v] = x[r, v]``: write", "``out[r, v] = x[r, v] / 2``: write")
    )


@IS_SLOW
def test_a_kernel(clone):
    build = "setup.py", "-q", "build_ext", "--inplace"
    written = write_stubs("smooth", clone.root)
    assert clone.formatted() == ""
    done = clone.call(*build)
    assert done.returncode == 0, done.stdout[-3000:]
    own = "tests/ops/test_smooth.py"
    stubs = clone.failed([own])
    assert {"test_by_hand", "test_as_its_formula", "test_in_float64", "test_any_team"} <= stubs
    fill(clone)
    assert clone.formatted() == ""
    done = clone.call(*build)
    assert done.returncode == 0, done.stdout[-3000:]
    # without the slow ones, which would follow the recipes again
    assert clone.failed((*HOUSE, RECIPES), "-m", "not slow") == set()
    triton, checked = "tests/ops/test_triton_smooth.py", "tests/ops/test_opcheck.py"
    assert clone.failed((own, triton, checked), "-k", "smooth or every_operator") == set()
    for path, test, name in (
        (own, RECIPES, "test_every_kernel_has_its_files"),
        ("benchmarks/kernels/bench_smooth.py", RECIPES, "test_every_kernel_has_its_files"),
        ("docs/reference/kernels.md", PAGE, OF_PAGE),
        (checked, checked, "test_every_operator_is_checked"),
    ):
        assert clone.root / path in written
        kept = (clone.root / path).read_text("utf-8")
        if (ROOT / path).exists():
            shutil.copy2(ROOT / path, clone.root / path)
        else:
            (clone.root / path).unlink()
        assert clone.failed([f"{test}::{name}"]) == {name}, path
        (clone.root / path).write_text(kept, "utf-8")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Smooth", "must be a name in small letters"),
        ("../smooth", "must be a name in small letters"),
        ("lambda", "must be a name in small letters"),
        ("rotary", "must be new, but there is csrc/params/rotary.h"),
    ],
)
def test_names_that_no_kernel_has(name, message):
    with pytest.raises(ValueError, match=message):
        write_stubs(name, ROOT)
