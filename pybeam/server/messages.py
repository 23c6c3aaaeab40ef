"""The messages of a chat as chat templates read them."""

from __future__ import annotations

import json
from typing import Any

from pybeam.server.errors import APIError
from pybeam.server.models import ServedModel
from pybeam.server.openai_bodies import ChatBody, Message
from pybeam.server.schemas import writable
from pybeam.server.tool_calls import BEGIN
from pybeam.text.chat import ChatTemplate


def encoded(model: ServedModel, body: ChatBody) -> list[int]:
    """Return the ids of the prompt that asks for the next message.

    Raises:
        APIError: a message holds more than text, or there are tools that the template does not know.
        ImportError, ValueError: the model has no chat template, or it refuses the messages.
    """
    template, tokenizer = model.chat_template, model.plain_tokenizer
    variables = dict(body.chat_template_kwargs or {})
    if body.tools and body.tool_choice != "none":
        if not (template.names("tools") and template.names(BEGIN)):
            raise APIError(
                400,
                f"`tools` must be left out, because the chat template of {model.name!r} knows none that are "
                f"called as {BEGIN}",
                "tools",
            )
        variables["tools"] = [one.model_dump(exclude_unset=True) for one in body.tools]
    messages = [_plain(one, template) for one in body.messages]
    # clients name the call alone, and some templates its function
    named = {
        call["id"]: call["function"]["name"]
        for one in messages
        for call in one.get("tool_calls", [])
        if call["id"] is not None
    }
    for one in messages:
        if one.get("tool_call_id") in named:
            one.setdefault("name", named[one["tool_call_id"]])
    assert tokenizer is not None, "the template needed it"
    return tokenizer.encode_target(template.render(messages, **variables))


def _plain(message: Message, template: ChatTemplate) -> dict[str, Any]:
    """Return a message as templates read it: with one text, and arguments that are no text."""
    role = message.role
    if role == "developer" and not template.names(role):
        role = "system"
    found: dict[str, Any] = {"role": role, "content": text_of(message)}
    for field in ("name", "tool_call_id"):
        if (value := getattr(message, field)) is not None:
            found[field] = value
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": one.id,
                "type": one.type,
                "function": {
                    "name": one.function.name,
                    "arguments": _arguments(one.function.arguments),
                },
            }
            for one in message.tool_calls
        ]
    return found


def text_of(message: Message) -> str:
    """Return the text of a message, its parts line by line. Raises APIError if one is no text."""
    if not isinstance(message.content, list):
        return message.content or ""
    for part in message.content:
        if part.type not in ("text", "refusal") or part.text is None:
            problem = "`messages` must hold text alone, but a part is of another type"
            raise APIError(400, problem, "messages")
    return "\n".join(part.text or "" for part in message.content)


def _arguments(written: str) -> Any:
    try:
        return writable(json.loads(written)) if written else {}
    except (ValueError, RecursionError):
        problem = (
            "the arguments of `tool_calls` must be JSON in Unicode that is not nested too deep"
        )
        raise APIError(400, problem, "messages") from None
