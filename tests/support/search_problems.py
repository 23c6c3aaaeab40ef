"""Draw batches of requests with hypothesis, and check what is decoded against a plain-Python search."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import pybeam
from pybeam import ops
from pybeam.compat.huggingface import FullBeamStop
from pybeam.contracts import Certificate, Finishing, Top
from pybeam.models import FunctionModel
from pybeam.search.algorithms import Algorithm
from pybeam.stopping import Stop
from support.laws import decoded
from support.search_models import BOS, EOS, context
from support.whole_search import INF, Rules, Scale, Search

CONTEXTS = 61
FINISHING = {"refill": Finishing.REFILL, "held": Finishing.HELD, "shrink": Finishing.SHRINK}
# log 2, so that scores of "permuted" tables tie; all numbers are float32's, as the kernels hold them
BIT = float(np.float32(math.log(2)))
SCALES = [
    *4 * [Scale()],
    Scale(alpha=1.0),
    Scale(alpha=-0.5),
    Scale(alpha=0.75, offset=5.0, scale=6.0),
    Scale(reward=BIT),
    Scale(reward=BIT, ratio=1.5),
    Scale(reward=-0.5, ratio=2.0),
    Scale(alpha=0.5, offset=1.0, reward=0.25),
]
COUNT = pybeam.stopping.count()
STOPS = [
    *2 * [COUNT],
    pybeam.stopping.end(),
    *3 * [pybeam.stopping.optimal()],
    pybeam.stopping.top_finished(),
    Stop(patience=0.75),
    Stop(patience=1.0),
    Stop(patience=2.0),
    Stop(patience=1.5, top=Top.EVER),
    FullBeamStop(top=Top.EVER),
    FullBeamStop(certificate=Certificate.CURRENT),
    FullBeamStop(certificate=Certificate.BOUND),
    Stop(patience=1.0, top=Top.NOW, certificate=Certificate.CURRENT),
]


@dataclass
class Problem:
    """A batch of requests; `rules` are the oracle's for each."""

    table: torch.Tensor  # [CONTEXTS, V] logits
    algorithm: Algorithm
    schedule: pybeam.Schedule
    requests: list[pybeam.Request]
    rules: list[Rules]
    reports_every: int  # steps between two reports that are read late; 0: each at once
    eos_ids: tuple[int, ...]


def logits_table(kind: str, vocab_size: int, eos: str, minus_inf: float, seed: int) -> torch.Tensor:
    """[CONTEXTS, V]; "permuted": every row has the same numbers in another order, so that scores tie."""
    generator = torch.Generator().manual_seed(seed)
    shape = CONTEXTS, vocab_size
    table = 1.5 * torch.randn(shape, generator=generator)
    if kind == "levels":
        table = table.round()
    elif kind == "near ties":
        table = table.round() + torch.randint(0, 3, shape, generator=generator) * 2.0**-22
    elif kind == "permuted":
        halves = -math.log(2) * torch.arange(vocab_size).clamp(max=3)
        table = halves[torch.rand(shape, generator=generator).argsort(1)]
    table[:, EOS] += {"usual": 0.0, "likely": 1.5, "at once": 50.0, "never": -INF}[eos]
    return table.masked_fill(torch.rand(shape, generator=generator) < minus_inf, -INF)


