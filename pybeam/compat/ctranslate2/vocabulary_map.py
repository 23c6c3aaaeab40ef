"""`vmap.txt`: which target tokens may stand for which tokens of a source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pybeam import processors
from pybeam.compat.ctranslate2.vocabulary import Vocabulary
from pybeam.models.rows import Rows
from pybeam.processors.base import Processor
from pybeam.shortlist.files import vocabulary_map

FILE = "vmap.txt"


class VocabularyMap:
    """The tokens that may be generated for given sources; no others are computed with in the softmax.

    Args:
        rules: target ids by the neighbouring source tokens, joined with spaces; those of "" always count.
        always: ids that always count beside them.
    """

    def __init__(self, rules: dict[str, list[int]], always: Iterable[int]) -> None:
        self._rules = rules
        self._always = {*always, *rules.get("", ())}
        self._longest = max((key.count(" ") + 1 for key in rules), default=1)

    @classmethod
    def load(cls, directory: Path, vocabulary: Vocabulary) -> VocabularyMap | None:
        """Read that of a folder: a line for source tokens, a tab, and target tokens; None: it has none.

        Raises:
            ValueError: the file is not sound, or a token is not known.
        """
        path = directory / FILE
        if not path.exists():
            return None
        rules: dict[str, list[int]] = {}
        for line, source, targets in vocabulary_map(path):
            try:
                tokens = [one.decode() for one in targets]
                rules[source.decode()] = vocabulary.target(tokens)
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {line}: must be UTF-8, but {error}") from error
        return cls(rules, vocabulary.special_ids)

    def candidates(self, sources: Iterable[Sequence[str]]) -> set[int]:
        """Return the ids that may stand for some of these sources."""
        found = set(self._always)
        for tokens in sources:
            for i in range(len(tokens)):
                for num in range(1, self._longest + 1):
                    found.update(self._rules.get(" ".join(tokens[i : i + num]), ()))
        return found


def only(candidates: set[int], vocab_size: int) -> Processor:
    """Return a processor that bans all tokens but these."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[sorted(candidates)] = True

    def allowed(rows: Rows) -> Tensor:
        return mask.to(rows.token.device).expand(len(rows.token), -1)

    return processors.allowed_tokens(allowed)
