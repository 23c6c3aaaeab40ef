"""`Generator` goes on from texts and chats as transformers does."""

from __future__ import annotations

import asyncio

import pytest
import torch
import transformers

import pybeam
from support.text_folders import CHAT_EOS, CHAT_TOKENS, save_chat

PROMPTS = ["abc", "the cat", "q"]
CHAT = [{"role": "system", "content": "be good"}, {"role": "user", "content": " abc "}]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat")
    save_chat(path, do_sample=True, temperature=0.6, max_new_tokens=10)
    return path


@pytest.fixture(scope="module")
def generator(directory):
    return pybeam.load(directory, device="cpu")


@pytest.fixture(scope="module")
def original(directory):
    network = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    return network, transformers.AutoTokenizer.from_pretrained(directory)


def generated(original, ids, **options):
    """The continuation that transformers gives, with the space before it."""
    network, tokenizer = original
    given = torch.tensor([ids])
    found = network.generate(given, do_sample=False, max_new_tokens=10, **options)[0].tolist()
    # one of which is a letter
    found = found[:-1] if found[-1] in CHAT_EOS else found
    text = [tokenizer.decode(part, skip_special_tokens=True) for part in (found, ids)]
    return text[0].removeprefix(text[1])


def test_continuations_are_those_of_transformers(generator, original):
    expected = [generated(original, original[1](prompt).input_ids) for prompt in PROMPTS]
    assert generator.generate(PROMPTS) == expected and len(set(expected)) == 3
    assert generator.generate(PROMPTS[0]) == expected[0]


def test_a_beam_gives_the_same_as_four_objects(generator):
    search = pybeam.fixed_beam(4, n_best=3, max_length=8)
    tokenizer = pybeam.load_tokenizer(generator.path)
    decoder = pybeam.Decoder(generator.model, search)
    results = decoder.decode([tokenizer.encode(prompt) for prompt in PROMPTS])
    found = generator.generate(PROMPTS, search=search)
    assert [[one.hypothesis for one in outputs] for outputs in found] == [
        result.hypotheses for result in results
    ]


def test_messages_go_through_the_template(generator, original):
    _, tokenizer = original
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    rendered = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert generator.chat_template.render(CHAT) == rendered
    assert generator.tokenizer.encode_target(rendered) == ids
    assert tokenizer.convert_tokens_to_ids(CHAT_TOKENS[0]) in ids
    answer = generator.generate(CHAT)
    assert answer == generated(original, ids) and answer
    assert generator.generate([CHAT, PROMPTS[0], CHAT]) == [
        answer,
        generator.generate(PROMPTS[0]),
        answer,
    ]


def test_the_space_behind_a_prompt_is_part_of_its_continuation(generator):
    tokenizer = generator.tokenizer
    call = generator._call()
    request = call.request("abc")
    tokens = tokenizer.encode_target(" de")
    assert call.text(tokens, request.id) == " de"


def test_prompts_and_outputs_share_the_limit_of_the_folder(tmp_path):
    save_chat(tmp_path, max_length=9)
    generator = pybeam.load(tmp_path, device="cpu")
    for prompt in ("abcd", "ab", "abcdefghijklmno"):
        num = len(generator.tokenizer.encode(prompt))
        hypothesis = generator.generate(prompt).hypothesis
        assert len(hypothesis.tokens) + hypothesis.ended <= max(1, 9 - num)


def test_streams_and_asynchronous_callers_get_the_same(generator):
    whole = generator.generate([*PROMPTS, CHAT])
    assert list(generator.stream([*PROMPTS, CHAT])) == whole
    assert "".join(generator.stream(CHAT)) == whole[-1]

    async def main():
        pieces = [piece async for piece in generator.astream(PROMPTS[0])]
        return pieces, await generator.agenerate([*PROMPTS, CHAT])

    pieces, again = asyncio.run(main())
    assert "".join(pieces) == whole[0] and again == whole


@pytest.mark.parametrize("prompts", [7, None, ["abc", 7], {"role": "user", "content": "abc"}, [[]]])
def test_what_is_no_prompt_is_refused_at_the_door(generator, prompts):
    with pytest.raises(TypeError, match="`prompts` must be a text, a list of messages"):
        generator.generate(prompts)


def test_an_empty_list_has_no_answers(generator):
    assert generator.generate([]) == []


def test_languages_are_refused(directory):
    with pytest.raises(ValueError, match="`target` is for models that translate"):
        pybeam.load(directory, target="eng_Latn")
