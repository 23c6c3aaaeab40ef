"""A scored prefix gives the tokens of an unscored one: the search behind it is the same."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import pybeam
from pybeam import compat, drafts, processors
from pybeam.limits import FREE, PrefixRule
from pybeam.request import Partial
from support.laws import decoded, schedules
from support.search_models import EOS, random_model

V = 9
SCORED = PrefixRule(is_scored=True, in_length=True)
PREFIXES = [[], [6, 6], [3], [2, 4, 6], [5, 2, 2, 6]]
REQUESTS = [pybeam.Request([1] * (1 + i % 3), prefix=PREFIXES[i % 5]) for i in range(7)]
# under these sources do not move together
MOVING = ("batch, budget", "streaming, impatient", "fifo, budget")


def even(rows) -> torch.Tensor:
    """Behind the prefix no odd token but EOS."""
    mask = torch.arange(V).repeat(rows.token.numel(), 1) % 2 == 0
    mask[:, EOS] = rows.num_generated > 0
    return mask


def taxed(logits, rows):
    """A function that looks at all that `Rows` says of lengths."""
    late = rows.num_generated.clamp(min=0)[:, None] * torch.arange(V)
    return logits - 0.1 * late - 0.5 * rows.is_last[:, None] * (torch.arange(V) != EOS)


CHAINS = {
    "temperature": [processors.temperature(1.7)],
    "eos_penalty": [processors.eos_penalty(0.5)],
    "token_penalty": [processors.token_penalty(6, 1.5)],
    "repetition_penalty": [processors.repetition_penalty(1.6)],
    "no_repeat_ngram": [processors.no_repeat_ngram(2)],
    "no_repeat_ngram-log": [processors.no_repeat_ngram(2, stage="log_probs")],
    "suppress_tokens": [processors.suppress_tokens([6, 4])],
    "suppress_tokens_at_start": [processors.suppress_tokens_at_start([EOS, 3, 2])],
    "suppress_sequences": [processors.suppress_sequences([[6, 6], [2, 3, 7]])],
    "biased_prefix": [processors.biased_prefix(0.8, [7, 2])],
    "allowed_sequences": [processors.allowed_sequences([[2, 3, 4], [2, 3], [7], [5, 5, 6], [3]])],
    "allowed_items": [
        processors.allowed_items(pybeam.Catalogue.build([[2, 3, 4], [2, 3], [7], [5, 5, 6], [3]]))
    ],
    "allowed_tokens": [processors.allowed_tokens(even)],
    "function": [taxed],
    "min_length": [processors.min_length(3)],
    "first_token": [processors.first_token(8)],
    "force_eos": [processors.force_eos()],
    "eos_growth": [processors.eos_growth(2, 1.5)],
    "gumbel": [processors.gumbel(3)],
    "whisper_timestamps": [processors.whisper_timestamps(4, max_initial=2)],
    "sample": [processors.sample(0.8, 5)],
}
ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=7),
    "fixed": pybeam.fixed_beam(3, n_best=3, max_length=7, min_length=2),
    "held": pybeam.variable_beam(3, threshold=3.0, n_best=3, max_length=7),
    "shrinking": pybeam.shrinking_beam(3, n_best=3, max_length=7),
    "optimal": pybeam.fixed_beam(3, max_length=7, stop=pybeam.stopping.optimal()),
    "rewarded": pybeam.optimal_beam(3, 0.5, max_length=7),
    "top finished": pybeam.shrinking_beam(3, max_length=7, stop=pybeam.stopping.top_finished()),
    "stochastic": pybeam.stochastic_beam(3, seed=3, max_length=7),
    "diverse": pybeam.diverse(pybeam.fixed_beam(2, n_best=2, max_length=7), 3, 1.5),
    "fairseq": compat.fairseq.beam_search(3, nbest=3, max_len_b=9, normalize_scores=False),
    "fairseq, diverse": pybeam.diverse(
        compat.fairseq.beam_search(1, max_len_b=8, normalize_scores=False), 3, 3.0
    ),
    "leading EOS": pybeam.fixed_beam(
        3, n_best=3, max_length=7, prefix=compat.ctranslate2.HardPrefix()
    ),
    "jacobi": pybeam.jacobi(max_length=7),
    "blocks": pybeam.gauss_seidel_jacobi(3, max_length=7),
    "hybrid": pybeam.hybrid_jacobi(3, 4, max_length=7),
    "guesses": pybeam.adaptive_jacobi(
        3, price=0.1, max_length=7, initialiser=drafts.function(lambda request: [6, 4, 2, 6, 3])
    ),
}


def both(algorithm) -> tuple:
    """The algorithm with a prefix that is scored, and with one that is not."""
    rule = dataclasses.replace(algorithm.prefix, is_scored=True, in_length=True)
    free = dataclasses.replace(rule, is_scored=False, in_length=False)
    return tuple(dataclasses.replace(algorithm, prefix=prefix) for prefix in (rule, free))


def outputs(results) -> list:
    """All but the scores."""
    assert not any(result.error for result in results)
    return [
        ([(h.tokens, h.eos_id) for h in r.hypotheses], r.stop_reason, r.steps, r.expansions)
        for r in results
    ]


def generated(results) -> list:
    """The log-probs of what is behind the prefixes."""
    return [
        [h.log_probs[-(len(h.tokens) + h.ended - request.prefix_length) :] for h in r.hypotheses]
        for r, request in zip(results, REQUESTS, strict=True)
        if r.hypotheses and len(r.hypotheses[0].tokens) > request.prefix_length
    ]


def assert_same_search(algorithm, backend, seed: int, requests=REQUESTS) -> None:
    model = random_model(seed, V, eos_bonus=0.5)
    scored, free = both(algorithm)
    options = dict(backend=backend, requests=requests, log_probs=True)
    theirs = decoded(model, free, pybeam.Batch(1), **options)
    assert any(r.hypotheses for r in theirs)
    first = None
    # the reference backend is slow
    names = MOVING[seed % 3 :][:1] if backend == "reference" else MOVING
    available = schedules(scored.max_rows)
    for n, schedule in enumerate([pybeam.Batch(1), *(available[name] for name in names)]):
        ours = decoded(model, scored, schedule, reads_late=n % 2 == 1, **options)
        assert outputs(ours) == outputs(theirs)
        first = first or ours
        assert [r.hypotheses for r in ours] == [r.hypotheses for r in first]
    for mine, other in zip(generated(first), generated(theirs), strict=True):
        for values, expected in zip(mine, other, strict=True):
            assert values == pytest.approx(expected, abs=1e-5)
    for result in first:
        for hypothesis in result.hypotheses:
            assert hypothesis.score == pytest.approx(sum(hypothesis.log_probs), abs=1e-4)


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("name", CHAINS)
def test_with_every_processor(backend, name):
    seed = list(CHAINS).index(name)
    algorithm = ALGORITHMS[("fixed", "held")[seed % 2]]
    changed = dataclasses.replace(algorithm, processors=tuple(CHAINS[name]))
    assert_same_search(changed, backend, seed)


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_every_algorithm(backend, name):
    assert_same_search(ALGORITHMS[name], backend, 5)


def test_every_processor_is_tested():
    makers = {name for name in processors.__all__ if name[0].islower()}
    tested = {name.split("-")[0] for name in CHAINS} - {"function"}
    # `diverse` stands for the first, suppress_tokens and a function for the others
    assert makers - tested == {"diversity", "no_unk", "from_function"}


def test_drafts_with_processors(backend):
    chain = CHAINS["suppress_tokens_at_start"] + CHAINS["biased_prefix"]
    for name in ("blocks", "guesses"):
        algorithm = dataclasses.replace(ALGORITHMS[name], processors=tuple(chain))
        assert_same_search(algorithm, backend, 2)


def test_groups_differ():
    """The case that showed it: fairseq's search in groups once returned one group twice."""
    model = random_model(4, V, eos_bonus=-9.0)
    algorithm = pybeam.diverse(compat.fairseq.beam_search(1, max_len_b=7), 3, 50.0)
    (result,) = pybeam.Decoder(model, algorithm).decode([pybeam.Request([1], prefix=[6, 6])])
    (alone,) = pybeam.Decoder(model, algorithm).decode([pybeam.Request([1])])
    for hypotheses, start in ((result.hypotheses, 2), (alone.hypotheses, 0)):
        assert len({hypothesis.tokens[start] for hypothesis in hypotheses}) == 3


