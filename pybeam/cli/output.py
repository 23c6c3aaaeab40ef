"""Write results: format them, restore the order of the input, write line by line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from typing import Any

import click

from pybeam.request import Hypothesis, Result

Decode = Callable[[list[int]], str]
Format = Callable[[Result], str]
# the texts of source ids and of target ids
Pieces = tuple[dict[int, str], dict[int, str]]

# the exit code that a shell reports for a program ended by SIGPIPE
OUTPUT_CLOSED = 141
ATTENTION_DIGITS = 4


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


class OrderedWriter:
    """Write each result as soon as all before it are written. Only early results are held back."""

    def __init__(self, fd: int, format_result: Format) -> None:
        self._fd, self._format = fd, format_result
        self._early: dict[int, Result] = {}
        self._unwritten = b""  # bytes that are left after an interrupted write
        self.num_written = 0

    def add(self, result: Result) -> None:
        self._early[result.index] = result
        while self.num_written in self._early:
            self._append(self._format(self._early.pop(self.num_written)))

    def finish(self, missing: str) -> list[int]:
        """Write the results that are held back, and `missing` for each gap. Returns the gaps."""
        self._append("", num_results=0)
        gaps = []
        for index in range(self.num_written, max(self._early, default=-1) + 1):
            result = self._early.pop(index, None)
            if result is None:
                gaps.append(index)
            self._append(missing if result is None else self._format(result))
        return gaps

    def _append(self, text: str, num_results: int = 1) -> None:
        self._unwritten += text.encode("utf-8", errors="replace")
        self.num_written += num_results
        while self._unwritten:
            try:
                num_bytes = os.write(self._fd, self._unwritten)
            except BrokenPipeError:
                raise click.exceptions.Exit(OUTPUT_CLOSED) from None
            except OSError as error:
                message = f"cannot write the output: {error.strerror}"
                raise click.ClickException(message) from error
            self._unwritten = self._unwritten[num_bytes:]
