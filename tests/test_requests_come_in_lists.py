"""One source in place of a list of sources is the commonest mistake: it is named, with its remedy."""

import numpy as np
import pytest
import torch

import pybeam
from pybeam.models.source_ids import checked_ids
from support.search_models import random_model

ONE = {
    "a list": [1, 2],
    "a tuple": (1, 2),
    "a tensor": torch.tensor([1, 2]),
    "an array": np.array([1, 2]),
    "numbers of an array": list(np.array([1, 2])),
    "a text": "sea",
}


@pytest.fixture
def decoder() -> pybeam.Decoder:
    model = random_model(1)
    # as models of token ids do; a FunctionModel takes anything
    model.check = lambda source: checked_ids(source, model.vocab_size)
    return pybeam.Decoder(model, pybeam.greedy(max_length=3))


def remedy(one) -> str:
    if isinstance(one, str):
        return r"is a text; encode it: \[tokenizer.encode\('sea'\)\]"
    return r"holds ids itself, beginning with 1; put .* into a list too: \[\[1, …\]\]"


@pytest.mark.parametrize("one", ONE.values(), ids=ONE)
@pytest.mark.parametrize("call", ["decode", "stream", "score", "alternatives"])
def test_a_forgotten_outer_list(decoder, call, one):
    more = ([[2]],) if call == "score" else ()
    with pytest.raises(TypeError, match=f"`requests` must be a list .*{remedy(one)}"):
        getattr(decoder, call)(one, *more)


@pytest.mark.parametrize("one", ONE.values(), ids=ONE)
def test_a_forgotten_outer_list_of_targets(decoder, one):
    with pytest.raises(TypeError, match=f"`targets` must be a list .*{remedy(one)}"):
        decoder.score([[1]], one)


@pytest.mark.parametrize("many", [[[1, 2]], ([1], [2]), torch.tensor([[1, 2]]), [], iter([[1]])])
def test_lists_are_taken(decoder, many):
    assert all(result.hypotheses for result in decoder.decode(many))


def test_a_number_is_a_source_where_the_model_says_so():
    found = pybeam.Decoder(random_model(1), pybeam.greedy(max_length=3)).decode([7, 7])
    assert len(found) == 2


def test_errors_are_raised_when_all_others_have_finished(decoder):
    bad = [[1], [10**6], [2]]
    for call, more in (("decode", []), ("score", [[[2]] * 3]), ("alternatives", [2])):
        run = getattr(decoder, call)
        with pytest.raises(
            pybeam.DecodeError, match=r"1 of 3 requests failed; .* request 1"
        ) as caught:
            run(bad, *more)
        returned = run(bad, *more, on_error="return")
        assert [bool(r.hypotheses) for r in returned] == [True, False, True]
        assert [r.hypotheses for r in caught.value.results] == [r.hypotheses for r in returned]
    errors = {result.index: result.error for result in decoder.stream(bad)}
    assert [i for i, error in errors.items() if error is not None] == [1]


def test_a_bare_source_is_a_request_with_no_options():
    made, written = pybeam.Request.of([4, 5]), pybeam.Request([4, 5])
    assert vars(made) == vars(written) and repr(made) == repr(written)