def test_what_is_said_of_a_running_search(backend):
    """Partial results come in the same calls, and say the same."""
    model = random_model(1, V, eos_bonus=-1.0)
    total = 0
    for name in ("fixed", "held", "leading EOS"):
        lines = []
        for algorithm in both(ALGORITHMS[name]):
            decoder = pybeam.Decoder(model, algorithm, backend=backend, schedule=pybeam.Fifo(4))
            items = list(decoder.stream(REQUESTS, partial=True))
            lines.append([(i.index, i.tokens) for i in items if isinstance(i, Partial)])
        assert lines[0] == lines[1]
        total += len(lines[0])
    assert total > 5


def test_beside_targets_and_other_limits(backend):
    """Requests with limits of their own, and targets to score in the same batch."""
    requests = [
        dataclasses.replace(request, **changes)
        for request, changes in zip(
            REQUESTS,
            [{}, dict(max_length=3), dict(min_length=4), dict(width=1), dict(target=[4, 5])] * 2,
            strict=False,
        )
    ]
    for rule in (FREE, compat.ctranslate2.HardPrefix()):
        algorithm = dataclasses.replace(ALGORITHMS["fixed"], n_best=1, prefix=rule)
        assert_same_search(algorithm, backend, 7, requests)


def test_what_cannot_follow_counts_for_nothing(backend):
    """A prefix that the model rules out is a prefix; the tokens behind it have their scores."""
    model = random_model(3, V, minus_inf=0.4)
    algorithm, free = both(ALGORITHMS["fixed"])
    requests = [pybeam.Request([1], prefix=[2, 3, 4, 5, 6, 7])] * 4
    ours, theirs = (
        pybeam.Decoder(model, each, backend=backend, log_probs=True).decode(requests)
        for each in (algorithm, free)
    )
    assert outputs(ours) == outputs(theirs)
    for result in ours:
        values = result.hypotheses[0].log_probs[:6]
        assert 0.0 in values
        assert min(values) < 0