@st.composite
def problems(draw) -> Problem:
    one_of = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    vocab_size = one_of(2, 3, 5, 9)
    eos_ids = (EOS,) if vocab_size == 2 else one_of((EOS,), (EOS,), (EOS, 0), (2, EOS))
    table = logits_table(
        one_of("normal", "levels", "permuted", "permuted"),
        vocab_size,
        one_of(*3 * ["usual"], *4 * ["likely"], "at once", "never"),
        one_of(*4 * [0.0], 0.3, 0.3, 0.9, 1.0),
        draw(st.integers(0, 10**6)),
    )
    if one_of(False, False, False, True):
        table[draw(st.integers(0, CONTEXTS - 1)), 0] = one_of(math.nan, INF)
    finishing, stop = one_of(*FINISHING), one_of(*STOPS)
    most = min(1.0, stop.patience or 1.0)
    by_step = finishing in ("refill", "held")
    base = draw(limits(most, by_step)) | {"scale": one_of(*SCALES)}
    requests, rules = [], []
    for _ in range(draw(st.integers(1, 12))):
        own = draw(
            st.sampled_from([{}, {}, draw(limits(most, by_step)), {"scale": one_of(*SCALES)}])
        )
        length = one_of(1, 2, 4, 4, 0)
        tokens = [token for token in range(vocab_size) if token not in eos_ids]
        prefix = draw(st.lists(st.sampled_from(tokens), max_size=2))
        requests.append(pybeam.Request([1] * length, prefix, **arguments(own)))
        given = {name: value for name, value in own.items() if value is not None}
        rules.append(rules_of({**base, **given}, finishing, stop, length, eos_ids))
    widest = max(
        [*each(base["width"]), *(w for rule in rules for w in (rule.width, *rule.early_widths))]
    )
    options = arguments(base)
    pruning = {name: options.pop(name) for name in PRUNING if name in options}
    algorithm = Algorithm(
        finishing=FINISHING[finishing], pruning=pybeam.Pruning(**pruning), stop=stop, **options
    )
    schedule, reports_every = draw(schedules(widest)), one_of(0, 0, 1, 3)
    return Problem(table, algorithm, schedule, requests, rules, reports_every, eos_ids)


PRUNING = ("threshold", "max_candidates", "relative_threshold", "local_threshold", "keep_ties")


@st.composite
def limits(draw, most: float, by_step: bool) -> dict:
    """The options of both an algorithm and a request.

    `n_best` is at most a share `most` of the last width. `by_step`: there may be widths by step.
    """
    widths = st.sampled_from([1, 2, 3, 5, 12])
    width = draw(widths)
    early = draw(st.lists(widths, max_size=3)) if by_step else []
    max_length = draw(st.sampled_from([1, 2, 5, 8]))
    pruning = {
        "threshold": [None, INF, 0.75, BIT, 2.0, 2 * BIT],
        "max_candidates": [None, INF, 1, 2, 50],
        "relative_threshold": [None, None, 0.3, 0.05],
        "local_threshold": [None, None, 0.3, 0.5, 0.02],
        "keep_ties": [False, False, True],
    }
    return {
        "width": [*early, width] if early else width,
        "n_best": draw(st.integers(1, math.floor(most * width + 0.5))),
        "max_length": max_length,
        "min_length": draw(st.integers(0, min(3, max_length - 1))),
        "ended_only": draw(st.booleans()),
        **{name: draw(st.sampled_from(values)) for name, values in pruning.items()},
    }


def each(width: int | list[int]) -> list[int]:
    """Widths by step."""
    return width if isinstance(width, list) else [width]


def arguments(limits: dict) -> dict:
    """As `Algorithm` and `Request` take them."""
    given = {name: value for name, value in limits.items() if name != "scale"}
    if "scale" in limits:
        scale = limits["scale"]
        ratio = None if scale.ratio == INF else scale.ratio
        given["scoring"] = pybeam.scoring.Scoring(
            scale.alpha, scale.offset, scale.scale, scale.reward, ratio
        )
    return given


def rules_of(
    limits: dict, finishing: str, stop: Stop, source_length: int, eos_ids: tuple[int, ...]
) -> Rules:
    *early, width = each(limits["width"])
    scale = limits["scale"]
    stop_at = INF if stop.patience is None else math.floor(stop.patience * width + 0.5)
    if finishing == "held" and scale.is_raw and stop.patience == 1:
        stop_at = limits["n_best"]
    relative, local = limits["relative_threshold"], limits["local_threshold"]
    return Rules(
        finishing=finishing,
        width=width,
        n_best=limits["n_best"],
        max_length=limits["max_length"],
        min_length=limits["min_length"],
        ended_only=limits["ended_only"],
        max_candidates=limits["max_candidates"] or INF,
        margin=min(limits["threshold"] or INF, -math.log(relative) if relative else INF),
        local_margin=-math.log(local) if local else INF,
        keep_ties=limits["keep_ties"],
        scale=scale,
        stop_at=stop_at,
        keeps_best=stop.keeps_best,
        top={Top.IGNORED: "", Top.NOW: "now", Top.EVER: "ever"}[stop.top],
        certificate={0: "", Certificate.BOUND: "bound", Certificate.CURRENT: "current"}[
            stop.certificate
        ],
        needs_full_beam=stop.needs_full_beam,
        source_length=source_length,
        eos_ids=eos_ids,
        early_widths=tuple(early),
    )


