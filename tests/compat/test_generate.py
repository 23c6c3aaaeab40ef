"""`custom_generate=pybeam.generate` with what published checkpoints ship, and with streamers."""

import functools
import itertools
import logging
import queue
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import pybeam
from pybeam.compat.generate import options as generate_options

transformers = pytest.importorskip("transformers")

from support.huggingface_models import EOS, tiny_network  # noqa: E402
from support.published_classes import networks  # noqa: E402

SENTENCES = torch.tensor([[17, 300, 41, 905, 2011, 6], [88, 17, 5, 1, 1, 1]])
# what generation_config.json of a checkpoint says beside the ids of its class
SHIPPED = {
    "opus-mt": (
        "MarianMTModel",
        dict(num_beams=4, bad_words_ids=[[58100]], forced_eos_token_id=0, renormalize_logits=True),
    ),
    "bart-large-cnn": (
        "BartForConditionalGeneration",
        dict(
            num_beams=4,
            forced_bos_token_id=0,
            forced_eos_token_id=2,
            length_penalty=2.0,
            min_length=5,
            no_repeat_ngram_size=3,
            early_stopping=True,
        ),
    ),
    "blenderbot": (
        "BlenderbotForConditionalGeneration",
        dict(
            num_beams=10,
            min_length=4,
            length_penalty=0.65,
            no_repeat_ngram_size=3,
            encoder_no_repeat_ngram_size=1,
            forced_eos_token_id=2,
            bad_words_ids=[[7], [9, 4]],
        ),
    ),
}


def generated(network, **options):
    options = dict(max_new_tokens=8, do_sample=False) | options
    given = dict(input_ids=SENTENCES, attention_mask=(SENTENCES != 1).long()) | options
    options = dict(return_dict_in_generate=True, output_scores=True)
    return network.generate(**given | options)


def assert_same(network, **options):
    expected = generated(network, **options)
    found = generated(network, **options, custom_generate=pybeam.generate)
    assert found.sequences.tolist() == expected.sequences.tolist()
    if options.get("num_beams", 1) > 1:
        close = functools.partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
        close(found.sequences_scores, expected.sequences_scores)
    return found.sequences


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", SHIPPED)
def test_what_published_checkpoints_ship(name):
    kind, options = SHIPPED[name]
    network = next(networks(kind))
    assert_same(network, **options)
    assert_same(network, **options | dict(num_beams=1, early_stopping=False))


@pytest.fixture(scope="module")
def bart():
    return tiny_network("bart")


@pytest.fixture(scope="module")
def llama():
    return tiny_network("llama")


IDS = torch.tensor([[5, 9, 6, 12], [7, 7, 3, 4]])


@pytest.mark.thinned(most=5)
@pytest.mark.parametrize(
    "options",
    [
        dict(forced_bos_token_id=0),
        dict(forced_eos_token_id=0, eos_token_id=0),
        dict(eos_token_id=[0, 2], forced_eos_token_id=[2, 0]),
        dict(suppress_tokens=[0], begin_suppress_tokens=[0]),
        dict(suppress_tokens=[], begin_suppress_tokens=[]),
        dict(decoder_start_token_id=0, pad_token_id=0, bad_words_ids=[[0]]),
        dict(length_penalty=0, no_repeat_ngram_size=0, min_length=0, repetition_penalty=1),
    ],
    ids=lambda options: ",".join(options),
)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_zero_is_a_token_and_an_empty_list_is_none(bart, options, num_beams):
    options = options | dict(input_ids=IDS, num_beams=num_beams, max_new_tokens=6, do_sample=False)
    if num_beams == 1:
        options.pop("length_penalty", None)
    expected = bart.generate(**options)
    assert bart.generate(**options, custom_generate=pybeam.generate).tolist() == expected.tolist()


def test_a_checkpoint_that_samples_is_searched_and_a_caller_who_samples_a_beam_is_refused(
    llama, caplog
):
    options = dict(input_ids=IDS, max_new_tokens=6, num_beams=3)
    expected = llama.generate(**options, do_sample=False)
    usual = llama.generation_config
    shipped = dict(do_sample=True, temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, typical_p=0.9)
    llama.generation_config = transformers.GenerationConfig(**usual.to_dict() | shipped)
    try:
        with caplog.at_level(logging.INFO, logger="pybeam"):
            generate_options._say_that_it_searches.cache_clear()
            for _ in range(2):
                found = llama.generate(**options, custom_generate=pybeam.generate)
                assert found.tolist() == expected.tolist()
        assert caplog.text.count("`do_sample` of its generation_config is left out") == 1
        with pytest.raises(ValueError, match="`do_sample` with `num_beams` = 3"):
            llama.generate(**options, do_sample=True, custom_generate=pybeam.generate)
    finally:
        llama.generation_config = usual
    with pytest.raises(ValueError, match="`do_sample` with `num_beams` = 3"):
        llama.generate(**options, do_sample=True, custom_generate=pybeam.generate)


