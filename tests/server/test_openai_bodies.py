"""The bodies of OpenAI's completions and chats say which part of them is wrong."""

import pytest

from pybeam.server.errors import APIError
from pybeam.server.openai_bodies import CompletionsBody
from pybeam.server.routes import validated


@pytest.mark.parametrize(
    ("biases", "problem"),
    [
        ({"5": 1, "x": 1}, 'must have token ids for names, but has "x"'),
        ({"5": 1, "9" * 5000: 1}, f'must have token ids for names, but has "{"9" * 10}"'),
        ({"5": 1, "6": 101}, 'must be from -100 to 100 for "6"'),
        ({"5": 1, "7": float("nan")}, 'must be from -100 to 100 for "7"'),
        ({"5": 1, "8": True}, 'must be from -100 to 100 for "8"'),
        ([5], "Input should be a valid dictionary"),
    ],
)
def test_the_entry_of_a_bias_that_is_wrong_is_named(biases, problem):
    body = {"prompt": "a", "logit_bias": {"5": 1, "6": -100}}
    assert validated(CompletionsBody, body).logit_bias == body["logit_bias"]
    with pytest.raises(APIError, match=r"^`logit_bias`") as caught:
        validated(CompletionsBody, body | {"logit_bias": biases})
    assert problem in caught.value.message and caught.value.field == "logit_bias"
