"""Options of `generate` beside transformers' own: samples, stopping criteria, guidance, guesses, biases."""

import functools

import pytest
import torch

import pybeam
from pybeam.compat import huggingface
from pybeam.compat.generate.call import Call
from support.statistics import chi_square

transformers = pytest.importorskip("transformers")

from pybeam.compat.generate.guesses import guessing  # noqa: E402
from pybeam.models.huggingface import wrap  # noqa: E402
from support.huggingface_models import EOS, tiny_network  # noqa: E402

IDS = torch.tensor([[5, 9, 6, 12], [7, 7, 3, 4]])


@functools.cache
def network(kind: str, seed: int = 0):
    return tiny_network(kind, seed)


def generated(kind: str, **options):
    options = dict(input_ids=IDS, max_new_tokens=12, do_sample=False) | options
    return network(kind).generate(**options).tolist()


def assert_same(kind: str, **options) -> None:
    expected = generated(kind, **options)
    assert generated(kind, **options, custom_generate=pybeam.generate) == expected


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize(
    "options",
    [
        dict(sequence_bias=[[[5], 4.0], [[7, 3], -3.0], [[9, 4], 8.0]]),
        dict(encoder_repetition_penalty=3.0),
        dict(encoder_no_repeat_ngram_size=1),
        dict(
            encoder_no_repeat_ngram_size=2,
            encoder_repetition_penalty=0.7,
            sequence_bias=[[[12], -2.0]],
            repetition_penalty=1.3,
            bad_words_ids=[[8], [3, 4]],
        ),
    ],
    ids=lambda options: ",".join(options),
)
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_biases_and_sources(kind, num_beams, options):
    """Before 5.19 transformers applies `encoder_repetition_penalty` of beams to rows of other sources."""
    ids = torch.randint(3, 45, (6, 14), generator=torch.Generator().manual_seed(1))
    given = dict(input_ids=ids, num_beams=num_beams, min_new_tokens=4)
    assert generated(kind, **given) != generated(kind, **given, **options)
    assert_same(kind, **given, **options)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("scale", [0, 0.5, 1.5, 3.0])
@pytest.mark.parametrize("negative", [None, [[3, 4, 4], [9, 8, 7]]], ids=["last", "given"])
def test_guidance(scale, negative):
    options = dict(guidance_scale=scale)
    if negative is not None:
        options["negative_prompt_ids"] = torch.tensor(negative)
    assert_same("llama", **options)
    assert generated("llama", **options) != generated("llama")


def test_guidance_beside_padding_and_penalties():
    """Prompts and negative prompts may have padding on their left."""
    ids = torch.tensor([[1, 9, 6, 12], [7, 7, 3, 4]])
    negative = torch.tensor([[1, 4, 4], [9, 8, 7]])
    options = dict(
        input_ids=ids,
        attention_mask=(ids != 1).long(),
        guidance_scale=2.0,
        negative_prompt_ids=negative,
        negative_prompt_attention_mask=(negative != 1).long(),
        repetition_penalty=1.2,
    )
    assert_same("llama", **options)


@pytest.mark.parametrize(
    ("kind", "options", "error"),
    [
        ("bart", dict(guidance_scale=2.0), "`guidance_scale` needs a decoder"),
        ("llama", dict(guidance_scale=2.0, num_beams=2), "`guidance_scale` with `num_beams` = 2"),
        (
            "llama",
            dict(guidance_scale=2.0, negative_prompt_ids=IDS[:1]),
            "`negative_prompt_ids` must have a line for each of the 2 inputs, but has 1",
        ),
        (
            "llama",
            dict(num_beams=2, stopping_criteria=[lambda ids, scores: ids[:, -1] == 3]),
            "stopping criterion of beams `function`",
        ),
        ("llama", dict(do_sample=True, typical_p=0.5), "logits processor `TypicalLogitsWarper`"),
    ],
)
def test_what_is_refused(kind, options, error):
    with pytest.raises(ValueError, match=error):
        generated(kind, **options, custom_generate=pybeam.generate)


class AfterPair(transformers.StoppingCriteria):
    """Over where two tokens in a row have an even sum."""

    def __call__(self, input_ids, scores, **_):
        return (input_ids[:, -2:].sum(1) % 2 == 0) & (input_ids.shape[1] > 6)


CRITERIA = {
    "function": [lambda input_ids, scores: input_ids[:, -1] % 3 == 0],
    "class": transformers.StoppingCriteriaList([AfterPair()]),
    "several": [AfterPair(), lambda input_ids, scores: input_ids[:, -1] > 30],
    "hopeless": [lambda input_ids, scores: input_ids[:, -1] < 0],
}


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_stopping_criteria(kind, name):
    options = dict(stopping_criteria=CRITERIA[name], max_new_tokens=20, min_new_tokens=12)
    if kind == "bart":
        options["decoder_input_ids"] = torch.tensor([[2, 7], [2, 7]])
    assert_same(kind, **options)
    plain = generated(kind, max_new_tokens=20, min_new_tokens=12)
    assert (generated(kind, **options) == plain) == (name == "hopeless") or kind == "bart"


def test_a_search_ends_with_its_time():
    one = generated("llama", max_time=0.0, custom_generate=pybeam.generate)
    assert one == generated("llama", max_new_tokens=1)
    assert_same("llama", max_time=600.0)


