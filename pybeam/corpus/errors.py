"""`CorpusError`: why a run of a corpus cannot begin or go on."""

from __future__ import annotations


class CorpusError(ValueError):
    """The input, the output folder or what is asked for keeps a run from going on. It says what to do.

    Attributes:
        path: the input file that cannot be read to its end; None: it is something else.
    """

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path