class Told:
    """A streamer that keeps what it is told."""

    def __init__(self):
        self.tokens, self.ends = [], 0

    def put(self, value):
        assert not self.ends
        self.tokens.append(value.flatten().tolist())

    def end(self):
        self.ends += 1


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_streamer_is_told_what_it_is_told_by_generate(kind, request):
    network = request.getfixturevalue(kind)
    options = dict(input_ids=IDS[:1], max_new_tokens=9, do_sample=False)
    if kind == "bart":
        options["decoder_input_ids"] = torch.tensor([[2, 7]])
    theirs, ours = Told(), Told()
    network.generate(**options, streamer=theirs)
    network.generate(**options, streamer=ours, custom_generate=pybeam.generate)
    assert (ours.tokens, ours.ends) == (theirs.tokens, 1)


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_streamer_of_beams_is_told_early_and_nothing_is_taken_back(kind, request):
    network, told = request.getfixturevalue(kind), Told()
    search = functools.partial(pybeam.generate, streamer=told)
    options = dict(input_ids=IDS[:1], max_new_tokens=20, min_new_tokens=15, num_beams=4)
    found = network.generate(**options, num_return_sequences=2, custom_generate=search)
    tokens = [token for line in told.tokens for token in line]
    best = found[0].tolist()
    assert tokens == best[: len(tokens)] and set(best[len(tokens) :]) <= {1}
    assert told.ends == 1
    assert told.tokens[0] == ([2] if kind == "bart" else IDS[0].tolist())


class Words:
    """What `TextIteratorStreamer` needs of a tokenizer."""

    def decode(self, ids, **_):
        return "".join(f"{token} " for token in ids)


def test_text_arrives_in_another_thread(llama):
    streamer = transformers.TextIteratorStreamer(Words(), skip_prompt=True, timeout=60)
    options = dict(input_ids=IDS[:1], max_new_tokens=6, do_sample=False)
    expected = llama.generate(**options)[0, 4:].tolist()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(llama.generate, **options, streamer=streamer, custom_generate=pybeam.generate)
        assert "".join(streamer).split() == [str(token) for token in expected]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(input_ids=IDS), "`streamer` follows one input, but there are 2"),
        (dict(input_ids=IDS[:1], remove_invalid_values=True), "`remove_invalid_values` = True"),
        (dict(input_ids=torch.tensor([[99]])), "ids of `source` must be 0 to 44"),
    ],
)
def test_a_streamer_ends_whatever_happens(llama, options, error):
    streamer = transformers.TextIteratorStreamer(Words(), timeout=1)
    search = functools.partial(pybeam.generate, streamer=streamer)
    if len(options["input_ids"]) > 1:
        streamer.put = lambda _: None
    with pytest.raises((ValueError, pybeam.DecodeError), match=error):
        llama.generate(**options, max_new_tokens=4, custom_generate=search)
    try:
        list(streamer)
    except queue.Empty:
        pytest.fail("its reader waits for ever")


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("LlavaForConditionalGeneration", 0),
        # its positions have an axis for each of time, height and width, for which small heads have no room
        pytest.param("Qwen2VLForConditionalGeneration", 1, marks=pytest.mark.slow),
    ],
)
def test_multimodal_models_are_searched_with_text_and_refused_with_images(kind, size):
    network = next(itertools.islice(networks(kind), size, None))
    ids = torch.tensor([[17, 300, 41, 905], [88, 17, 5, 6]])
    options = dict(input_ids=ids, max_new_tokens=5, do_sample=False, eos_token_id=EOS)
    for num_beams in (1, 3):
        expected = network.generate(**options, num_beams=num_beams)
        found = network.generate(**options, num_beams=num_beams, custom_generate=pybeam.generate)
        assert found.tolist() == expected.tolist()
    states = dict(image=transformers.modeling_outputs.BaseModelOutput(torch.zeros(1, 1, 8)))
    with pytest.raises(ValueError, match=r"with text alone, but the input has \['image'\]"):
        pybeam.generate(
            network, ids, generation_config=network.generation_config, mm_encoder_outputs=states
        )


def test_padded_sounds_lose_what_their_encoder_makes_of_padding():
    """A mask of features is no mask of states, of which there are fewer."""
    network = next(networks("Speech2TextForConditionalGeneration"))
    features = torch.rand(2, 48, 80, generator=torch.Generator().manual_seed(2))
    mask = torch.ones(2, 48).long()
    mask[1, 20:] = 0
    options = dict(input_features=features, attention_mask=mask, max_new_tokens=6, num_beams=3)
    expected = network.generate(**options)
    found = network.generate(**options, custom_generate=pybeam.generate)
    assert found.tolist() == expected.tolist()
