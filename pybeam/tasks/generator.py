"""`Generator`: prompts and chats in, what follows them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from pybeam.arguments import names_checked
from pybeam.decoder import OnError
from pybeam.engine.schedule import Schedule
from pybeam.limits import SourceLimit
from pybeam.models.base import Model
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.tasks.loaded import Folder
from pybeam.tasks.search import at_most
from pybeam.tasks.writer import Call, Writer
from pybeam.text.chat import ChatTemplate
from pybeam.text.deltas import NUM_BEFORE, text_behind
from pybeam.text.tokenizer import Tokenizer


class Generator(Writer):
    """A decoder-only language model, which goes on from a prompt.

    `pybeam.load` makes one.

    Args:
        folder: where the model comes from.
        model, search, schedule: those of the decoder.
        tokenizer: see below.
        most: tokens of a prompt and its output together, for calls that set no limit; None: any number.

    Attributes:
        path: the model's folder.
        model, decoder, tokenizer: what decodes; see `pybeam.load_model`, `pybeam.Decoder` and
            `pybeam.load_tokenizer`.
    """

    item = "prompt"

    # each is a part that `pybeam.load` has found
    def __init__(
        self,
        folder: Folder,
        model: Model,
        search: Algorithm,
        schedule: Schedule | None,
        tokenizer: Tokenizer,
        most: int | None,
    ) -> None:
        super().__init__(folder, model, search, schedule)
        self.tokenizer = tokenizer
        self._most = most

    def with_search(self, search: Algorithm) -> Self:
        """Return the same model with another search, whose limit is its own; see `Loaded.with_search`."""
        twin = super().with_search(search)
        twin._most = None
        return twin

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The folder's template, which makes a prompt of the messages of a chat.

        Raises:
            ValueError: the folder has none, or it cannot be read.
        """
        return ChatTemplate.load(self.path, self.tokenizer)

    # one for each option of a call
    @names_checked
    def generate(
        self,
        prompts: Any,
        *,
        n_best: int | None = None,
        max_length: int | None = None,
        search: Algorithm | None = None,
        on_error: OnError = "raise",
        template: Mapping[str, Any] | None = None,
    ) -> Any:
        """Go on from a prompt, or from several.

        A prompt gives an `Output`, a `str` that holds what follows the prompt. Several prompts give a list
        of outputs in their order. With `n_best` of 2 or more, a list of outputs is in the place of each, the
        best first.

        A text is continued as it is. Messages go through the folder's chat template first, which asks for the
        answer of the model.

        Args:
            prompts: a text; the messages of a chat, a list of ``{"role": …, "content": …}``; or a list or
                another iterable of such.
            n_best: outputs for each prompt; None: as many as the search returns.
            max_length: tokens of an output, EOS included; None: the search's.
            search: another search than the decoder's, for this call.
            on_error: what to do about prompts that fail, such as those that are too long for the model,
                after all others: "raise" raises the error of a single prompt, and else
                `pybeam.DecodeError`; "return" puts the error in the place of the answer.
            template: variables of the chat template, such as ``{"enable_thinking": False}`` or ``{"tools":
                […]}``.

        Raises:
            pybeam.DecodeError: some of several prompts failed; its `results` are those of all.
            TypeError: `prompts` is none of these.
            ValueError: an option does not fit the search.
        """
        how = dict(n_best=n_best, max_length=max_length, template=template)
        return self._answers(prompts, search, on_error, how)

    async def agenerate(self, prompts: Any, **options: Any) -> Any:
        """Go on from prompts without blocking the event loop. Prompts of all callers are decoded together.

        They are decoded in a thread that begins with the first call (`pybeam.Service`). Callers with a
        `search` of their own share nothing; give them a `with_search` that they share.

        Args:
            prompts, options: as for `generate`.

        Raises:
            pybeam.DecodeError, TypeError, ValueError: as `generate`.
        """
        return await self._aanswers(prompts, **options)

    def _call(
        self,
        *,
        n_best: int | None = None,
        max_length: int | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> Call:
        tokenizer = self.tokenizer

        def request(prompt: Any) -> Request:
            self._check(prompt)
            if isinstance(prompt, str):
                ids = tokenizer.encode(prompt)
            else:
                rendered = self.chat_template.render(prompt, **(template or {}))
                ids = tokenizer.encode_target(rendered)
            most: int | SourceLimit | None = max_length
            if most is None and self._most is not None:
                most = at_most(max(1, self._most - len(ids)))
            return Request(ids, id=ids[-NUM_BEFORE:], n_best=n_best, max_length=most)

        def text(tokens: Sequence[int], known: list[int]) -> str:
            return text_behind(tokenizer, known, tokens)

        return Call(request, text, self._gives_list(n_best, max_length))

    def _is_one(self, sources: Any) -> bool:
        return isinstance(sources, str) or _is_chat(sources)

    def _check(self, source: Any) -> None:
        if not isinstance(source, str) and not _is_chat(source):
            raise TypeError(
                "`prompts` must be a text, a list of messages that each have a role and a content, or a list "
                f"of such, but there is {source!r}"
            )


def _is_chat(given: Any) -> bool:
    is_list = isinstance(given, list | tuple) and len(given) > 0
    return is_list and all(isinstance(one, Mapping) for one in given)