def test_stop_strings():
    tokenizers = pytest.importorskip("tokenizers")
    # the criterion looks what a token is behind the word "abcdef"
    vocabulary = {f"w{i}": i for i in range(44)} | {"abcdef": 44}
    words = tokenizers.models.WordLevel(vocabulary, unk_token="w1")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), unk_token="w1"
    )
    seventh = generated("llama", min_new_tokens=12)[0][7]
    stop = transformers.StopStringCriteria(tokenizer, [f"w{seventh}"])
    assert_same("llama", min_new_tokens=12, stopping_criteria=[stop])


def test_a_streamer_is_told_no_more_than_what_stays():
    told = []

    class Streamer:
        def put(self, value):
            told.extend(value.flatten().tolist())

        def end(self):
            told.append("end")

    options = dict(input_ids=IDS[:1], min_new_tokens=12, stopping_criteria=CRITERIA["function"])
    [found] = generated("llama", **options, streamer=Streamer(), custom_generate=pybeam.generate)
    assert told == [*found, "end"]


CUTS = dict(temperature=0.8, top_k=12, top_p=0.95, min_p=0.02)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("options", [dict(top_k=0), CUTS], ids=["all tokens", "some tokens"])
@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_samples_have_the_distribution_of_transformers(kind, options):
    num, ids = 600, IDS[:1]
    torch.manual_seed(3)
    found = network(kind).generate(
        ids,
        do_sample=True,
        num_return_sequences=num,
        max_new_tokens=1,
        custom_generate=pybeam.generate,
        **options,
    )
    given = dict(decoder_input_ids=torch.tensor([[2]])) if kind == "bart" else {}
    logits = network(kind)(ids, **given).logits[:, -1]
    for name, warper in (
        ("temperature", transformers.TemperatureLogitsWarper),
        ("top_k", transformers.TopKLogitsWarper),
        ("top_p", transformers.TopPLogitsWarper),
        ("min_p", transformers.MinPLogitsWarper),
    ):
        if options.get(name):
            logits = warper(options[name])(ids, logits)
    expected = dict(enumerate((num * logits.softmax(1)[0]).tolist()))
    counts = dict(enumerate(found[:, -1].bincount(minlength=45).tolist()))
    assert len(found) == num
    assert not [token for token, count in counts.items() if count and not expected[token]]
    assert chi_square(counts, expected) < 3


def test_samples_of_a_batch_follow_the_seed_of_torch():
    sample = functools.partial(
        generated,
        "llama",
        do_sample=True,
        num_return_sequences=4,
        min_new_tokens=6,
        max_new_tokens=6,
        custom_generate=pybeam.generate,
    )
    torch.manual_seed(1)
    found, other = sample(), sample()
    torch.manual_seed(1)
    assert sample() == found != other
    assert [line[:4] for line in found] == [*[IDS[0].tolist()] * 4, *[IDS[1].tolist()] * 4]
    assert len({tuple(line[4:]) for line in found}) == 8


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("by_place", [False, True])
def test_a_config_of_the_caller_asks_for_samples_whatever_the_checkpoint_does(by_place):
    model = network("llama")
    own = transformers.GenerationConfig(do_sample=True, top_k=12, max_new_tokens=6, eos_token_id=1)
    options = dict(generation_config=own, custom_generate=pybeam.generate)
    args = [options.pop("generation_config")] if by_place else []
    usual = model.generation_config
    model.generation_config = transformers.GenerationConfig(
        **usual.to_dict() | dict(do_sample=True)
    )
    try:
        found = {tuple(model.generate(IDS[:1], *args, **options)[0].tolist()) for _ in range(6)}
    finally:
        model.generation_config = usual
    assert len(found) > 2


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", ["bart", "llama"])
@pytest.mark.parametrize("seed", [None, 0, 1], ids=["lookup", "itself", "another"])
def test_guesses_change_no_output(kind, seed):
    options = dict(prompt_lookup_num_tokens=4)
    if seed is not None:
        options = dict(assistant_model=network(kind, seed))
    expected = generated(kind, max_new_tokens=20)
    found = generated(kind, max_new_tokens=20, **options, custom_generate=pybeam.generate)
    assert found == expected


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_guesses_are_outputs_of_the_assistant(kind):
    model = wrap(network(kind))
    config = transformers.GenerationConfig(num_assistant_tokens=5)
    requests = [pybeam.Request(line) for line in IDS]
    algorithm = huggingface.beam_search(1, max_new_tokens=12)
    found, numbered = guessing(config, algorithm, model, requests, network(kind, 1), list(IDS))
    assert found.draft.max_window == 6
    expected = network(kind, 1).generate(IDS, max_new_tokens=12, do_sample=False, eos_token_id=EOS)
    start = 1 if kind == "bart" else IDS.shape[1]
    for request, line in zip(numbered, expected.tolist(), strict=True):
        guesses = found.draft.initialiser.guesses(request)
        assert guesses == line[start : start + len(guesses)] and guesses
    lookup = transformers.GenerationConfig(prompt_lookup_num_tokens=3, max_matching_ngram_size=9)
    found, _ = guessing(lookup, algorithm, model, requests, None, [])
    assert (found.draft.max_window, found.draft.initialiser.ngram) == (4, 4)


def test_a_call_outside_of_generate_has_no_arguments():
    assert Call() == (None, None, None, None, {}, None)