def test_its_scores_do_not_depend_on_batch_mates(backend):
    """To the bit: neither EOS, which a limit of a neighbour may ban, nor the width of a beam changes them."""
    model = random_model(4, 19, eos_bonus=1.0)
    options = dict(n_best=3, max_length=6, prefix=SCORED, ended_only=False)
    algorithm = pybeam.huang_beam(3, **options)
    requests = [
        pybeam.Request([1], prefix=[5, 3, 7], source_id=i, min_length=min_length)
        for i in range(20)
        for min_length in (None, 2)
    ]
    together = decoded(model, algorithm, pybeam.Fifo(9), backend, requests)
    alone = [decoded(model, algorithm, pybeam.Batch(1), backend, [one])[0] for one in requests]
    assert [r.hypotheses for r in together] == [r.hypotheses for r in alone]
    # and `score`, whose beam has one row, gives the same numbers
    greedy = pybeam.Decoder(model, pybeam.greedy(max_length=9), backend=backend)
    sources = [pybeam.Request([1], source_id=i) for i in range(20)]
    scored = greedy.score(sources, [[5, 3, 7]] * 20)
    log_probs = [result.hypotheses[0].log_probs[:3] for result in scored]
    found = decoded(model, algorithm, pybeam.Fifo(9), backend, requests, log_probs=True)
    assert [r.hypotheses[0].log_probs[:3] for r in found[::2]] == log_probs
