"""The bodies of answers, as the OpenAPI page shows them, made of results."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pybeam import request
from pybeam.server.models import ServedModel
from pybeam.serving import ServedResult


class Times(BaseModel):
    """Where the time of a request went."""

    model_config = ConfigDict(from_attributes=True)
    queued: float = Field(description="Seconds; so are the next two.")
    encoding: float
    decoding: float
    steps: int
    rows: float = Field(description="Mean rows in a step.")
    expansions: int


class Hypothesis(BaseModel):
    """`pybeam.Hypothesis`."""

    text: str
    score: float
    final_score: float
    ended: bool


class TokenHypothesis(Hypothesis):
    """The same with its tokens."""

    tokens: list[int]
    pieces: list[str]
    log_probs: list[float | None] | None


class Translation(Hypothesis):
    """The best translation of a text, and the next best ones."""

    alternatives: list[Hypothesis]
    reason: str = Field(description="finished, or deadline: the best so far.")
    width: int = Field(description="Of the beam, which --width-by-load may have narrowed.")
    times: Times


class Translations(BaseModel):
    model: str
    translations: list[Translation]


class Sentences(BaseModel):
    """`pybeam.text.units.Template`: kept[0] + texts[0] + kept[1] + … + texts[-1] + kept[-1]."""

    model: str
    kept: list[str] = Field(description="What stays; one more than there are texts.")
    texts: list[str] = Field(description="The sentences.")


class Decoded(BaseModel):
    """`pybeam.Result`."""

    model: str
    id: Any
    hypotheses: list[TokenHypothesis]
    stop_reason: str
    reason: str
    width: int
    times: Times


def _hypothesis(model: ServedModel, one: request.Hypothesis) -> Hypothesis:
    """Return a hypothesis as text."""
    return Hypothesis(
        text=model.text(one.tokens), score=one.score, final_score=one.final_score, ended=one.ended
    )


def _facts(served: ServedResult) -> dict[str, Any]:
    """Return how a request was served."""
    times = Times.model_validate(served.times)
    return {"reason": served.reason, "width": served.width, "times": times}


def translation_of(model: ServedModel, served: ServedResult) -> Translation:
    """Return the translation of one text; an empty text's is empty."""
    found = [_hypothesis(model, one) for one in served.result.hypotheses]
    best = found[0] if found else Hypothesis(text="", score=0, final_score=0, ended=False)
    return Translation(**vars(best), alternatives=found[1:], **_facts(served))


def decoded_of(model: ServedModel, served: ServedResult) -> Decoded:
    """Return everything that a result has."""
    result = served.result
    hypotheses = [
        TokenHypothesis(
            **vars(_hypothesis(model, one)),
            tokens=one.tokens,
            pieces=model.pieces(one.tokens),
            log_probs=finite(one.log_probs),
        )
        for one in result.hypotheses
    ]
    return Decoded(
        model=model.name,
        id=result.id,
        hypotheses=hypotheses,
        stop_reason=result.stop_reason,
        **_facts(served),
    )


def finite(log_probs: list[float] | None) -> list[float | None] | None:
    """Write minus infinity, which JSON does not have, as null."""
    if log_probs is None:
        return None
    return [value if math.isfinite(value) else None for value in log_probs]
