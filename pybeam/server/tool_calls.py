"""Calls of tools that a model writes as `<tool_call>{"name": …, "arguments": …}</tool_call>`.

Qwen's and Hermes' chat templates teach this form. Nothing holds a model to it, so what is none stays text.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

BEGIN = "<tool_call>"
CALL = re.compile(rf"{BEGIN}\s*(\{{.*?\}})\s*</tool_call>\s*", re.DOTALL)


def split_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a message before its calls, and the calls as OpenAI's answers have them.

    If one of them cannot be read, or text follows them, all is text.
    """
    begin = text.find(BEGIN)
    if begin < 0:
        return text, []
    calls, end = [], begin
    while match := CALL.match(text, end):
        function = _function(match[1])
        if function is None:
            return text, []
        calls.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", **function})
        end = match.end()
    return (text[:begin], calls) if end == len(text) else (text, [])


def _function(written: str) -> dict[str, Any] | None:
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        return None
    name = found.get("name")
    arguments = found.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return {"function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}
