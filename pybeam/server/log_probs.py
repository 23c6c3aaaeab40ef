"""Log-probabilities of tokens in the shapes of OpenAI's answers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from fastapi import Request as HTTPRequest

from pybeam import scoring
from pybeam.processors.base import Processor
from pybeam.processors.sampling import Sample
from pybeam.request import Hypothesis, Request
from pybeam.server.answers import finite
from pybeam.server.calls import Calls
from pybeam.server.continuations import Choice
from pybeam.server.models import ServedModel
from pybeam.server.schemas import Serving
from pybeam.serving.together import in_order
from pybeam.text.deltas import INCOMPLETE, NUM_BEFORE, text_behind

# what OpenAI writes for tokens that are all but impossible
LEAST = -9999.0
# of SentencePiece
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# places of an output that are looked at together
WINDOW = 16


class Scored(NamedTuple):
    """The generated tokens of an output, their log-probabilities, and the prefix before them."""

    before: list[int]
    tokens: list[int]
    log_probs: list[float]

    @classmethod
    def of(cls, found: Hypothesis | None) -> Scored:
        """Return the tokens of an output. EOS is left out; None: there is no output."""
        if found is None or found.log_probs is None:
            return cls([], [], [])
        start = max(0, len(found.tokens) + found.ended - len(found.log_probs))
        tokens = found.tokens[start:]
        return cls(found.tokens[:start], tokens, found.log_probs[: len(tokens)])


def scored(model: ServedModel, choice: Choice, prompt: Sequence[int]) -> Scored:
    """Return the tokens of a choice up to its stop string."""
    before, tokens, log_probs = Scored.of(choice.hypothesis)
    text = model.continuation(prompt)
    while tokens and len(text([*before, *tokens])) > len(choice.text):
        tokens.pop()
    return Scored(before, tokens, log_probs[: len(tokens)])


def completion_log_probs(
    model: ServedModel, choice: Choice, prompt: Sequence[int]
) -> dict[str, Any]:
    """Write the log-probabilities of a completion."""
    before, tokens, log_probs = scored(model, choice, prompt)
    text = model.continuation(prompt)
    return {
        "tokens": model.pieces(tokens),
        "token_logprobs": finite(log_probs),
        "top_logprobs": None,
        "text_offset": [len(text([*before, *tokens[:i]])) for i in range(len(tokens))],
    }


async def most_probable(
    calls: Calls,
    http: HTTPRequest,
    model: ServedModel,
    serving: Serving,
    before: Sequence[int],
    tokens: Sequence[int],
    num: int,
    biases: Sequence[Processor] = (),
) -> list[list[tuple[int, float]]]:
    """Return the most probable tokens, and their log-probabilities, in place of each of `tokens`.

    A beam of one step looks for them behind each beginning. Beginnings share what is stored of them. `biases`
    change what the model says, as they did when the tokens were made.
    """
    changes: list[Processor] = [
        dataclasses.replace(one, temperature=0.0, by_source=False)
        for one in model.decoder.algorithm.processors
        if isinstance(one, Sample)
    ]
    options: dict[str, Any] = dict(width=num, n_best=num, min_length=0, max_length=1)
    options |= dict(scoring=scoring.raw(), ended_only=False)
    options["processors"] = [*biases, *changes] or None

    decode = calls.parts(http, model, serving, "`top_logprobs` were not found")

    async def look(place: int, _: int) -> list[tuple[int, float]]:
        request = Request([*before, *tokens[:place]], **options)
        served = await decode(request)
        found = []
        for one in served.result.hypotheses:
            token = one.tokens[0] if one.tokens else one.eos_id
            assert token is not None, "an output without tokens has ended"
            found.append((token, one.score))
        return found

    return [one async for one in in_order(tokens, look, WINDOW)]


def chat_log_probs(
    model: ServedModel,
    prompt: Sequence[int],
    given: Scored,
    tops: Sequence[Sequence[tuple[int, float]]] | None,
) -> dict[str, Any]:
    """Write the log-probabilities of a message; `tops` are the most probable tokens in place of each."""
    content: list[dict[str, Any]] = token_log_probs(model, prompt, given)
    for i, one in enumerate(content):
        before = _before(prompt, given, i)
        one["top_logprobs"] = [_written(model, before, *top) for top in tops[i]] if tops else []
    return {"content": content, "refusal": None}


def token_log_probs(
    model: ServedModel, prompt: Sequence[int], given: Scored
) -> list[dict[str, Any]]:
    """Write the text, the bytes and the log-probability of each token."""
    pairs = enumerate(zip(given.tokens, given.log_probs, strict=True))
    return [_written(model, _before(prompt, given, i), *one) for i, one in pairs]


def _before(prompt: Sequence[int], given: Scored, place: int) -> list[int]:
    """The last tokens before a place of an output, by which a space belongs to the next one."""
    known = [*prompt[-NUM_BEFORE:], *given.before[-NUM_BEFORE:]]
    return [*known[-NUM_BEFORE:], *given.tokens[max(0, place - NUM_BEFORE) : place]]


def _written(
    model: ServedModel, before: Sequence[int], token: int, log_prob: float
) -> dict[str, Any]:
    assert model.plain_tokenizer is not None, "there is a text"
    text = text_behind(model.plain_tokenizer, before, [token])
    if text and INCOMPLETE not in text:
        found, data = text, text.encode()
    else:
        # a part of a character, or a control token
        [found] = model.pieces([token])
        data = bytes_of(found)
    return {"token": found, "logprob": max(log_prob, LEAST), "bytes": list(data)}


def bytes_of(piece: str) -> bytes:
    """Return the bytes that a token of a vocabulary stands for."""
    if match := BYTE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    table = _letters()
    if all(letter in table for letter in piece):
        return bytes(table[letter] for letter in piece)
    return piece.encode()


@cache
def _letters() -> dict[str, int]:
    """The byte of each letter with which GPT-2's tokenizer, and those after it, write bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    plain += range(ord("®"), ord("ÿ") + 1)
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }
