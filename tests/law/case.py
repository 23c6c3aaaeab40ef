"""A case of the law: one value of every axis, and the algorithm, requests and decoders that follow."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

import pybeam
from law import axes
from law.models import CPU, model_of, sources_of
from pybeam import drafts
from pybeam.models.base import Model
from pybeam.processors.base import perturbs, stage_of
from pybeam.search.algorithms import Algorithm

# the request that leaves, is wrong, or makes its model raise
BAD = 1
NUM_ALTERNATIVES = 3
# what `test_law_in_interpreter.py` tries: algorithms with kernels or rules of their own
INTERPRETED = (
    *("greedy", "variable_beam, normalised", "huang_beam", "sample"),
    *("hybrid_jacobi", "ctranslate2"),
)


class Raised(Exception):
    """The error of a model in a case of the event "model raises"."""


@dataclass(frozen=True)
class Case:
    """One value of every axis, by the axis's name."""

    values: Mapping[str, str]
    device: torch.device = CPU

    def __getattr__(self, axis: str) -> str:
        if axis in axes.AXES:
            return self.values[axis]
        raise AttributeError(axis)

    def __str__(self) -> str:
        return " | ".join(self.values[axis] for axis in axes.AXES)

    @classmethod
    def parse(cls, line: str) -> Case:
        """The case of a line that `str` has made."""
        values = [value.strip() for value in line.split("|")]
        case = cls(dict(zip(axes.AXES, values, strict=True)))
        for axis, value in case.values.items():
            known = (*axes.AXES[axis], *axes.ON_A_GPU.get(axis, ()))
            assert value in known, f"{axis!r} has no value {value!r}"
        return case

    @cached_property
    def bare_model(self) -> Model:
        return model_of(self.model, self.weights, self.device)

    @property
    def base(self) -> Algorithm:
        """The algorithm of the axis, as it is."""
        return axes.ALGORITHMS[self.algorithm]()

    @cached_property
    def search(self) -> Algorithm:
        """The algorithm of the case: with its processors, its rule of prefixes, its guesses."""
        algorithm = self.base
        own = axes.PROCESSORS[self.processor](self.bare_model)
        # those of stage "logits" come first; those of groups and samples, which the algorithm has, last
        last = algorithm.processors[-1:] if algorithm.num_groups > 1 or algorithm.perturbs else ()
        first = algorithm.processors[: len(algorithm.processors) - len(last)]
        chain = sorted(
            [*own, *first], key=lambda one: (stage_of(one) == "log_probs", perturbs(one))
        )
        chain += last
        changes: dict[str, Any] = {"processors": tuple(chain)}
        rule = axes.PREFIXES[self.prefix]
        if rule is not None:
            changes["prefix"] = rule(algorithm.prefix)
        if self.prefix == "guessed":
            assert algorithm.draft is not None, "a case that is left out"
            guesses = drafts.function(lambda request: axes.GUESSES)
            changes["draft"] = dataclasses.replace(algorithm.draft, initialiser=guesses)
        if self.output == "n_best":
            changes["n_best"] = algorithm.last_width
        return dataclasses.replace(algorithm, **changes)

    @cached_property
    def requests(self) -> list[pybeam.Request]:
        """The requests, every second one with options of its own. None of them is wrong."""
        return [self._request(i) for i in range(len(sources_of(self.model, self.weights)))]

    def _request(self, i: int) -> pybeam.Request:
        options: dict[str, Any] = {}
        if i % 2 == 1:
            options = dict(axes.OVERRIDES[self.override])
            if self.override == "processors":
                options["processors"] = axes.CHANGES[self.processor](self.bare_model)
        prefix = None if self.prefix == "none" else axes.PREFIX[: i % 3]
        source = sources_of(self.model, self.weights)[i]
        return pybeam.Request(source, prefix, f"request {i}", source_id=i, **options)

    @cached_property
    def schedule_of_case(self) -> pybeam.Schedule:
        widest = [self.search.max_rows]
        own = self.requests[BAD].width
        if own is not None:
            widest.append(own if isinstance(own, int) else max(own))
        if self.output == "alternatives":
            # the beam of all next tokens
            widest.append(NUM_ALTERNATIVES + len(self.bare_model.eos_ids))
        if self.entry == "score" and self.algorithm in axes.GUESSING:
            # a target is one guess, with room for EOS and one token more
            widest.append(axes.LENGTH + 2)
        return axes.SCHEDULES[self.schedule](max(widest))

    def decoder(self, *, alone: bool = False, model: Model | None = None) -> pybeam.Decoder:
        """A decoder of the case; `alone`: for one request after another, without events."""
        decoder = pybeam.Decoder(
            self.bare_model if model is None else model,
            self.search,
            pybeam.Batch(1) if alone else self.schedule_of_case,
            self.backend,
            log_probs=self.output == "log_probs",
            alignment=self.output == "alignment",
            graphs=False if self.device == CPU or self.reading == "at once" else None,
        )
        is_late = self.reading != "at once" and not alone
        if self.device == CPU:
            decoder._reads_late = is_late
        if is_late and self.reading == "late, every third":
            decoder._reports_every = (3, 0)
        return decoder

    def failing_model(self) -> Model:
        """The model, which raises in a step that has a row of request `BAD` behind its first token."""
        model = copy.copy(self.bare_model)
        bare = self.bare_model

        def session(backend: Any) -> Any:
            made = bare.session(backend)
            encode, step, release = made.encode, made.step, made.release
            bad: set[int] = set()

            def note(contents: Any, numbers: Any, slots: Any) -> None:
                encode(contents, numbers, slots)
                bad.update(s for s, n in zip(slots, numbers, strict=True) if n == BAD)

            def raising(rows: Any) -> Any:
                own = [int(slot) in bad for slot in rows.row_slot]
                if any(is_bad and p >= 2 for is_bad, p in zip(own, rows.position, strict=True)):
                    raise Raised("the model is broken")
                return step(rows)

            def forget(slots: Any) -> None:
                release(slots)
                bad.difference_update(slots)

            made.encode, made.step, made.release = note, raising, forget
            made.call = lambda rows: None
            return made

        model.session = session
        return model
