"""`ChatTemplate`: the messages of a chat become a prompt, as transformers' `apply_chat_template` makes it.

A template is a program of whoever made the folder. It runs in Jinja's sandbox and sees plain data alone.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pybeam.text.json_files import read_json
from pybeam.text.model_files import MAX_TEXT_BYTES, blaming, regular_file
from pybeam.text.tokenizer import Tokenizer

# earlier ones let templates out of the sandbox
JINJA = (3, 1, 6)
TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# types of parts of a message, for which a template writes a mark that stands for no picture and no sound
NOT_TEXT = ("image", "image_url", "input_image", "video", "video_url", "audio", "input_audio")


class ChatTemplate:
    """A chat template of a folder.

    Args:
        text: the template, in Jinja's language.
        tokens: the special tokens that it may use, by name.

    Raises:
        ImportError: the package jinja2 is missing, or too old.
        ValueError: the text is no template.
    """

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        environment = _sandbox()
        try:
            self._template = environment.from_string(text)
        # a template is a program: it may raise anything, here too, where constants are computed
        except Exception as error:
            raise ValueError(f"the chat template is none that Jinja reads: {error}") from error
        self._text, self._tokens = text, dict(tokens)

    def names(self, word: str) -> bool:
        """Whether the template has this word, such as "tools", which others know nothing of."""
        return word in self._text

    @classmethod
    def load(cls, directory: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """Load the template of a folder: of `chat_template.jinja`, or else of `tokenizer_config.json`.

        Raises:
            ImportError: the package jinja2 is missing, or too old.
            ValueError: there is none, it cannot be read, or the tokenizer does not know special tokens in a
                text.
        """
        path = directory / "tokenizer_config.json"
        with blaming(directory):
            config = read_json(path) if path.exists() else {}
            text, tokens = _text(directory, config), _special_tokens(directory, config)
        if text is None:
            raise ValueError(
                f"{directory} has no chat template, so its model may know no chats; give a text, which is "
                "continued as it is"
            )
        for name in ("bos_token", "eos_token"):
            if name in tokens and len(tokenizer.encode_target(tokens[name])) > 1:
                raise ValueError(
                    f"the tokenizer of {directory} does not know {tokens[name]!r} in a text, so chats need "
                    "the file tokenizer.json; transformers writes it: `AutoTokenizer.from_pretrained(path)"
                    ".save_pretrained(path)`"
                )
        return cls(text, tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], /, **variables: Any) -> str:
        """Return the prompt that asks for the next message.

        Args:
            messages: each has a `role`, such as "user", and a `content`.
            variables: what the template knows beside them, such as `tools`.

        Raises:
            ValueError: a message is unfit or holds more than text, or the template refuses them.
        """
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **variables}
        for message in messages:
            if not isinstance(message.get("role"), str):
                raise ValueError(f"a message must have a `role`, but is {dict(message)!r}")
            _refuse_all_but_text(message.get("content"))
        if given["add_generation_prompt"] and messages[-1]["role"] == "assistant":
            raise ValueError(
                "the last message is the model's own, but it is asked for the next one; end with a user's"
            )
        try:
            # a template may look into what it gets, so objects with methods of their own stay out
            plain = json.loads(json.dumps({**given, "messages": list(map(dict, messages))}))
            prompt: str = self._template.render(**{**self._tokens, **plain})
        except Exception as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error
        return prompt


def _refuse_all_but_text(content: Any) -> None:
    """Raise ValueError if a part of a message is no text."""
    for part in content if isinstance(content, list | tuple) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in NOT_TEXT:
            raise ValueError(
                f"the parts of a message must be texts, but one is of the type {kind!r}, and chats are read "
                "as text alone; leave that part out"
            )


def _text(directory: Path, config: Mapping[str, Any]) -> str | None:
    """Return the folder's template; None: it has none."""
    path = directory / "chat_template.jinja"
    if path.exists():
        return regular_file(path, MAX_TEXT_BYTES).read_text("utf-8")
    found = config.get("chat_template")
    if found is None and (directory / "chat_template.json").exists():
        found = read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    path = directory / "special_tokens_map.json"
    fields = {**(read_json(path) if path.exists() else {}), **config}
    more = fields.get("extra_special_tokens")
    named = {name: fields.get(name) for name in TOKENS} | (more if isinstance(more, dict) else {})
    texts = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _sandbox() -> Any:
    """Return an environment for templates, with what transformers' templates use."""
    try:
        import jinja2
        from jinja2 import ext, nodes, sandbox
        from jinja2.utils import Namespace
    except ImportError as error:
        raise ImportError(
            f"chat templates need the package jinja2: `pip install jinja2` ({error})"
        ) from error
    found = tuple(int(part) for part in jinja2.__version__.split(".")[:3])
    if found < JINJA:
        raise ImportError(
            f"chat templates need jinja2 {'.'.join(map(str, JINJA))} or newer, but it is "
            f"{jinja2.__version__}: `pip install -U jinja2`"
        )

    class Generation(ext.Extension):
        """The block that marks what the model says, for training."""

        tags = {"generation"}  # noqa: RUF012, it is an attribute of objects in Jinja

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class OpenNames(Namespace):
        """Names that a template may set, but none of Python's own."""

        def __init__(*args: Any, **names: Any) -> None:
            Namespace.__init__(args[0])
            for name, value in dict(*args[1:], **names).items():
                args[0][name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.TemplateError(f"a template may not set {name!r}")
            super().__setitem__(name, value)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=refuse,
        strftime_now=lambda form: datetime.datetime.now().strftime(form),
        namespace=OpenNames,
        dict=lambda *args, **names: dict(*args, **names),
    )
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without HTML's escapes, which Jinja's own filter has."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