@st.composite
def schedules(draw, widest: int) -> pybeam.Schedule:
    kind = draw(st.sampled_from([pybeam.Batch, pybeam.Streaming, pybeam.Fifo]))
    options = {"n": draw(st.integers(1, 9))}
    if kind is not pybeam.Batch:
        options["epsilon"] = draw(st.sampled_from([0.0, 1 / 6, 0.5, 1.0]))
    budgets = [None, None, widest, widest + 1, 2 * widest + 1]
    options["row_budget"] = draw(st.sampled_from(budgets))
    options["max_wait"] = draw(st.sampled_from([None, 1, 3]))
    options["window"] = draw(st.sampled_from([None, 2]))
    return kind(**options)


def ranked_rows(table: torch.Tensor, backend: str) -> list:
    """Each context's candidates ``(token, log_prob)`` in order, or None if it holds a NaN or +inf."""
    num, vocab_size = table.shape
    rows = ops.select(
        table,
        torch.zeros(num),
        torch.arange(num + 1, dtype=torch.int32),
        width=torch.full((num,), vocab_size, dtype=torch.int32),
        backend=backend,
    )
    lines = zip(rows.token.tolist(), rows.log_prob.numpy(), rows.count, rows.has_nan, strict=True)
    return [
        None if has_nan else [*zip(tokens[:count], log_probs[:count], strict=True)]
        for tokens, log_probs, count, has_nan in lines
    ]


def code_of(source: int, tokens: list[int]) -> int:
    """What `search_models.context` says of one prefix."""
    code = source * 31 + 7
    for token in [BOS, *tokens]:
        code = (code * 131 + token + 1) % CONTEXTS
    return code


def check(problem: Problem, backend: str) -> None:
    table = problem.table
    model = FunctionModel(
        lambda *rows: table[context(*rows, CONTEXTS)], table.shape[1], BOS, problem.eos_ids
    )
    ranked = ranked_rows(table, backend)
    results = decoded(
        model,
        problem.algorithm,
        problem.schedule,
        backend,
        problem.requests,
        log_probs=True,
        reads_late=problem.reports_every > 0,
        reports_every=(max(1, problem.reports_every), 0),
    )
    assert [result.index for result in results] == list(range(len(problem.requests)))
    for result, request, rules in zip(results, problem.requests, problem.rules, strict=True):
        if rules.source_length == 0:
            assert result.stop_reason == "empty_source"
            assert [h.tokens for h in result.hypotheses] == [request.prefix]
            continue

        def step(tokens: list[int], source: int = result.index):
            return ranked[code_of(source, tokens)]

        expected = Search(step, rules).run(request.prefix)
        cost = (result.stop_reason, result.steps, result.expansions)
        assert cost == (expected.reason, expected.steps, expected.expansions)
        assert (result.error is not None) == (expected.reason == "error")
        ours = [(h.tokens, h.score, h.eos_id, h.log_probs) for h in result.hypotheses]
        theirs = [(e.tokens, float(e.score), e.eos, e.log_probs) for e in expected.found]
        assert all(h.ended == (h.eos_id is not None) for h in result.hypotheses)
        assert ours == theirs
        for hypothesis, entry in zip(result.hypotheses, expected.found, strict=True):
            final = rules.scale.final(entry.score, entry.length, rules.source_length)
            assert hypothesis.final_score == pytest.approx(final, rel=2.0**-23)
