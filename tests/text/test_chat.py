"""Chat templates are rendered as transformers renders them, in a sandbox."""

from __future__ import annotations

import json

import pytest
import transformers

from pybeam.text.chat import NOT_TEXT, ChatTemplate
from pybeam.text.tokenizer import load_tokenizer
from support.paths import MODEL
from support.text_folders import change, save_chat

CHAT = [
    {"role": "user", "content": "a <b> & 'c'"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "\u00e9"},
]
TEMPLATES = {
    "loops": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}|{% endfor %}",
    "json": "{{ messages | tojson }} {{ messages | tojson(indent=2) }}",
    "names": "{% set ns = namespace(n=0, found=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }} {{ dict(a=1) }}",
    "training": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "trimmed": "  {% if tools is none %}\n  x\n  {% endif %}\n{{ bos_token }}{{ eos_token }}{{ missing }}",
    "methods": "{{ messages[0].content.upper().split('B') }} {{ messages[0]['role'] }}",
    "variables": "{{ enable_thinking }} {{ tools }}",
    # what the templates of Llama 3, Mistral, Hermes and Granite are made of
    "macros": "{% macro kind(spec) %}{% if spec.type == 'array' %}{{ 'list[' + kind(spec.items) + ']' }}"
    "{% elif spec.type is iterable and spec.type is not string %}"
    "{% for t in spec.type %}{{ kind({'type': t}) }}"
    "{% if not loop.last %},{% endif %}{% endfor %}{% else %}{{ spec.type }}{% endif %}{% endmacro %}"
    "{% for name, spec in {'a': {'type': ['x', 'y']}, 'b': {'type': 'z'}} | items %}"
    "{{ name }}{{ kind(spec) }}{% endfor %}",
    "filters": "{% set own = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{ own[-1] == messages[-1] }}"
    "{{ own | map(attribute='content') | map('trim') | join('\n') }}{{ messages[1:] | length }}"
    "{{ {'output': messages[0].content} | tojson }}{{ [1, none, true, {'a': 'b'}] | string }}",
    "dates": "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ date_string }}{{ custom_tools is defined }}{{ messages[0].content is string }}",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat")
    save_chat(path)
    return path


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_same_text_as_transformers(directory, name):
    (directory / "chat_template.jinja").write_text(TEMPLATES[name])
    options = {"enable_thinking": False} if name == "variables" else {}
    original = transformers.AutoTokenizer.from_pretrained(directory)
    expected = original.apply_chat_template(
        CHAT, tokenize=False, add_generation_prompt=True, **options
    )
    template = ChatTemplate.load(directory, load_tokenizer(directory))
    assert template.render(CHAT, **options) == expected


def test_a_published_template(directory):
    """SmolVLM's, which transformers ships, reads the parts of messages."""
    module = pytest.importorskip("transformers.models.smolvlm.processing_smolvlm")
    (directory / "chat_template.jinja").write_text(module.DEFAULT_CHAT_TEMPLATE)
    chat = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in CHAT]
    original = transformers.AutoTokenizer.from_pretrained(directory)
    expected = original.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    template = ChatTemplate.load(directory, load_tokenizer(directory))
    assert template.render(chat) == expected and "User: " in expected


def test_where_templates_stand(tmp_path):
    save_chat(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "listed"}]
    change(tmp_path / "tokenizer_config.json", chat_template=named)
    assert ChatTemplate.load(tmp_path, tokenizer).render(CHAT) == "listed"
    change(tmp_path / "tokenizer_config.json", chat_template=None)
    with pytest.raises(ValueError, match="has no chat template"):
        ChatTemplate.load(tmp_path, tokenizer)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of a processor"}))
    assert ChatTemplate.load(tmp_path, tokenizer).render(CHAT) == "of a processor"


def test_a_template_that_is_odd(tmp_path):
    save_chat(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    change(tmp_path / "tokenizer_config.json", chat_template=[{"name": [], "template": "x"}])
    with pytest.raises(ValueError, match=f"the files of {tmp_path} do not fit together"):
        ChatTemplate.load(tmp_path, tokenizer)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=f"the files of {tmp_path} are not sound: .*utf-8"):
        ChatTemplate.load(tmp_path, tokenizer)


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns }}",
        "{{ namespace(_x=1) }}",
        "{{ messages[7].content.x }}",
        "{{ 1 // 0 }}",
        "{{ '{:d}'.format(messages[0].role) }}",
        "{% for i in range(20) %}{{ messages[0].role.center(10 ** 15) }}{% endfor %}",
    ],
)
def test_what_a_template_may_not(text):
    template = ChatTemplate(text, {})
    with pytest.raises(ValueError, match="the chat template refuses these messages"):
        template.render(CHAT)


def test_a_template_sees_plain_data_alone():
    class Loud(str):
        def shout(self):
            return "heard"

    text = "{{ messages[0].content.shout is defined }}"
    assert ChatTemplate(text, {}).render([{"role": "user", "content": Loud("x")}]) == "False"
    with pytest.raises(ValueError, match="not JSON serializable"):
        ChatTemplate(text, {}).render([{"role": "user", "content": object()}])


def test_messages_that_make_no_sense():
    template = ChatTemplate("{{ messages }}", {})
    with pytest.raises(ValueError, match="must have a `role`"):
        template.render([{"content": "x"}])
    with pytest.raises(ValueError, match="the last message is the model's own"):
        template.render(CHAT[:2])
    for text in ("{% if %}", f"{{{{ {'(' * 5000} }}}}", "{{ 'a' * 10 ** 15 }}"):
        with pytest.raises(ValueError, match=r"chat template (is none that Jinja|refuses these)"):
            ChatTemplate(text, {}).render(CHAT)


@pytest.mark.parametrize("kind", NOT_TEXT)
def test_images_and_sounds_are_refused(kind):
    template = ChatTemplate("{% for p in messages[0].content %}{{ p.text }}{% endfor %}", {})
    text, other = {"type": "text", "text": "x"}, {"type": kind, kind: {"url": "data:,"}}
    assert template.render([{"role": "user", "content": [text]}]) == "x"
    with pytest.raises(ValueError, match=f"must be texts, but one is of the type '{kind}'"):
        template.render([{"role": "user", "content": [text, other]}])


def test_special_tokens_must_be_known_in_texts(tmp_path):
    """A plain SentencePiece model would split them into letters."""
    save_chat(tmp_path)
    with pytest.raises(ValueError, match=r"does not know '<s>' in a text, so chats need"):
        ChatTemplate.load(tmp_path, load_tokenizer(MODEL))
