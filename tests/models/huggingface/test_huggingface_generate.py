"""`custom_generate=pybeam.generate` against `generate` itself, on tiny random models of every kind."""

import random

import pytest
import torch

import pybeam

transformers = pytest.importorskip("transformers")

from support.huggingface_models import EOS, KINDS, VOCAB, tiny_network  # noqa: E402

PAD = 1
BEAMS = dict(num_beams=4, num_return_sequences=2, max_new_tokens=12)
RARE = [
    dict(num_beams=3, max_new_tokens=9, length_penalty=0.0, early_stopping=True),
    dict(num_beams=5, max_new_tokens=16, min_new_tokens=4, length_penalty=2.0),
    dict(num_beams=2, max_new_tokens=7, early_stopping="never", num_return_sequences=2),
    dict(num_beams=16, max_new_tokens=10, num_return_sequences=5),
]
PROCESSED = [
    dict(repetition_penalty=1.4, suppress_tokens=[5, 9], forced_eos_token_id=EOS),
    dict(no_repeat_ngram_size=2, begin_suppress_tokens=[7, EOS], forced_bos_token_id=11),
    dict(bad_words_ids=[[6], [4, 8]], renormalize_logits=True, min_new_tokens=3),
]


@pytest.fixture(scope="module", params=KINDS)
def network(request):
    with torch.inference_mode():
        return request.param, tiny_network(request.param)


def inputs(kind: str, network) -> dict:
    """Ragged sources; prompts are padded on the left."""
    rng = random.Random(3)
    if kind == "whisper":
        generator = torch.Generator().manual_seed(1)
        return dict(input_features=torch.randn(3, 6, 24, generator=generator))
    lines = [[rng.randrange(3, VOCAB) for _ in range(n)] for n in (9, 1, 5)]
    is_prompt = not network.config.is_encoder_decoder
    longest = max(map(len, lines))
    gaps = [[PAD] * (longest - len(line)) for line in lines]
    padded = [g + x if is_prompt else x + g for g, x in zip(gaps, lines, strict=True)]
    ids = torch.tensor(padded)
    return dict(input_ids=ids, attention_mask=(ids != PAD).long())


def assert_same(kind, network, **options):
    given = inputs(kind, network)
    options = dict(options, do_sample=False, return_dict_in_generate=True, output_scores=True)
    generate = transformers.GenerationMixin.generate  # Whisper's own cuts audio to pieces
    expected = generate(network, **given, **options)
    found = generate(network, **given, **options, custom_generate=pybeam.generate)
    assert type(found) is type(expected)
    assert found.sequences.tolist() == expected.sequences.tolist()
    if options.get("num_beams", 1) > 1:
        torch.testing.assert_close(
            found.sequences_scores, expected.sequences_scores, atol=1e-4, rtol=1e-4
        )
    return found.sequences


@pytest.mark.thinned(most=2)
@pytest.mark.filterwarnings("ignore:(Mamba|Bloom).*keeps a dense cache")
def test_same_as_generate(network):
    kind, model = network
    assert_same(kind, model, max_new_tokens=10)
    found = assert_same(kind, model, **BEAMS)
    assert (found == EOS).any(), "no hypothesis has ended"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(Mamba|Bloom).*keeps a dense cache")
@pytest.mark.parametrize("options", RARE)
def test_same_with_any_options(network, options):
    assert_same(*network, **options)


@pytest.fixture(scope="module")
def bart():
    return tiny_network("bart")


@pytest.fixture(scope="module")
def llama():
    return tiny_network("llama")


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("options", PROCESSED)
def test_same_with_processors(bart, options):
    assert_same("bart", bart, num_beams=4, max_new_tokens=10, **options)
    assert_same("bart", bart, max_new_tokens=10, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "llama"])
def test_several_ends(name, request):
    """Every EOS ends a hypothesis and is kept as its last token."""
    network = request.getfixturevalue(name)
    usual = dict(num_beams=5, num_return_sequences=5, max_new_tokens=14)
    said = network.generate(**inputs(name, network), **usual).flatten()
    tokens, counts = said[said != PAD].unique(return_counts=True)
    ends = [EOS, *(token for token in tokens[counts.argsort()].tolist() if token != EOS)][:4]
    options = [
        dict(num_beams=5, num_return_sequences=5),
        dict(num_beams=4, num_return_sequences=4, early_stopping=True, min_new_tokens=3),
        dict(num_beams=3, length_penalty=2.0, exponential_decay_length_penalty=(2, 1.3)),
        dict(num_beams=3, early_stopping="never"),
        dict(num_beams=3, bad_words_ids=[[ends[1]], [5]], suppress_tokens=[EOS]),
        {},
    ]
    last = set()
    for chosen in options:
        chosen = dict(chosen, max_new_tokens=14, eos_token_id=ends)
        found = assert_same(name, network, **chosen)
        last |= {line[-1] for line in (found * (found != PAD)).tolist()}
    assert len(last & set(ends)) > 1, "only one of them has ever ended anything"


def test_forced_tokens_behind_the_start_token_are_kept(bart):
    """No length counts the tokens behind the start token in `decoder_input_ids`."""
    given = inputs("bart", bart)
    given["decoder_input_ids"] = torch.tensor([[2, 7, 9], [2, 8, 8], [2, 7, 10]])
    options = dict(num_beams=3, max_new_tokens=6, length_penalty=0.7, min_length=6)
    expected = bart.generate(**given, **options)
    found = bart.generate(**given, **options, custom_generate=pybeam.generate)
    assert found.tolist() == expected.tolist()


