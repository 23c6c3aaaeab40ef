"""A chain of processors keeps prompts and parameters of requests, and computes in float32."""

from __future__ import annotations

import math
import random

import pytest
import torch

from pybeam import Catalogue, backends, processors
from pybeam.catalogue import allowed_items
from pybeam.models.rows import Rows
from pybeam.processors.chain import ProcessorChain
from support.asserts import assert_close
from support.processor_rows import START, processed, random_histories, rows_of

V = 11
ITEMS = [[3, 4], [5]]


def in_halves(logits, rows):
    return logits.bfloat16()


def column_by_column(logits, rows):
    return logits.T.contiguous().T


@pytest.mark.parametrize("function", [in_halves, column_by_column])
@pytest.mark.parametrize(
    "edit", [processors.temperature(1.7), processors.no_repeat_ngram(2), processors.eos_penalty(2)]
)
def test_a_function_returns_any_floats_in_any_order(function, edit, backend):
    """The next one, and whoever comes after all of them, sees float32, row by row."""
    torch.manual_seed(0)
    histories = random_histories(random.Random(0), V)
    logits = (3 * torch.randn(len(histories), V)).bfloat16().float()
    expected = processed([edit], logits, histories, backend=backend)
    first, last = (processors.from_function(function, stage=s) for s in ("logits", edit.stage))
    for chain, result in (([first, edit], expected), ([edit, last], function(expected, None))):
        found = processed(chain, logits, histories, backend=backend)
        assert found.stride(1) == 1
        assert_close(found, result.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_precision_are_made_float32_before_they_are_changed(dtype):
    """Only what normalises them reads halves itself."""
    torch.manual_seed(0)
    histories = random_histories(random.Random(0), V)
    logits = (3 * torch.randn(len(histories), V)).to(dtype)
    chain = [processors.temperature(1.7), processors.eos_penalty(0.6)]
    assert torch.equal(
        processed(chain, logits, histories), processed(chain, logits.float(), histories)
    )


def test_prompts_are_as_long_as_they_are():
    """Where others are longer, no token stands in front of them, and none in a list of fewer tokens."""
    penalty = processors.repetition_penalty(2.0, counts_start=True)
    prompts = [torch.tensor(ids) for ids in ([3, 4, 5, 6], [3])]
    logits, rows = torch.ones(2, V), rows_of([[START], [START]])
    chain = ProcessorChain([penalty], torch.device("cpu"), backends.load("reference"))
    chain.reserve(*rows.tree.token.shape)
    chain.open([1, 2], [(penalty,)] * 2, prompts)
    rows = Rows(**{**vars(rows), "prompt": chain.prompts})
    found = chain(torch.cat((logits, logits[:1])), rows)[:2]
    assert [(line < line.max()).nonzero().flatten().tolist() for line in found] == [
        [3, 4, 5, 6],
        [3],
    ]


def test_a_request_has_a_shorter_list_than_the_one_before_it():
    def banned(chain, rows) -> list[int]:
        found = chain(torch.zeros(2, V), rows)[0]
        return (found == -math.inf).nonzero().flatten().tolist()

    build = processors.suppress_tokens
    rows = rows_of([[START]])
    chain = ProcessorChain([build([])], torch.device("cpu"), backends.load("reference"))
    chain.reserve(*rows.tree.token.shape)
    for tokens in ([2, 3, 4, 5], [6], []):
        chain.open([1], [(build(tokens),)])
        assert banned(chain, rows) == tokens


def test_what_follows_items_sees_their_log_probs():
    """They are not normalised once more."""
    histories = [[START], [START, 3], [START, 5], [START, 3, 4]]
    torch.manual_seed(1)
    logits, penalty = 3 * torch.randn(len(histories), V), processors.eos_penalty(0.5)
    items = allowed_items(Catalogue.build(ITEMS))
    trie = processors.allowed_sequences(ITEMS, stage="log_probs")
    found, expected = (processed([one, penalty], logits, histories) for one in (items, trie))
    assert_close(found, expected)


def test_items_narrow_what_select_sees_only_if_they_are_asked_to():
    items = allowed_items(Catalogue.build(ITEMS))
    rows = rows_of([[START]])
    chain = ProcessorChain([items], torch.device("cpu"), backends.load("reference"))
    chain.reserve(*rows.tree.token.shape)
    chain.open([1], [(items,)])
    for narrows, num_columns in ((True, 3), (False, V)):
        found = chain(torch.zeros(2, V), rows, narrows=narrows)
        assert found.shape == (2, num_columns)
        assert (chain.columns is not None) == narrows


def test_a_program_knows_what_changes_nothing_until_others_say_what_it_does():
    class Louder(type(processors.sample())):
        def __call__(self, logits, rows, data):
            return logits + 1.0

    known, slots = [], [1, 2]
    for own in (processors.sample(), processors.sample(0.7), processors.sample(), Louder()):
        chain = ProcessorChain([own], torch.device("cpu"), backends.load("reference"))
        chain.reserve(3, 1)
        for given in (own, processors.sample()):
            chain.open([2], [(given,)])
            known.append([chain.is_known(part, narrows=False) for part in (slots[:1], slots)])
    assert known == [
        [True] * 2,
        [True] * 2,
        [True, False],
        *[[True] * 2] * 3,
        [True, False],
        [True] * 2,
    ]
    assert not chain.is_known(slots, narrows=True)


def test_what_follows_edits_of_one_launch_sees_their_results(monkeypatch):
    """On a backend that has a kernel for neighbours, which stands here for one that adds 1."""
    reference = backends.load("reference")
    monkeypatch.setattr(reference, "edit_list", lambda *given: None)
    monkeypatch.setattr(
        reference, "edit_logits", lambda logits, *lines: logits.add_(1), raising=False
    )
    triple = processors.from_function(lambda logits, rows: 3 * logits)
    chain = [processors.temperature(2.0), processors.suppress_tokens([3]), triple]
    assert processed(chain, torch.zeros(1, V), [[START]]).tolist() == [[3.0] * V]
