"""`Translator`: texts in, texts out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pybeam.arguments import ArgumentError, names_checked
from pybeam.decoder import OnError
from pybeam.engine.schedule import Schedule
from pybeam.models.base import Model
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.tasks.loaded import Folder
from pybeam.tasks.texts import Texts
from pybeam.tasks.writer import Call, Writer
from pybeam.text.tokenizer import Tokenizer


class Translator(Writer):
    """A model that turns a text into a text: a translator, a summariser, or T5 with its prompts.

    `pybeam.load` makes one.

    Args:
        folder, texts: where the model comes from, and its tokenizers.
        model, search, schedule: those of the decoder.
        source, target: languages for calls that name none.

    Attributes:
        path: the model's folder.
        model, decoder: what decodes; see `pybeam.load_model` and `pybeam.Decoder`.
        languages: those of sources and those of targets, as `translate` takes them; two empty lists for a
            model that knows one pair alone.
    """

    # each is a part that `pybeam.load` has found
    def __init__(
        self,
        folder: Folder,
        model: Model,
        search: Algorithm,
        schedule: Schedule | None,
        texts: Texts,
        source: str | None,
        target: str | None,
    ) -> None:
        super().__init__(folder, model, search, schedule)
        self.languages = texts.languages
        self._texts, self._pair = texts, (source, target)
        self._tokenizers: dict[tuple[str | None, str | None], Tokenizer] = {}
        if source is not None or target is not None:
            self._tokenizer(source, target)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer for the languages that `pybeam.load` was given.

        Raises:
            ValueError: the model must be told languages, and was not.
        """
        return self._tokenizer(None, None)

    @property
    def _languages(self) -> Sequence[str]:
        return self.languages[1]

    # one for each option of a call
    @names_checked
    def translate(
        self,
        texts: str | Iterable[str],
        *,
        source: str | None = None,
        target: str | None = None,
        n_best: int | None = None,
        max_length: int | None = None,
        search: Algorithm | None = None,
        on_error: OnError = "raise",
    ) -> Any:
        """Translate a text, or several.

        A text gives an `Output`, which is a `str`. Several texts give a list of outputs in their order. With
        `n_best` of 2 or more, there is a list of outputs in place of each, the best first. A text without any
        word stays empty.

        Args:
            texts: a text, or a list or another iterable of texts.
            source, target: languages, such as "eng_Latn", as `languages` has them; None: those of
                `pybeam.load`.
            n_best: outputs for each text; None: as many as the search returns.
            max_length: tokens of an output, EOS included; None: the search's.
            search: another search than the decoder's, for this call.
            on_error: what to do about texts that fail, such as those that are too long for the model, after
                all others: "raise" raises the error of a single text, and else `pybeam.DecodeError`;
                "return" puts the error in the place of the answer.

        Raises:
            pybeam.DecodeError: some of several texts failed; its `results` are those of all.
            TypeError: `texts` is neither.
            ValueError: a language is missing or unknown, or an option does not fit the search.
        """
        how = dict(source=source, target=target, n_best=n_best, max_length=max_length)
        return self._answers(texts, search, on_error, how)

    async def atranslate(self, texts: str | Iterable[str], **options: Any) -> Any:
        """Translate without blocking the event loop. Texts of all callers are decoded together.

        They are decoded in a thread that begins with the first call (`pybeam.Service`). Callers with a
        `search` of their own share nothing; give them a `with_search` that they share.

        Args:
            texts, options: as for `translate`.

        Raises:
            pybeam.DecodeError, TypeError, ValueError: as `translate`.
        """
        return await self._aanswers(texts, **options)

    def _call(
        self,
        *,
        source: str | None = None,
        target: str | None = None,
        n_best: int | None = None,
        max_length: int | None = None,
    ) -> Call:
        tokenizer = self._tokenizer(source, target)

        def request(text: str) -> Request:
            self._check(text)
            ids = tokenizer.encode(text) if text.strip() else []
            return Request(ids, n_best=n_best, max_length=max_length)

        def text(tokens: Sequence[int], known: None) -> str:
            return tokenizer.decode(tokens)

        return Call(request, text, self._gives_list(n_best, max_length))

    def _is_one(self, sources: Any) -> bool:
        return isinstance(sources, str)

    def _check(self, source: Any) -> None:
        if not isinstance(source, str):
            raise TypeError(f"`texts` must be a text or a list of texts, but there is {source!r}")

    def _tokenizer(self, source: str | None, target: str | None) -> Tokenizer:
        """Return the tokenizer for a pair of languages, or for those that `pybeam.load` was given."""
        own = self._pair
        pair = own[0] if source is None else source, own[1] if target is None else target
        if pair not in self._tokenizers:
            try:
                self._tokenizers[pair] = self._texts.of(*pair)
            except ArgumentError as error:
                name = error.name.removesuffix("_lang")
                more = "; `languages` lists them all" if self.languages[1] else ""
                raise ArgumentError(name, error.problem + more) from None
        return self._tokenizers[pair]
