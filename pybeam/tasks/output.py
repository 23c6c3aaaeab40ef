"""`Output`: a text that a model has written, which knows its score and its tokens."""

from __future__ import annotations

from pybeam.request import Hypothesis


class Output(str):
    """A text that a model has written. It is a `str` like any other.

    Args:
        text: the text.
        hypothesis: that it is the text of; None: the search has found none, and the text is empty.

    Attributes:
        hypothesis: its tokens, scores, and whether it ended or was cut; see `pybeam.Hypothesis`.
    """

    hypothesis: Hypothesis | None

    def __new__(cls, text: str = "", hypothesis: Hypothesis | None = None) -> Output:
        output = super().__new__(cls, text)
        output.hypothesis = hypothesis
        return output

    @property
    def score(self) -> float | None:
        """The `Hypothesis.final_score`, by which outputs of one source are ranked; None: there is none."""
        return None if self.hypothesis is None else self.hypothesis.final_score
