"""The cases of translation: which systems translate which lines, with which settings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pybeam
from benchmarks import guesses, translation
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.translation import (
    MAX_LENGTH,
    Case,
    CTranslate2,
    Engines,
    Foreseeing,
    Ours,
    Remembering,
    Transformers,
    fixed,
    variable,
)

EPSILON = 1 / 6
# of a line that had been translated before
PARTS = {"a line that has grown by a third": 0.75, "a line that comes again": 1.0}
# of the sources of parallel decoding
LENGTHS = (1, 20), (21, 40), (41, 128)
# those that guess seldom, or at a known price, beside the first
FEW_GUESSES = (
    "Greedy Autoregressive",
    "HGJ Decoding (b = 3)",
    "Adaptive, padding (ours)",
    "Adaptive (ours)",
)
# width -> (delta, M); the cases `thresholds-*` tell what they lose on the lines of dev and test
CHOSEN = {5: (2.0, 3), 50: (1.6, 3)}
# thresholds that are quicker, and may lose BLEU; the least that does not lose 0.1, in either dtype
LOW = {5: (1.0, 1.2, 1.4), 50: ()}
EQUAL = {5: (1.4, 3)}


def chosen(width: int):
    return variable(width, *CHOSEN[width])


def beside_peers() -> dict[str, Case]:
    """Translation beside CTranslate2 and transformers; README quotes the first cases."""
    batch, fifo = pybeam.Batch(64), pybeam.Fifo(64)
    fixed_5 = {
        "CTranslate2 beam_size=5": CTranslate2(5),
        "transformers num_beams=5": Transformers(5),
        "pybeam fixed 5, Batch(64)": Ours(fixed(5), batch),
        "pybeam fixed 5, Fifo(64)": Ours(fixed(5), fifo),
    }
    return {
        "fixed-5": Case(fixed_5, has_floor=True),
        "variable-5": Case(
            {
                "CTranslate2 beam_size=5": CTranslate2(5),
                "pybeam variable 5, Batch(64)": Ours(chosen(5), batch),
                "pybeam variable 5, Fifo(64)": Ours(chosen(5), fifo),
            },
            has_floor=True,
        ),
        "variable-50": Case(
            {
                "CTranslate2 beam_size=50": CTranslate2(50),
                "pybeam variable 50, Fifo(64)": Ours(chosen(50), fifo),
            },
            lines=200,
            repeats=1,
            has_floor=True,
        ),
        # our weights of two bytes beside theirs of one
        "reduced-5": Case(
            {
                "CTranslate2 int8 beam_size=5": CTranslate2(5, "int8"),
                "CTranslate2 float32 beam_size=5": CTranslate2(5),
                "pybeam bfloat16 variable 5, Batch(64)": Ours(chosen(5), batch, "bfloat16"),
                "pybeam bfloat16 variable 5, Fifo(64)": Ours(chosen(5), fifo, "bfloat16"),
                "pybeam bfloat16 fixed 5, Fifo(64)": Ours(fixed(5), fifo, "bfloat16"),
            },
            repeats=2,
            has_floor=True,
        ),
        "widened-fixed-5": Case(fixed_5, lines=32, network="widened", repeats=1, has_floor=True),
        **_int8(batch, fifo),
        **{f"layouts-{width}": _layouts(width, "float32") for width in (1, 5)},
        **{f"int8-layouts-{width}": _layouts(width, "int8") for width in (1, 5)},
        "widened-int8-layouts-5": _layouts(5, "int8", network="widened", lines=64, repeats=2),
        **{f"int8-engines-{width}": _engines(width) for width in (1, 5)},
        "cache-5": _caches("float32", batch),
        "int8-cache-5": _caches("int8", batch),
        "schedules-5": Case(_schedules(5, 16)),
        "schedules-50": Case(_schedules(50, 64), lines=200),
        **_thresholds("float32"),
        **_thresholds("int8"),
    }


def _layouts(width: int, dtype: str, **options) -> Case:
    """One batch on both threads, and a batch on each, in every system."""
    fifo = pybeam.Fifo(64)
    ours = {"greedy": pybeam.greedy(max_length=MAX_LENGTH)}
    if width > 1:
        ours = {
            f"fixed {width}": fixed(width),
            f"variable {width}": chosen(width),
            f"variable {width}, delta = {EQUAL[width][0]}": variable(width, *EQUAL[width]),
        }
    systems = {
        "CTranslate2, 2 batches of one thread": CTranslate2(width, dtype, side_by_side=2),
        "CTranslate2, 2 batches of one thread, of 16": CTranslate2(width, dtype, 16, 2),
        "CTranslate2, 1 batch of two threads": CTranslate2(width, dtype),
    }
    for name, search in ours.items():
        systems[f"pybeam {name}, 1 engine of two threads"] = Ours(search, fifo, dtype)
        systems[f"pybeam {name}, 2 engines of one thread"] = Engines(search, fifo, dtype)
    return Case(systems, **{"lines": 384, "is_spread": True, "threads": 2} | options)


def _engines(width: int) -> Case:
    """One engine and two, each with one thread."""
    search = fixed(width) if width > 1 else pybeam.greedy(max_length=MAX_LENGTH)
    systems = {
        f"pybeam int8, {number} of one thread": Engines(
            search, pybeam.Fifo(64), "int8", number=number
        )
        for number in (1, 2)
    }
    return Case(systems, lines=384, is_spread=True, threads=2)


def _int8(batch, fifo) -> dict[str, Case]:
    """Weights and activations of one byte on both sides."""
    return {
        "int8-5": Case(
            {
                "CTranslate2 int8 beam_size=5": CTranslate2(5, "int8"),
                "pybeam int8 fixed 5, Batch(64)": Ours(fixed(5), batch, "int8"),
                "pybeam int8 fixed 5, Fifo(64)": Ours(fixed(5), fifo, "int8"),
                "pybeam int8 variable 5, Batch(64)": Ours(chosen(5), batch, "int8"),
                "pybeam int8 variable 5, Fifo(64)": Ours(chosen(5), fifo, "int8"),
            },
            has_floor=True,
        ),
        "int8-variable-50": Case(
            {
                "CTranslate2 int8 beam_size=50": CTranslate2(50, "int8"),
                "pybeam int8 variable 50, Fifo(64)": Ours(chosen(50), fifo, "int8"),
            },
            lines=200,
            repeats=1,
            has_floor=True,
        ),
        "widened-int8-5": Case(
            {
                "CTranslate2 int8 beam_size=5": CTranslate2(5, "int8", n=32),
                "pybeam int8 fixed 5, Batch(32)": Ours(fixed(5), pybeam.Batch(32), "int8"),
            },
            lines=32,
            network="widened",
            repeats=2,
            has_floor=True,
        ),
    }


def _caches(dtype: str, batch) -> Case:
    """Keys and values in float32 and in bfloat16."""
    return Case(
        {
            f"pybeam {dtype} fixed 5, {kept} cache": Ours(fixed(5), batch, dtype, kept)
            for kept in ("float32", "bfloat16")
        }
    )


def _schedules(width: int, n: int) -> dict[str, Ours]:
    schedules = (pybeam.Batch(n), pybeam.Streaming(n), pybeam.Fifo(n))
    return {
        f"pybeam variable {width}, {type(s).__name__}({n})": Ours(chosen(width), s)
        for s in schedules
    }


def _thresholds(dtype: str) -> dict[str, Case]:
    """The rows from which `CHOSEN` was chosen: all lines that the example model was not trained on."""
    fifo, start = pybeam.Fifo(64), "" if dtype == "float32" else f"{dtype}-"
    return {
        f"{start}thresholds-{width}": Case(
            {f"fixed {width}": Ours(fixed(width), fifo, dtype)}
            | {
                f"delta = {delta}, M = {m}": Ours(variable(width, delta, m), fifo, dtype)
                for m in (3, 5)
                for delta in (*(LOW[width] if m == 3 else ()), 1.6, 2.0, 2.5, 3.0)
            },
            repeats=1,
            splits=("dev", "test"),
            has_loss=True,
        )
        for width in CHOSEN
    }


def methods(width: int, n: int) -> dict[str, Ours]:
    """The rows of Tables 1, 3 and 4 of Yang et al. 2020, in their main setting; FIXED is the baseline."""
    unpruned = pybeam.variable_beam(width, max_length=MAX_LENGTH, scoring=translation.NORMALISED)
    pruned = variable(width)
    return {
        "FIXED": Ours(fixed(width), pybeam.Batch(n)),
        "GREEDY": Ours(pybeam.greedy(max_length=MAX_LENGTH), pybeam.Batch(n)),
        "FIXED-OURS": Ours(unpruned, pybeam.Batch(n)),
        "FIXED-STREAM": Ours(unpruned, pybeam.Streaming(n, EPSILON)),
        "VAR-BATCH": Ours(pruned, pybeam.Batch(n)),
        "VAR-STREAM": Ours(pruned, pybeam.Streaming(n, EPSILON)),
        "VAR-STR-FIFO": Ours(pruned, pybeam.Fifo(n, EPSILON)),
        "VAR-FIFO, epsilon = 1": Ours(pruned, pybeam.Fifo(n)),
    }


def sweep(width: int, n: int) -> dict[str, Ours]:
    """The rows of Table 5: one setting of VAR-STREAM changed at a time."""
    plan = {"delta = 1.5, M = 5, epsilon = 1/6": (variable(width), EPSILON)}
    plan |= {f"delta = {d}": (variable(width, threshold=d), EPSILON) for d in (0.5, 2.5)}
    plan |= {f"M = {m}": (variable(width, max_candidates=m), EPSILON) for m in (3, 10)}
    plan |= {f"epsilon = 1/{e}": (variable(width), 1 / e) for e in (12, 4, 3, 2)}
    return {
        name: Ours(algorithm, pybeam.Streaming(n, epsilon))
        for name, (algorithm, epsilon) in plan.items()
    }


def ensembles() -> dict[str, Case]:
    """Tables 1 and 3 of Yang et al. 2020 time ensembles of five, in their main setting.

    The members are the example model with noise in its weights: as costly as five trained models; their
    BLEU says only that they still translate.
    """
    without_fixed = [name for name in methods(50, 16) if name.startswith("VAR")]
    with_fixed = ("FIXED", "VAR-BATCH", "VAR-STREAM")
    return {
        "ensemble-50": Case(
            {name: methods(50, 16)[name] for name in without_fixed}, 112, "ensemble"
        ),
        "ensemble-50-fixed": Case(
            {name: methods(50, 12)[name] for name in with_fixed}, 24, "ensemble", repeats=1
        ),
        "member-50": Case(
            {name: methods(50, 12)[name] for name in with_fixed}, 24, "member 0", repeats=1
        ),
    }


def parallel() -> dict[str, Case]:
    """Parallel decoding beside greedy: the tables and Figure 3 of Santilli et al. 2023.

    "times fewer steps" is the papers' Iters, "times the first" its speed. All outputs but the beam's must
    be greedy's ("same outputs"). PJ and PGJ know the length of greedy's output, as there. The last ones
    translate lines that have been translated before, or three quarters of each, as a line that is written
    or spoken is translated again and again: their guesses are the translation before.
    """
    options = dict(max_length=MAX_LENGTH)
    blocks, pad = (3, 5, 10), pybeam.drafts.pad()
    known = {
        "PJ Decoding": lambda length: pybeam.jacobi(length=length, **options),
        **{
            f"PGJ Decoding (b = {b})": lambda length, b=b: pybeam.gauss_seidel_jacobi(
                b, length=length, **options
            )
            for b in blocks
        },
    }
    lookup = pybeam.drafts.ngram_lookup(2)
    unknown = {
        **{f"HGJ Decoding (b = {b})": pybeam.hybrid_jacobi(b, **options) for b in blocks},
        "HGJ, n-gram lookup (b = 3, ours)": pybeam.hybrid_jacobi(3, initialiser=lookup, **options),
        "Adaptive, padding (ours)": pybeam.adaptive_jacobi(initialiser=pad, **options),
        "Adaptive (ours)": pybeam.adaptive_jacobi(**options),
    }
    remembering = {
        f"Adaptive, {name} (ours)": partial(
            Remembering,
            lambda guesses: pybeam.adaptive_jacobi(initialiser=guesses, **options),
            part=part,
        )
        for name, part in PARTS.items()
    }

    def case(
        batch: int,
        lines: int,
        threads: int | None = None,
        repeats: int = 3,
        network: str = "example",
        tokens: tuple[int, int] | None = None,
        only: tuple[str, ...] = (),
    ) -> Case:
        schedule = pybeam.Batch(batch)
        systems = {
            "Greedy Autoregressive": Ours(pybeam.greedy(**options), schedule),
            "Beam Search (beam = 5)": Ours(pybeam.fixed_beam(5, **options), schedule),
            **{name: Foreseeing(make, schedule) for name, make in known.items()},
            **{name: Ours(algorithm, schedule) for name, algorithm in unknown.items()},
            **{name: system(schedule) for name, system in remembering.items()},
        }
        systems = {name: systems[name] for name in only or systems}
        return Case(systems, lines, network, repeats, threads, is_spread=True, tokens=tokens)

    return {
        **{
            f"threads = {threads}, batch = {batch}": case(batch, lines, threads)
            for batch, lines in ((1, 30), (8, 40))
            for threads in (1, 2)
        },
        # differences of a hundredth need longer turns
        **{
            f"few guesses, threads = {threads}, batch = {batch}": case(
                batch, 300, threads, repeats=7, only=FEW_GUESSES
            )
            for batch in (1, 8)
            for threads in (1, 2)
        },
        "iterations": case(64, 173, repeats=1),
        **{
            f"iterations, {low} to {high} tokens": case(64, 100, repeats=1, tokens=(low, high))
            for low, high in LENGTHS
        },
        "en-es, threads = 2, batch = 1": case(1, 30, 2, network="reverse"),
        "en-es, iterations": case(64, 173, repeats=1, network="reverse"),
    }


def translate(setup: Setup) -> Iterator[list[Task]]:
    """Translation beside CTranslate2 and transformers: same weights, lines and normalisation."""
    return translation.cases(setup, beside_peers())


def ensemble(setup: Setup) -> Iterator[list[Task]]:
    """An ensemble of five under the schedules of Yang et al. 2020."""
    return translation.cases(setup, ensembles())


def jacobi(setup: Setup) -> Iterator[list[Task]]:
    """Parallel decoding beside greedy: the tables of Santilli et al. 2023, and what beams could guess."""
    yield from translation.cases(setup, parallel())
    yield guesses.tasks(setup)
