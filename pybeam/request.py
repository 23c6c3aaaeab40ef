"""Requests, which a caller hands over, and results, which come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pybeam.limits import SourceLimit
from pybeam.scoring import Scoring

if TYPE_CHECKING:
    from pybeam.processors.base import Processor


@dataclass(frozen=True, eq=False)
class Request:
    """One input, and the options of the algorithm that it overrides for itself.

    Args:
        source: the input that the model encodes: token ids (list or 1-D tensor), used exactly as given,
            or a feature tensor [E, F].
        prefix: target tokens that every hypothesis begins with. They are part of `Hypothesis.tokens`. None:
            those that `Tokenizer.encode` or the folder of the model asks for, if any; ``[]``: none.
            They are neither scored nor counted in any length, unless the algorithm's
            `pybeam.limits.PrefixRule` says so.
        id: any object; it comes back as `Result.id`.
        source_id: the number by which a `FunctionModel` is asked about this source; None: the
            position among the requests.
        target: an output to score instead of searching for one: ids without EOS, which is scored
            at its end. The result has one hypothesis, the target after the prefix. Limits of the search
            do not apply. See `Decoder.score`.
        start: the token that hypotheses start from, in place of the model's. A Whisper that is told what was
            said before starts from another token.
        width, n_best, min_length, max_length, scoring, ended_only: override the algorithm's; None keeps
            the algorithm's. `width` may be a number, or one for each of the first steps.
        threshold, max_candidates, relative_threshold, local_threshold: the same; ``math.inf`` switches a
            threshold off.
        keep_ties: whether candidates that are exactly at a threshold stay.
        processors: from `pybeam.processors`. Each replaces the algorithm's processor of its class.
    """

    source: Any
    prefix: Sequence[int] | None = None
    id: Any = None
    source_id: int | None = field(default=None, kw_only=True)
    target: Sequence[int] | None = field(default=None, kw_only=True)
    start: int | None = field(default=None, kw_only=True)
    width: int | Sequence[int] | None = field(default=None, kw_only=True)
    threshold: float | None = field(default=None, kw_only=True)
    max_candidates: float | None = field(default=None, kw_only=True)
    relative_threshold: float | None = field(default=None, kw_only=True)
    local_threshold: float | None = field(default=None, kw_only=True)
    keep_ties: bool | None = field(default=None, kw_only=True)
    n_best: int | None = field(default=None, kw_only=True)
    min_length: int | None = field(default=None, kw_only=True)
    max_length: int | SourceLimit | None = field(default=None, kw_only=True)
    scoring: Scoring | None = field(default=None, kw_only=True)
    ended_only: bool | None = field(default=None, kw_only=True)
    processors: Sequence[Processor] | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, given: Any) -> Request:
        """Return a request as it is, and one of anything else that is a source."""
        if isinstance(given, Request):
            return given
        return _unchecked(cls, _DEFAULTS | {"source": given})

    @property
    def overrides_nothing(self) -> bool:
        """Whether all options are the algorithm's."""
        return set(map(type, _OPTIONS(self))) == _NONE

    @property
    def prefix_length(self) -> int:
        """The number of tokens in the prefix; 0 without one."""
        return 0 if self.prefix is None else len(self.prefix)


def with_prefix(request: Request, prefix: tuple[int, ...]) -> Request:
    """Return a request with another prefix, which is known to be one."""
    return _unchecked(type(request), vars(request) | {"prefix": prefix})


def _unchecked(kind: type[Request], values: dict[str, Any]) -> Request:
    # a frozen class would set one field after the other, which takes longer than to check the source
    request = object.__new__(kind)
    vars(request).update(values)
    return request


_OPTIONS = attrgetter(
    *("width", "threshold", "max_candidates", "relative_threshold", "local_threshold", "n_best"),
    *("keep_ties", "min_length", "max_length", "scoring", "ended_only", "processors", "target"),
)
_NONE = {type(None)}
_DEFAULTS = {one.name: one.default for one in fields(Request) if one.name != "source"}


@dataclass(frozen=True)
class Hypothesis:
    """One output.

    Attributes:
        tokens: ids; the prefix is included, the start token and EOS are not.
        score: the sum of the log-probabilities of the generated tokens, EOS included.
        final_score: `score` after length normalisation or reward; hypotheses are ranked by it.
        ended: True: it ended in EOS. False: it was cut at `max_length`.
        eos_id: the EOS it ended in, which matters where a model has several; None: it was cut.
        items: ids of the catalogue's items that have these tokens and that the filter allows, where
            `pybeam.catalogue.allowed_items` is among the processors; else None.
        log_probs: the log-probability of every generated token, EOS included, if it was asked for.
        attention: [tokens, E] float32, if it was asked for: the attention to each source id at the step
            that chose each of `tokens`. `==` does not compare it.
    """

    tokens: list[int]
    score: float
    final_score: float
    ended: bool
    log_probs: list[float] | None = None
    attention: Tensor | None = field(default=None, compare=False, repr=False)
    eos_id: int | None = field(default=None, kw_only=True)
    items: tuple[int, ...] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Partial:
    """The certain beginning of the best hypothesis, while its request is still being decoded.

    Attributes:
        index: position of the request among those handed over.
        id: the request's own id.
        tokens: ids, prefix included. Each `Partial` of a request is longer than the one before it and
            begins with it. ``Result.hypotheses[0].tokens`` begins with all of them, if there is one.
        best: the best row of the beam, which begins with `tokens` and may be taken back; None: it was not
            asked for. With it, `tokens` may be as long as before.
    """

    index: int
    id: Any
    tokens: list[int]
    best: list[int] | None = None


@dataclass(frozen=True)
class Result:
    """The hypotheses of one request, or the error it failed with.

    Attributes:
        index: position of the request among those handed over.
        id: the request's own id.
        hypotheses: at most n_best (of each group, in a diverse search), best final_score first, ties in
            the order of finishing. There is none if no candidate was left, or if `ended_only` was asked
            for and nothing ended.
        stop_reason: "width" (as many finished as the beam is wide), "n_best" (as many as were asked
            for), "optimal" (proven: nothing can beat what has finished), "heuristic" (assumed so),
            "top_finished", "empty_beam" (no candidate left), "max_length", "target" (the given one was
            scored), "groups" (of a diverse search), "alternatives", "empty_source",
            "interrupted" (it was to leave with the best so far) or "error".
        steps: steps in which its beam was extended. Each token of a prefix counts one, even if it was read
            together with others.
        expansions: rows that were sent through the model for it.
        error: the error it failed with; None: it did not fail.
        has_all_items: whether the hypotheses are all that a catalogue and its filter allow. Then there may be
            fewer than n_best.
    """

    index: int
    id: Any
    hypotheses: list[Hypothesis]
    stop_reason: str
    steps: int = 0
    expansions: int = 0
    error: Exception | None = None
    has_all_items: bool = False
