"""Test Triton kernels without a GPU: run the suite again, in Triton's interpreter.

Triton reads ``TRITON_INTERPRET`` when a kernel is decorated, so a process either interprets kernels
or compiles them. The interpreter therefore gets a process of its own:

    def test_in_the_interpreter():
        run_in_interpreter("tests/ops/test_select.py", "-k", "ties or forced")
        run_in_interpreter("tests/ops/interpreted/test_select_slices.py")

runs pytest with ``--backend triton``, so that the fixtures `backend` and `kernel` name Triton alone.
Tests that fit every backend stand in the ordinary files. Tests of parts that only the Triton kernels have
(slices, splits, counters) stand in ``tests/ops/interpreted/``. Only a process that interprets, or that has
a GPU (``--device cuda``), collects them.

The programs of a grid run in a random order, as they may on a GPU. ``PYBEAM_GRID_SEED=N`` repeats the order
that a failed run prints.

The interpreter takes about 0.1 ms per operation and program: keep vocabularies and grids small.
It gets bfloat16 arithmetic wrong; a kernel must convert to float32 right after it loads.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from pybeam.backends import poison
from support.paths import ROOT

# the interpreter computes with NumPy, which warns where a GPU silently makes an infinity or a NaN
WARNINGS = (
    "ignore::RuntimeWarning:triton.runtime.interpreter",
    "ignore::DeprecationWarning:triton.runtime.interpreter",
)


def is_interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def run_in_interpreter(*arguments: str) -> None:
    """Run pytest with these arguments in the interpreter; all must pass and none may be skipped."""
    pytest.importorskip("triton", reason="triton is not installed")
    ignored = [part for warning in WARNINGS for part in ("-W", warning)]
    options = ("-q", "-x", "--backend", "triton", "-p", "no:cacheprovider")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *ignored, *arguments],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-8000:]
    summary = result.stdout.strip().splitlines()[-1]
    assert re.search(r"\b[1-9]\d* passed", summary) and "skipped" not in summary, summary


def grid_seed() -> int:
    return int(os.environ.setdefault("PYBEAM_GRID_SEED", str(secrets.randbelow(10**6))))


def shuffle_programs() -> None:
    """Have the interpreter run the programs of every grid in a random order, which `grid_seed` decides."""
    from triton.runtime.interpreter import interpreter_builder as builder

    random_order = random.Random(grid_seed())
    begin, go_to = builder.set_grid_dim, builder.set_grid_idx
    order: Iterator[tuple[int, ...]] = iter(())

    def begin_shuffled(*sizes: int) -> None:
        nonlocal order
        begin(*sizes)
        places = list(itertools.product(*map(range, sizes)))
        random_order.shuffle(places)
        order = iter(places)

    builder.set_grid_dim = begin_shuffled
    builder.set_grid_idx = lambda *place: go_to(*next(order))


def hasten_interpreter() -> None:
    """Save five sixths of the interpreter's time."""
    from triton.language import core
    from triton.runtime import interpreter

    # it looks whether integers overflow, and drops what it has found unless kernels are debugged
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)

    # each shape is a tuple, and nobody reads the names of its type
    def begin_without_name(self, types, fields=None) -> None:
        self.types, self.fields = types, fields or [""] * len(types)

    core.tuple_type.__init__ = begin_without_name
    core.tuple_type.name = property(lambda self: ", ".join(map(str, self.types)))
    interpreter._get_np_dtype = once_per_name(interpreter._get_np_dtype)

    patched = set()

    def call(function, *arguments, **named):
        # once per module is enough
        if function.fn.__module__ not in patched:
            patched.add(function.fn.__module__)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = call


def once_per_name(numpy_type):
    """The function, which is asked once for all blocks of an element type."""
    known: dict[str, np.dtype] = {}

    def known_type(of) -> np.dtype:
        name = of.scalar.name
        if name not in known:
            known[name] = numpy_type(of)
        return known[name]

    return known_type


def launch_one_at_a_time() -> None:
    """Have threads wait for one another: a launch replaces parts of `triton.language` while it runs."""
    from triton.runtime.interpreter import InterpretedFunction

    run, is_free = InterpretedFunction.run, threading.Lock()

    def run_alone(self, *arguments, **options):
        with is_free:
            return run(self, *arguments, **options)

    InterpretedFunction.run = run_alone


def lose_nan() -> None:
    """Have the larger and the smaller of a number and NaN be the number, as on a GPU."""
    from triton.runtime.interpreter import InterpreterBuilder

    InterpreterBuilder.create_maxnumf = lambda self, *pair: self.binary_op(*pair, np.fmax)
    InterpreterBuilder.create_minnumf = lambda self, *pair: self.binary_op(*pair, np.fmin)


def poison_masked_loads() -> None:
    """Have masked loads of blocks give absurd numbers where a kernel says no other number.

    There a register of a GPU holds anything. The interpreter would give zeros.
    """
    from triton.runtime import interpreter

    load = interpreter.InterpreterBuilder.create_masked_load

    def load_poisoned(self, pointers, mask, other, *options, **named):
        # the interpreter takes a single 0 for no number
        if other is None and pointers.data.size > 1:
            dtype = pointers.get_element_ty()
            other = interpreter.TensorHandle(
                _absurd(interpreter, dtype, pointers.data.shape), dtype
            )
        return load(self, pointers, mask, other, *options, **named)

    if poison.IS_ON:
        interpreter.InterpreterBuilder.create_masked_load = load_poisoned


def _absurd(interpreter, dtype, shape: tuple[int, ...]) -> np.ndarray:
    # the interpreter has bfloat16 as uint16
    numbers = np.dtype(interpreter._get_np_dtype(dtype))
    if numbers.kind == "f":
        return np.full(shape, np.nan, numbers)
    # of 16 bits that is NaN in bfloat16, too
    return np.full(shape, True if numbers.kind == "b" else np.iinfo(numbers).max, numbers)
