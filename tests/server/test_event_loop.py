"""Work that may take long is done beside the event loop, which all requests share."""

from __future__ import annotations

import json
import threading

import pybeam
from pybeam.server.endpoints import chat, translate
from pybeam.server.models import ServedModel
from pybeam.text.tokenizer import Tokenizers
from support.server_app import run
from support.text_folders import save_chat

CHAT = [{"role": "system", "content": "b"}, {"role": "user", "content": "ac"}]


def beside_the_loop(monkeypatch, module, name: str, model: ServedModel | None, path, *bodies):
    """Whether another thread calls a function of an endpoint, at each of its calls for these bodies."""
    function, found = getattr(module, name), []

    def watched(*args):
        found.append(threading.current_thread() is not threading.main_thread())
        return function(*args)

    async def ask(http):
        for body in bodies:
            await http.post(path, json=body)

    monkeypatch.setattr(module, name, watched)
    run(ask, model=model)
    return found


def test_long_chats_are_rendered_beside_the_loop(tmp_path, monkeypatch):
    """Whatever makes them long; the first one reads the template."""
    save_chat(tmp_path)
    decoder = pybeam.Decoder(pybeam.load_model(tmp_path), pybeam.fixed_beam(2))
    model = ServedModel("tiny", str(tmp_path), decoder, Tokenizers(tmp_path))
    function = {"name": "a", "arguments": json.dumps("a" * 5000)}
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    short = {"messages": CHAT, "max_tokens": 1}
    long = [
        {"chat_template_kwargs": {"a": "a" * 5000}},
        {"messages": [*CHAT, {"role": "user", "content": "a", "name": "a" * 5000}]},
        {"messages": [CHAT[0], call, CHAT[1]]},
        {"messages": [CHAT[0], {"role": "user"}] * 300},
    ]
    bodies = [short, short, *[short | one for one in long]]
    path = "/v1/chat/completions"
    found = beside_the_loop(monkeypatch, chat, "encoded", model, path, *bodies)
    assert found == [True, False, *[True] * len(long)]


def test_a_text_whose_language_is_detected_is_read_beside_the_loop(monkeypatch):
    body = {"q": " ", "source": "auto", "target": "en"}
    assert beside_the_loop(monkeypatch, translate, "words_of", None, "/translate", body) == [True]
