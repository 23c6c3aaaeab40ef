"""Results as the bodies of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pybeam import request
from pybeam.server import schemas
from pybeam.server.models import ServedModel
from pybeam.serving import ServedResult


def log_fields_of(model: ServedModel, served: Sequence[ServedResult]) -> dict[str, Any]:
    """Return what the log says of results, side by side: of times and steps the most; no text."""
    times = [one.times for one in served]
    steps = sum(one.steps for one in times)
    expansions = sum(one.expansions for one in times)
    has_late = any(one.reason == "deadline" for one in served)
    return {
        "model": model.name,
        "sources": len(served),
        "queued": round(max(one.queued for one in times), 6),
        "encoding": round(max(one.encoding for one in times), 6),
        "decoding": round(max(one.decoding for one in times), 6),
        "steps": max(one.steps for one in times),
        "rows": round(expansions / steps, 3) if steps else 0.0,
        "expansions": expansions,
        "reason": "deadline" if has_late else "finished",
    }


def best_text(model: ServedModel, served: ServedResult) -> str:
    """Return the text of the best hypothesis; "" if there is none."""
    hypotheses = served.result.hypotheses
    return model.text(hypotheses[0].tokens) if hypotheses else ""


def hypothesis_of(model: ServedModel, one: request.Hypothesis) -> schemas.Hypothesis:
    """Return a hypothesis as text."""
    return schemas.Hypothesis(
        text=model.text(one.tokens),
        score=one.score,
        final_score=one.final_score,
        ended=one.ended,
    )


def translation_of(model: ServedModel, served: ServedResult) -> schemas.Translation:
    """Return the translation of one text; an empty text's is empty."""
    found = [hypothesis_of(model, one) for one in served.result.hypotheses]
    best = found[0] if found else schemas.Hypothesis(text="", score=0, final_score=0, ended=False)
    return schemas.Translation(
        **best.model_dump(),
        alternatives=found[1:],
        reason=served.reason,
        width=served.width,
        times=schemas.Times.model_validate(served.times),
    )


def decoded_of(model: ServedModel, served: ServedResult) -> schemas.Decoded:
    """Return everything that a result has."""
    return schemas.Decoded(
        model=model.name,
        id=served.result.id,
        hypotheses=[
            schemas.TokenHypothesis(
                **hypothesis_of(model, one).model_dump(),
                tokens=one.tokens,
                pieces=model.pieces(one.tokens),
                log_probs=finite(one.log_probs),
            )
            for one in served.result.hypotheses
        ],
        stop_reason=served.result.stop_reason,
        reason=served.reason,
        width=served.width,
        times=schemas.Times.model_validate(served.times),
    )


def finite(log_probs: list[float] | None) -> list[float | None] | None:
    """Write minus infinity, which JSON does not have, as null."""
    if log_probs is None:
        return None
    return [value if math.isfinite(value) else None for value in log_probs]
