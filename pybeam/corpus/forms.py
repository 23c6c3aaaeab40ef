"""How results are written: as text, with scores, several per line, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pybeam.request import Hypothesis, Result

Decode = Callable[[list[int]], str]
Format = Callable[[Result], str]
# the texts of source ids and of target ids
Pieces = tuple[dict[int, str], dict[int, str]]

ATTENTION_DIGITS = 4


@dataclass(frozen=True)
class Form:
    """The form in which every result is written: its best text, with a score, or a JSON object."""

    has_scores: bool = False
    is_json: bool = False
    has_alignment: bool = False

    @property
    def extension(self) -> str:
        """Return the extension of files in this form."""
        return ".jsonl" if self.is_json else ".txt"


def _one_line(text: str) -> str:
    """Put a text on one line, even if its tokens contain line ends."""
    return " ".join(text.split("\n"))


def best_line(decode: Decode, has_score: bool, result: Result) -> str:
    """Format the best translation or ``score <tab> translation``. A failed source is an empty line."""
    if not result.hypotheses:
        return "\n"
    best = result.hypotheses[0]
    text = _one_line(decode(best.tokens))
    return f"{best.final_score:.4f}\t{text}\n" if has_score else f"{text}\n"


def joined_line(decode: Decode, result: Result) -> str:
    """Format the text that a line's hypotheses make in its template, which is the result's id."""
    if result.id is None or result.error is not None:
        return "\n"
    texts = [decode(hypothesis.tokens) for hypothesis in result.hypotheses]
    return _one_line(result.id.fill(texts[: len(result.id.texts)])) + "\n"


def n_best_lines(decode: Decode, result: Result) -> str:
    """Format ``line ||| text ||| score`` per hypothesis, with lines counted from 0, as Moses does."""
    return "".join(
        f"{result.index} ||| {_one_line(decode(one.tokens))} ||| {one.final_score:.4f}\n"
        for one in result.hypotheses
    )


def score_line(result: Result) -> str:
    """Format the final score, or an empty line for a pair that failed."""
    return f"{result.hypotheses[0].final_score:.4f}\n" if result.hypotheses else "\n"


def _json_line(result: Result, record: dict[str, Any]) -> str:
    record = {"index": result.index, **record}
    if result.error is not None:
        record["error"] = str(result.error)
    return json.dumps(record, ensure_ascii=False) + "\n"


def json_line(decode: Decode, pieces: Pieces | None, result: Result) -> str:
    """Format one JSON object per result, with attention if the hypotheses have it.

    `pieces` are the texts of source ids and of target ids. An id without a text is written as a number.
    """
    record: dict[str, Any] = {
        "hypotheses": [
            {
                "text": decode(one.tokens),
                "score": one.score,
                "final_score": one.final_score,
                "ended": one.ended,
                **_alignment(one, pieces),
            }
            for one in result.hypotheses
        ],
        "stop_reason": result.stop_reason,
        "steps": result.steps,
        "expansions": result.expansions,
    }
    if pieces is not None and result.id is not None:
        record["source"] = [pieces[0].get(token, str(token)) for token in result.id]
    return _json_line(result, record)


def _alignment(hypothesis: Hypothesis, pieces: Pieces | None) -> dict[str, Any]:
    if hypothesis.attention is None or pieces is None:
        return {}
    lines = hypothesis.attention.tolist()
    return {
        "tokens": [pieces[1].get(token, str(token)) for token in hypothesis.tokens],
        "attention": [[round(share, ATTENTION_DIGITS) for share in line] for line in lines],
    }


def items_json_line(decode: Decode, result: Result) -> str:
    """Format one JSON object per query, with the items of every hypothesis.

    `has_all_items` says that the catalogue has no others.
    """
    hypotheses = [
        {
            "items": list(one.items or ()),
            "text": decode(one.tokens),
            "score": one.score,
            "final_score": one.final_score,
        }
        for one in result.hypotheses
    ]
    return _json_line(result, {"hypotheses": hypotheses, "has_all_items": result.has_all_items})


def score_json_line(decode: Decode, result: Result) -> str:
    """Format one JSON object per pair, with a log-probability for every token and for EOS.

    Minus infinity is null, because JSON has no number for it.
    """
    record: dict[str, Any] = {}
    for one in result.hypotheses:
        record |= {
            "text": decode(one.tokens),
            "score": _finite(one.score),
            "final_score": _finite(one.final_score),
            "log_probs": [_finite(value) for value in one.log_probs or []],
        }
    return _json_line(result, record)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
