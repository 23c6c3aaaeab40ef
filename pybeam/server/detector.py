"""The languages that texts may be in, by py3langid."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pybeam.server.errors import APIError

LETTER = re.compile(r"[^\W\d_]")
# characters that are looked at; more would not change what is found
MAX_CHARACTERS = 2000
# languages that are named at most
MAX_LANGUAGES = 3


class Detected(NamedTuple):
    """A language that a text may be in.

    Attributes:
        language: its code.
        probability: among all languages that the detector knows.
    """

    language: str
    probability: float


# what LibreTranslate says of a text without a word
UNKNOWN = Detected("en", 0.0)


class Detector:
    """Detects languages. Its model is read when it is first asked."""

    async def detect(self, texts: Sequence[str], codes: Sequence[str]) -> list[Detected]:
        """Return which of these languages texts are in, the most probable one first; at least one.

        Raises:
            APIError: the package py3langid is missing.
        """
        text = "\n".join(texts)[:MAX_CHARACTERS]
        if not LETTER.search(text):
            return [UNKNOWN]
        is_read = "_identifier" in vars(self)
        try:
            ranked = self._ranked(text) if is_read else await asyncio.to_thread(self._ranked, text)
        except ImportError as error:
            raise APIError(
                501, f"{error}; languages are detected with `pip install 'pybeam-search[serve]'`"
            ) from error
        # where a language has two scripts, the first counts
        known = {code.partition("-")[0]: code for code in reversed(codes)}
        found = [Detected(known[label], share) for label, share in ranked if label in known]
        return found[:MAX_LANGUAGES] or [UNKNOWN]

    def _ranked(self, text: str) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = self._identifier.rank(text)
        return found

    @cached_property
    def _identifier(self) -> Any:
        langid = importlib.import_module("py3langid.langid")
        return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
