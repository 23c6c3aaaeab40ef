"""Laws of prompts: how they are read, and what is shared, changes no result."""

import random

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.contracts import PAGE_CELLS
from pybeam.kvcache.prefixes import PrefixCells
from pybeam.models.transformer.running import StackRunner
from support.item_lists import random_items
from support.laws import ALGORITHMS, decoded, essence
from support.threads import every_thread_count

pytest.importorskip("transformers")

from support.causal_models import VOCAB, save_tiny_causal

pytestmark = pytest.mark.usefixtures("inference_mode")
BEAM = pybeam.variable_beam(4, 3.0, 3, n_best=4, max_length=8)


@pytest.fixture(scope="module", params=["qwen3", "gemma3"])
def model(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    save_tiny_causal(directory, request.param, max_position_embeddings=400)
    return pybeam.load_model(directory, device="cpu")


def prompts(num: int, seed: int, longest: int = 60) -> list[list[int]]:
    """Random prompts, most of which begin as an earlier one, up to anywhere."""
    rng = random.Random(seed)
    made: list[list[int]] = []
    for _ in range(num):
        start = rng.choice(made)[: rng.randint(1, longest)] if made and rng.random() < 0.8 else []
        own = rng.randint(0 if start else 1, longest - min(len(start), longest - 1))
        made.append(start + [rng.randrange(VOCAB) for _ in range(own)])
    return made


def alone(model, requests, backend="native", algorithm=BEAM):
    """Return what each request gets in a workspace of its own, where nothing can be shared."""
    found = [
        essence(decoded(model, algorithm, pybeam.Batch(1), backend, [one]))[0] for one in requests
    ]
    return [(i, *one[1:]) for i, one in enumerate(found)]


@pytest.fixture
def native():
    return pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


@pytest.mark.thinned(most=1)
def test_blocks_of_a_prompt_change_no_bit(model, native, monkeypatch):
    requests = [[5] * 300, *prompts(4, seed=1, longest=200)]
    expected = alone(model, requests)
    for block in (1, 7, 64, 300):
        monkeypatch.setattr("pybeam.models.transformer.reading.BLOCK", block)
        assert essence(decoded(model, BEAM, pybeam.Batch(5), "native", requests)) == expected


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_pages", [0, 1, 3, 1000])
def test_shared_beginnings_change_no_bit(model, native, num_pages, monkeypatch):
    """Within a batch, and from one batch to later ones, whatever has been dropped in between."""
    requests = prompts(24, seed=num_pages)
    expected = alone(model, requests)
    page_bytes = model.session(native).max_bytes(PAGE_CELLS, 0)
    monkeypatch.setattr(model, "prefix_cache_bytes", num_pages * page_bytes)
    decoder = pybeam.Decoder(model, BEAM, pybeam.Fifo(5))
    for _ in range(2):
        for first in range(0, len(requests), 6):
            results = decoder.decode(requests[first : first + 6])
            assert [r.hypotheses for r in results] == [
                one[1] for one in expected[first : first + 6]
            ]


def test_a_beginning_is_read_once(model, monkeypatch):
    read = []
    embed = type(model.stack).embed

    def counted(self, backend, token, place):
        read.append(token.numel())
        return embed(self, backend, token, place)

    monkeypatch.setattr(type(model.stack), "embed", counted)
    session = model.session(backends.load("reference"))
    session.reserve(5, 1, PAGE_CELLS)
    first, second = [5] * 50 + [6] * 20, [5] * 50 + [7] * 20
    session.encode([model.check(first), model.check(second)], [0, 1], [1, 2])
    assert sum(read) == 69 + 69 - 48
    session.release([1, 2])
    session.encode([model.check(second)], [0], [3])
    assert sum(read) == 69 + 69 - 48 + 69 - 64


@pytest.mark.parametrize("fails", [(PrefixCells, "_write"), (StackRunner, "write")])
def test_a_prompt_that_fails_leaves_nothing_behind(model, fails, monkeypatch):
    """Pages that were not filled are not found by the next prompt."""
    backend = backends.load("reference")
    session = model.session(backend)
    session.reserve(5, 1, PAGE_CELLS)
    prompt = model.check([5] * 40)
    with monkeypatch.context() as patch:
        patch.setattr(*fails, lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.encode([prompt], [0], [1])
    session.release([1])
    session.encode([prompt], [0], [1])
    fresh = model.session(backend)
    fresh.reserve(5, 1, PAGE_CELLS)
    fresh.encode([prompt], [0], [1])
    pools = [one._prompts.pool for one in (session, fresh)]
    cells = [
        pool.of_prompts(torch.tensor(one._cells.cells(1)[:39]))
        for pool, one in zip(pools, (session, fresh), strict=True)
    ]
    assert torch.equal(pools[0].memory[:, cells[0]], pools[1].memory[:, cells[1]])


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_bits_do_not_depend_on_schedule_batch_and_threads(model, native, name):
    requests = prompts(9, seed=3)
    schedules = (pybeam.Batch(1), pybeam.Batch(9), pybeam.Streaming(4), pybeam.Fifo(3))
    found = [
        essence(decoded(model, ALGORITHMS[name], schedule, "native", requests, log_probs=True))
        for schedule, _ in zip(schedules, every_thread_count(), strict=True)
    ]
    assert all(one == found[0] for one in found)


@pytest.mark.thinned(most=1)
def test_guesses_change_no_token(model, backend):
    requests = prompts(6, seed=5)
    greedy = pybeam.Decoder(model, pybeam.greedy(max_length=12), backend=backend).decode(requests)
    guessing = pybeam.Decoder(model, pybeam.jacobi(max_length=12), backend=backend)
    found = guessing.decode(requests)
    assert [r.hypotheses[0].tokens for r in found] == [r.hypotheses[0].tokens for r in greedy]
    assert sum(r.steps for r in found) <= sum(r.steps for r in greedy)


@pytest.mark.thinned(most=1)
def test_scores_and_prefixes(model, backend):
    """A given output has the score that the search found, and a prefix goes on to it."""
    decoder = pybeam.Decoder(model, BEAM, backend=backend)
    requests = prompts(4, seed=6)
    best = [result.hypotheses[0] for result in decoder.decode(requests)]
    scored = decoder.score(requests, [list(one.tokens) for one in best])
    for one, other in zip(best, scored, strict=True):
        # a target ends in the first EOS
        if one.ended and one.eos_id == model.eos_id:
            assert other.hypotheses[0].score == pytest.approx(one.score, abs=1e-4)
    greedy = pybeam.Decoder(model, pybeam.greedy(max_length=8), backend=backend)
    whole = [result.hypotheses[0].tokens for result in greedy.decode(requests)]
    begun = [
        pybeam.Request(prompt, list(tokens[:2]), max_length=8 - len(tokens[:2]))
        for prompt, tokens in zip(requests, whole, strict=True)
    ]
    assert [r.hypotheses[0].tokens for r in greedy.decode(begun)] == whole


def test_processors_see_the_prompt(model):
    """Tokens that may not come again count from the prompt on."""
    prompt = list(range(3, 40))
    ban = pybeam.processors.no_repeat_ngram(1, counts_start=True)
    algorithm = pybeam.fixed_beam(3, max_length=5, processors=[ban])
    [result] = pybeam.Decoder(model, algorithm).decode([prompt])
    assert not set(result.hypotheses[0].tokens) & set(prompt)


def test_a_decoder_keeps_beginnings_for_its_next_call(model):
    decoder = pybeam.Decoder(model, BEAM)
    decoder.decode([[5] * 40])
    [workspace] = decoder._idle
    assert workspace.session._cells.num_idle == 2
    decoder.decode([[5] * 33])
    assert workspace.session._cells.num_idle == 2


def test_members_of_an_ensemble_have_prompts_of_their_own(model):
    ensemble = pybeam.models.Ensemble([model, model])
    requests = prompts(5, seed=8)
    found, expected = (pybeam.Decoder(one, BEAM).decode(requests) for one in (ensemble, model))
    for ours, theirs in zip(found, expected, strict=True):
        assert [h.tokens for h in ours.hypotheses] == [h.tokens for h in theirs.hypotheses]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("renormalize", [False, True])
def test_catalogues_beside_shared_beginnings_change_no_bit(model, native, renormalize):
    """Requests share prompts and one catalogue, and each has a filter of its own, or none."""
    catalogue = pybeam.Catalogue.build(random_items(3, 60, range(8, VOCAB), range(1, 4)))

    def rule(filter_=None):
        return pybeam.catalogue.allowed_items(catalogue, filter_, renormalize=renormalize)

    search = pybeam.fixed_beam(4, n_best=4, processors=[rule()])
    requests = [
        pybeam.Request(prompt, processors=[rule(catalogue.filter(deny=range(i)))] if i % 3 else ())
        for i, prompt in enumerate(prompts(9, seed=4))
    ]
    expected = alone(model, requests, algorithm=search)
    assert all(hypothesis.items for one in expected for hypothesis in one[1])
    for schedule in (pybeam.Batch(5), pybeam.Fifo(3), pybeam.Streaming(4)):
        assert essence(decoded(model, search, schedule, "native", requests)) == expected
