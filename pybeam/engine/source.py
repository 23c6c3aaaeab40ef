"""`Source`: a request that waits or is being decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pybeam.engine.arrivals import Watch
from pybeam.engine.failures import failed
from pybeam.processors.base import Processor
from pybeam.request import Request, Result
from pybeam.state.new_beam import NewBeam


@dataclass(eq=False, kw_only=True)
class Source(NewBeam):
    """A request that waits or is being decoded.

    Attributes:
        index: position of the request among those handed over.
        content: the source, as `Model.check` returned it.
        max_bytes: bytes of keys and values that it may need.
        groups: results of the groups of a search in groups that have ended.
        watch: what is said of it before its result.
        num_committed: number of tokens in the last `Partial`, prefix included.
        best: the best row in the last `Partial`, if it is watched.
        opened: the step at which it was admitted.
    """

    index: int
    request: Request
    content: Any
    max_bytes: int = 0
    groups: list[Result] = field(default_factory=list)
    watch: Watch = Watch.NOTHING
    num_committed: int = 0
    best: list[int] | None = None
    opened: int = -1

    @property
    def number(self) -> int:
        """The number that the model gets for this source."""
        return self.index if self.request.source_id is None else self.request.source_id

    def failed(self, error: Exception) -> Result:
        """Return its result, if it fails or leaves before it begins, or before its next group begins."""
        steps = sum(group.steps for group in self.groups)
        expansions = sum(group.expansions for group in self.groups)
        found = [hypothesis for group in self.groups for hypothesis in group.hypotheses]
        found.sort(key=lambda hypothesis: -hypothesis.final_score)
        return failed(Result(self.index, self.request.id, found, "", steps, expansions), error)

    @property
    def _rules(self) -> list[Processor]:
        """The processors that know more of outputs than their logits."""
        return [one for one in self.algorithm.processors if isinstance(one, Processor)]

    @property
    def allows_cuts(self) -> bool:
        """Whether the beginning of an output is an output, too."""
        return all(rule.allows_cuts for rule in self._rules)

    def items(self, outputs: Sequence[Sequence[int]]) -> list[tuple[int, ...] | None]:
        """`Hypothesis.items` of each output, whose tokens include those of the prefix."""
        own = [tokens[len(self.prefix) :] for tokens in outputs]
        found: list[tuple[int, ...] | None] = [None] * len(own)
        for rule in self._rules:
            pairs = zip(found, own, strict=True)
            found = [rule.items(one) if items is None else items for items, one in pairs]
        return found

    def has_all_items(self, result: Result) -> bool:
        """Whether the hypotheses of a result are all that the processors allow."""
        counts = [rule.num_outputs for rule in self._rules if rule.num_outputs is not None]
        if not counts or result.error is not None or self.target:
            return False
        return len({tuple(h.tokens) for h in result.hypotheses}) == min(counts)

    @property
    def num_given(self) -> int:
        """Tokens of the prefix; 0 if their log-probs count."""
        return 0 if self.algorithm.prefix.is_scored else len(self.prefix)

    # kept, because the next group of a search in groups has the same limit
    @cached_property
    def max_tokens(self) -> int:
        """Number of tokens of its longest possible hypothesis, start token included."""
        max_length = self.algorithm.max_length
        # requests are received with a limit in tokens, whatever the algorithm's is
        assert isinstance(max_length, int)
        return 1 + len(self.prefix) + max_length

    def max_nodes(self, length: int) -> int:
        """Most nodes of its tree while its hypotheses have at most that many tokens, start token included."""
        return self.algorithm.max_rows * min(length, self.max_tokens)
