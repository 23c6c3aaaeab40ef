"""Beams choose among logits that nobody keeps, a few rows at a time: the bits of `step` and `select`."""

import copy
import dataclasses
from functools import cache

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.backends.int4 import quantise_groups
from pybeam.backends.packing import quantise
from pybeam.engine.engine import Engine
from pybeam.models.int4 import Int4Linear
from pybeam.models.linear import PackedLinear
from pybeam.models.transformer.model import TransformerSession
from pybeam.processors.chain import ProcessorChain
from pybeam.shortlist import allowed_translations
from pybeam.state.step import Step
from support.laws import essence
from support.paths import MODEL

pytestmark = pytest.mark.skipif(
    "native" not in backends.available(), reason="other backends keep logits"
)
# several beams are a tile; one beam is more than a tile; entries that have ended have no row; rows are beams
ALGORITHMS = dict(
    greedy=pybeam.greedy(max_length=4),
    fixed=pybeam.fixed_beam(5, max_length=4),
    wide=pybeam.fixed_beam(40, max_length=2),
    held=pybeam.variable_beam(5, max_length=4),
    guesses=pybeam.jacobi(max_length=5),
)


@cache
def model():
    """A model with so much work in a step that threads share it."""
    return pybeam.load_model(str(MODEL))


@pytest.fixture
def sources(num_threads):
    """Those of a batch that so many threads share."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    yield [[3 + (7 * i + 5 * j) % 900 for j in range(1 + i % 4)] for i in range(17 * num_threads)]
    torch.set_num_threads(before)


def one_by_one(decoder, sources, monkeypatch):
    monkeypatch.setattr(Engine, "_most_steps", lambda engine: 1)
    return essence(decoder.decode(sources))


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_nobody_needs_the_logits(name, num_threads, sources, monkeypatch):
    decoder = pybeam.Decoder(model(), ALGORITHMS[name], pybeam.Batch(64))
    chosen = essence(decoder.decode(sources))
    assert chosen == one_by_one(decoder, sources, monkeypatch)


# a source lists 2 to 300 tokens
SHORTLIST = pybeam.Shortlist(
    {(i,): [5 + (13 * i + 29 * j) % 7900 for j in range(1 + i % 75)] for i in range(3, 903)}, [4]
)
# by what their weights are; no float16 holds those of the first exactly
LAYERS = {
    "float32": lambda w, b: PackedLinear(w * (1 + 2**-18), b),
    "float16": lambda w, b: PackedLinear(w.half(), None),
    "bfloat16": lambda w, b: PackedLinear(w.bfloat16(), b),
    "narrow": lambda w, b: PackedLinear(w.bfloat16().view(torch.int16), b),
    "int8": lambda w, b: PackedLinear(quantise(w), None),
    "int4": lambda w, b: Int4Linear(quantise_groups(w), b),
}
UNTOUCHED = 7.0


def listed(shortlist, name, schedule, network):
    search = dataclasses.replace(ALGORITHMS[name], processors=(allowed_translations(shortlist),))
    return pybeam.Decoder(network, search, schedule)


@pytest.fixture
def memory(monkeypatch):
    """The memory for logits of each call, of which nothing has been touched when the call begins."""
    call, memory = TransformerSession.call, []

    def noted(session, rows):
        found = call(session, rows)
        memory.append(found.arguments[0].fill_(UNTOUCHED))
        return found

    monkeypatch.setattr(TransformerSession, "call", noted)
    return memory


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", ["greedy", "fixed", "held"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_source_needs_its_own_columns_alone(
    layer, name, num_threads, sources, memory, monkeypatch
):
    own = copy.copy(model())
    own.output = LAYERS[layer](own.output.weight, torch.linspace(-1, 1, own.vocab_size))
    # sources follow others in their slots
    decoder = listed(SHORTLIST, name, pybeam.Fifo(6 * num_threads), own)
    chosen = essence(decoder.decode(sources))
    assert 4 * int((memory[-1] != UNTOUCHED).sum()) < memory[-1].numel()
    assert chosen == one_by_one(decoder, sources, monkeypatch)


@pytest.mark.parametrize("num_threads", [1])
def test_long_lists_need_all_columns(sources, memory):
    half = model().vocab_size // 2
    for size, is_whole in ((half, False), (half + 1, True)):
        shortlist = pybeam.Shortlist({}, range(3, 3 + size))
        listed(shortlist, "greedy", pybeam.Batch(1), model()).decode(sources[:1])
        assert bool((memory[-1] != UNTOUCHED).all()) == is_whole


@pytest.mark.parametrize("num_threads", [1])
def test_columns_that_a_failed_call_left_out_are_packed_by_the_next(sources, monkeypatch):
    decoder = listed(SHORTLIST, "greedy", pybeam.Fifo(6), model())
    go_on, step_columns = Step.go_on, ProcessorChain.step_columns

    def twice(step, call, live, *given):
        def strange(chain, eos_id):
            columns = step_columns(chain, eos_id)
            token, first, words = columns.arrays
            token = token.clone()
            token[first[columns.node[live[-1]] + 1] - 1] = model().vocab_size
            return columns._replace(arrays=columns.arrays._make((token, first, words)))

        with monkeypatch.context() as patch:
            patch.setattr(ProcessorChain, "step_columns", strange)
            num, *_ = go_on(step, call, live, *given)
        assert num == 0
        return go_on(step, call, live, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "go_on", twice)
        chosen = essence(decoder.decode(sources))
    assert chosen == one_by_one(decoder, sources, monkeypatch)