@pytest.mark.slow
def test_relative_positions_far_back_and_wide():
    """Further than distances are known at first, and with more rows than a word of a mask has bits."""
    network = tiny_network("t5")
    assert_same("t5", network, num_beams=2, max_new_tokens=90, min_new_tokens=80)
    assert_same("t5", network, num_beams=70, max_new_tokens=4, num_return_sequences=9)


def test_a_model_is_left_as_it_was(bart):
    """Its own attention, its own cache, and the same results from it."""
    given = inputs("bart", bart)
    given |= dict(num_beams=2, max_new_tokens=6)
    before = bart.config._attn_implementation, bart.generate(**given).tolist()
    bart.generate(**given, custom_generate=pybeam.generate)
    after = bart.config._attn_implementation, bart.generate(**given).tolist()
    assert after == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_beams=2, do_sample=True), "`do_sample` with `num_beams` = 2"),
        (dict(num_beams=2, guidance_scale=2.0), "`guidance_scale`"),
        (dict(num_beams=2, output_logits=True, return_dict_in_generate=True), "`output_logits`"),
        (dict(num_beams=2, stop_strings=["a"], tokenizer=object()), "`stop_strings`|tokenizer"),
        (dict(num_beams=2, max_time=9.0), "criterion of beams `MaxTimeCriteria`"),
        (dict(num_beams=2, eos_token_id=[*range(9)]), "`eos_id` must be one token id or up to 8"),
        (dict(num_beams=2, token_type_ids=torch.zeros(3, 9)), "token_type_ids"),
        (
            dict(num_beams=2, prefix_allowed_tokens_fn=lambda i, ids: [1, 2]),
            "processor `PrefixConstrainedLogitsProcessor`",
        ),
        (
            dict(num_beams=2, logits_processor=[transformers.NoRepeatNGramLogitsProcessor(2)]),
            "processor `NoRepeatNGramLogitsProcessor`",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(bart, options, message):
    options = dict(options, max_new_tokens=6, custom_generate=pybeam.generate)
    with pytest.raises(ValueError, match=message):
        bart.generate(**inputs("bart", bart), **options)


def test_positions_of_ones_own_are_refused(llama):
    given = inputs("llama", llama)
    given["position_ids"] = torch.arange(9).expand(3, -1) + 1
    with pytest.raises(ValueError, match="`position_ids` must count"):
        llama.generate(**given, max_new_tokens=4, custom_generate=pybeam.generate)


# tokens that a model likes so much that it repeats them, and prompts full of them
LOOKS_AT_PROMPTS = [
    dict(repetition_penalty=2.0),
    dict(no_repeat_ngram_size=1),
    dict(no_repeat_ngram_size=2, repetition_penalty=0.8),
    dict(no_repeat_ngram_size=3, bad_words_ids=[[6], [9, 8], [7, 9, 8], [EOS]]),
    dict(bad_words_ids=[[7, 6], [8, 8, 9]], forced_bos_token_id=11, repetition_penalty=2.5),
]


def repetitive(lengths) -> dict:
    """Prompts of few words each, padded on the left."""
    rng = random.Random(5)
    lines = [[rng.choice([7, 8, 9]) for _ in range(n)] for n in lengths]
    longest = max(lengths)
    ids = torch.tensor([[PAD] * (longest - len(line)) + line for line in lines])
    mask = torch.tensor([[0] * (longest - n) + [1] * n for n in lengths])
    return dict(input_ids=ids, attention_mask=mask)


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_processors_look_at_prompts(kind):
    model = tiny_network(kind)
    with torch.no_grad():
        model.get_output_embeddings().weight[7:10] *= 1.5  # it repeats itself
    plain = dict(num_beams=3, max_new_tokens=9, min_new_tokens=5, num_return_sequences=2)
    plain |= dict(do_sample=False, return_dict_in_generate=True, output_scores=True)
    differ = [False] * len(LOOKS_AT_PROMPTS)
    for given in (repetitive([9, 1, 5]), repetitive([9, 9]), repetitive([1])):
        before = model.generate(**given, **plain)
        for i, own in enumerate(LOOKS_AT_PROMPTS):
            if own == {"no_repeat_ngram_size": 1} and not given["attention_mask"].all():
                continue  # there `generate` forbids the padding token
            options = plain | own
            expected = model.generate(**given, **options)
            found = model.generate(**given, **options, custom_generate=pybeam.generate)
            assert found.sequences.tolist() == expected.sequences.tolist(), options
            torch.testing.assert_close(
                found.sequences_scores, expected.sequences_scores, atol=1e-4, rtol=1e-4
            )
            differ[i] |= found.sequences.tolist() != before.sequences.tolist()
            options |= dict(num_beams=1, num_return_sequences=1)
            expected = model.generate(**given, **options)
            found = model.generate(**given, **options, custom_generate=pybeam.generate)
            assert found.sequences.tolist() == expected.sequences.tolist(), options
    assert all(differ)


def test_what_pads_a_prompt_counts_for_nothing(llama):
    """Not even where it is EOS, which a penalty would make less likely; so too in `generate` from 5.23 on."""
    given = repetitive([9, 2])
    given["input_ids"][given["attention_mask"] == 0] = EOS
    options = dict(num_beams=3, max_new_tokens=9, repetition_penalty=3.0, bad_words_ids=[[7, 6]])
    expected = llama.generate(**given, **options)
    found = llama.generate(**given, **options, custom_generate=pybeam.generate)
    assert found.tolist() == expected.tolist()
    given = {name: values[1:, -2:] for name, values in given.items()}
    alone = llama.generate(**given, **options, custom_generate=pybeam.generate)
    assert alone[0].tolist() == found[1, 7 : 7 + alone.shape[1]].tolist()
