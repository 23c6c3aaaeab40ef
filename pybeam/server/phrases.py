"""The processor by which a request to a server says which phrases its outputs must contain."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from pybeam.automata.phrases import phrases_automaton
from pybeam.processors import must_contain
from pybeam.processors.base import Processor, perturbs
from pybeam.processors.phrases import Encoder, MustContain, spellings_of
from pybeam.search.algorithms import Algorithm
from pybeam.server.errors import APIError
from pybeam.server.models import ServedModel

# of a request; the automaton of so many phrases has 256 states for each of their tokens
MOST_PHRASES = 8
# of that automaton, at most 36 bytes each
MOST_EDGES = 1 << 19
# characters of a phrase
LONGEST_PHRASE = 256


def with_phrases(algorithm: Algorithm) -> Algorithm:
    """Return a search with a processor that does nothing until a request has phrases.

    Steps of all requests go on with log-probabilities then, which takes up to 3 % of their time.
    """
    chain = list(algorithm.processors)
    # samples, and what tells groups apart, are behind all others
    last = [one for one in chain[-1:] if perturbs(one) or getattr(one, "separates_groups", False)]
    others = chain[: len(chain) - len(last)]
    return dataclasses.replace(algorithm, processors=(*others, must_contain(), *last))


async def phrases_of(model: ServedModel, texts: Sequence[str] | None) -> list[Processor]:
    """Return the processor for phrases that a request asks for, in a list; none if it asks for none.

    Raises:
        APIError: the server takes none, or they cannot be written in the model's tokens.
    """
    if not texts:
        return []
    tokenizer, field = model.plain_tokenizer, "must_contain"
    if not any(isinstance(one, MustContain) for one in model.decoder.algorithm.processors):
        problem = "must be left out, because this server takes none; `pybeam serve --phrases` does"
        raise APIError(400, f"`{field}` {problem}", field)
    if tokenizer is None:
        raise APIError(400, f"`{field}` needs a model with a tokenizer", field)
    try:
        return [await asyncio.to_thread(_processor, texts, tokenizer)]
    except ValueError as error:
        raise APIError(400, f"`{field}`: {error}", field) from error


def _processor(texts: Sequence[str], tokenizer: Encoder) -> MustContain:
    """Return the processor for phrases, and have it find beforehand what an engine asks it."""
    spelt = spellings_of(texts, tokenizer)
    made = MustContain(phrases_automaton(spelt, MOST_EDGES), phrases=spelt)
    _ = made.longest_output
    return made
