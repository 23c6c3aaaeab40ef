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


def _text(hypothesis: Hypothesis, decode: Decode) -> str:
    """Put a text on one line, even if its tokens contain line ends."""
    return " ".join(decode(hypothesis.tokens).split("\n"))


def best_line(decode: Decode, has_score: bool) -> Format:
    """Format the best translation or ``score <tab> translation``. A failed source is an empty line."""

    def format_result(result: Result) -> str:
        if not result.hypotheses:
            return "\n"
        best = result.hypotheses[0]
        text = _text(best, decode)
        return f"{best.final_score:.4f}\t{text}\n" if has_score else f"{text}\n"

    return format_result


def joined_line(decode: Decode) -> Format:
    """Format the text that a line's hypotheses make in its template, which is the result's id."""

    def format_result(result: Result) -> str:
        if result.id is None or result.error is not None:
            return "\n"
        texts = [decode(hypothesis.tokens) for hypothesis in result.hypotheses]
        return " ".join(result.id.fill(texts[: len(result.id.texts)]).split("\n")) + "\n"

    return format_result


def n_best_lines(decode: Decode) -> Format:
    """Format ``line ||| text ||| score`` per hypothesis, with lines counted from 0, as Moses does."""

    def format_result(result: Result) -> str:
        return "".join(
            f"{result.index} ||| {_text(hypothesis, decode)} ||| {hypothesis.final_score:.4f}\n"
            for hypothesis in result.hypotheses
        )

    return format_result


def json_line(decode: Decode, pieces: Pieces | None = None) -> Format:
    """Format one JSON object per result, with attention if the hypotheses have it.

    `pieces` are the texts of source ids and of target ids. An id without a text is written as a number.
    """

    def format_result(result: Result) -> str:
        record: dict[str, Any] = {
            "index": result.index,
            "hypotheses": [
                {
                    "text": decode(hypothesis.tokens),
                    "score": hypothesis.score,
                    "final_score": hypothesis.final_score,
                    "ended": hypothesis.ended,
                    **_alignment(hypothesis, pieces),
                }
                for hypothesis in result.hypotheses
            ],
            "stop_reason": result.stop_reason,
            "steps": result.steps,
            "expansions": result.expansions,
        }
        if pieces is not None and result.id is not None:
            record["source"] = [pieces[0].get(token, str(token)) for token in result.id]
        if result.error is not None:
            record["error"] = str(result.error)
        return json.dumps(record, ensure_ascii=False) + "\n"

    return format_result


def _alignment(hypothesis: Hypothesis, pieces: Pieces | None) -> dict[str, Any]:
    if hypothesis.attention is None or pieces is None:
        return {}
    lines = hypothesis.attention.tolist()
    return {
        "tokens": [pieces[1].get(token, str(token)) for token in hypothesis.tokens],
        "attention": [[round(share, ATTENTION_DIGITS) for share in line] for line in lines],
    }


def score_line(result: Result) -> str:
    """Format the final score, or an empty line for a pair that failed."""
    return f"{result.hypotheses[0].final_score:.4f}\n" if result.hypotheses else "\n"


def score_json_line(decode: Decode) -> Format:
    """Format one JSON object per pair, with a log-probability for every token and for EOS.

    Minus infinity is null, because JSON has no number for it.
    """

    def format_result(result: Result) -> str:
        record: dict[str, Any] = {"index": result.index}
        for hypothesis in result.hypotheses:
            record |= {
                "text": decode(hypothesis.tokens),
                "score": _finite(hypothesis.score),
                "final_score": _finite(hypothesis.final_score),
                "log_probs": [_finite(value) for value in hypothesis.log_probs or []],
            }
        if result.error is not None:
            record["error"] = str(result.error)
        return json.dumps(record, ensure_ascii=False) + "\n"

    return format_result


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
