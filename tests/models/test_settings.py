"""The settings of a folder reach every search: published ones beside `generate`."""

import json

import pytest
import torch
import transformers

import pybeam
from pybeam import compat, processors
from pybeam.models import Settings
from pybeam.models.settings import read_settings
from pybeam.processors.bans import SuppressSequences, SuppressTokens
from pybeam.search.settings import FolderSequences, FolderTokens, applied, plain
from support.search_models import random_model
from support.tiny_models import favour_eos, tiny_model

LENGTH = 12
# as the models of these families are published, with ids of the tiny vocabularies
PUBLISHED = {
    "opus-mt": ("marian", dict(bad_words_ids=[[36]], forced_eos_token_id=0, num_beams=4)),
    "bart-large-cnn": (
        "bart",
        dict(
            no_repeat_ngram_size=3,
            min_length=6,
            length_penalty=2.0,
            num_beams=4,
            early_stopping=True,
            forced_bos_token_id=0,
            forced_eos_token_id=2,
        ),
    ),
    "mbart-50": ("mbart", dict(forced_bos_token_id=9, forced_eos_token_id=2, num_beams=5)),
    "m2m_100": ("m2m_100", dict(early_stopping=True, num_beams=5)),
    "nllb-to-one-language": ("m2m_100", dict(forced_bos_token_id=11, num_beams=3)),
    "t5": ("t5", dict(num_beams=4)),
    "penalised": (
        "m2m_100",
        dict(repetition_penalty=1.3, bad_words_ids=[[7], [8, 9]], suppress_tokens=[5], num_beams=3),
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder for each of them, with its network."""
    found = {}
    for name, (kind, settings) in PUBLISHED.items():
        directory = tmp_path_factory.mktemp(name)
        network = tiny_model(kind, seed=3)
        favour_eos(network, 3.0)
        network.generation_config.update(**settings)
        network.save_pretrained(directory)
        found[name] = directory, network
    return found


def sources(count: int = 4) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = [3, 6, 4, 8, 5, 7][:count]
    return [[*torch.randint(10, 37, (n,), generator=generator).tolist(), 2] for n in lengths]


def generated(network, source: list[int], **options) -> tuple[list[int], float | None]:
    """The tokens of `generate`, without start and everything behind EOS, and their score."""
    output = network.generate(
        torch.tensor([source]),
        do_sample=False,
        max_new_tokens=LENGTH,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    tokens = output.sequences[0, 1:].tolist()
    eos = network.generation_config.eos_token_id
    if eos in tokens:
        tokens = tokens[: tokens.index(eos)]
    scores = getattr(output, "sequences_scores", None)
    return tokens, None if scores is None else scores.item()


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_loaded_folder_searches_as_generate_does(folders, name):
    directory, network = folders[name]
    options = PUBLISHED[name][1]
    own = {
        key: options[key]
        for key in ("num_beams", "length_penalty", "early_stopping")
        if key in options
    }
    search = compat.huggingface.beam_search(**own, max_new_tokens=LENGTH)
    results = pybeam.Decoder(pybeam.load_model(directory), search).decode(sources())
    for source, result in zip(sources(), results, strict=True):
        tokens, score = generated(network, source)
        assert result.hypotheses[0].tokens == tokens
        assert result.hypotheses[0].final_score == pytest.approx(score, abs=1e-5)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ["opus-mt", "bart-large-cnn", "penalised"])
def test_greedy_search_does_too(folders, name):
    directory, network = folders[name]
    search = compat.huggingface.beam_search(1, max_new_tokens=LENGTH)
    decoder = pybeam.Decoder(pybeam.load_model(directory), search)
    for source, result in zip(sources(), decoder.decode(sources()), strict=True):
        assert result.hypotheses[0].tokens == generated(network, source, num_beams=1)[0]


def test_every_search_has_them(folders):
    """A search that says nothing of it does not write what the folder bans, and ends as it forces."""
    model = pybeam.load_model(folders["bart-large-cnn"][0])
    for search in (
        pybeam.fixed_beam(3, max_length=LENGTH),
        pybeam.variable_beam(4, threshold=2.0, max_length=LENGTH),
        pybeam.gauss_seidel_jacobi(3, max_length=LENGTH),
        pybeam.stochastic_beam(2, 1, max_length=LENGTH),
    ):
        for result in pybeam.Decoder(model, search).decode(sources()):
            [best, *_] = result.hypotheses
            assert best.tokens[0] == 0 and best.ended and len(best.tokens) >= 5
            assert len({tuple(best.tokens[i : i + 3]) for i in range(len(best.tokens) - 2)}) == len(
                best.tokens[2:]
            )


def test_settings_are_seen_and_can_be_left_out(folders):
    directory, _ = folders["bart-large-cnn"]
    model = pybeam.load_model(directory)
    assert model.settings.names == (
        *("forced_bos_token_id", "forced_eos_token_id", "min_length", "no_repeat_ngram_size"),
    )
    assert repr(model.settings) == (
        "Settings(forced_bos_token_id=0, forced_eos_token_id=(2,), min_length=5, no_repeat_ngram_size=3)"
    )
    plain = model.without(*model.settings.names)
    assert plain.settings == Settings() and model.settings != Settings()
    search = pybeam.fixed_beam(3, max_length=LENGTH)
    assert pybeam.Decoder(plain, search).algorithm == search
    kept = pybeam.Decoder(model.without("min_length"), search).algorithm
    assert kept.min_length == 0 and len(kept.processors) == 2
    with pytest.raises(
        ValueError, match=r"`without` must hold settings .*forced_bos.*, but holds 'num_b"
    ):
        model.without("num_beams")


def test_the_algorithm_goes_first(folders):
    model = pybeam.load_model(folders["bart-large-cnn"][0])
    own = [processors.no_repeat_ngram(2), processors.first_token(7), processors.force_eos()]
    search = pybeam.fixed_beam(2, min_length=1, max_length=4, processors=own)
    decoder = pybeam.Decoder(model, search)
    assert decoder.algorithm == search
    assert all(result.hypotheses[0].tokens[0] == 7 for result in decoder.decode(sources()))
    with pytest.raises(
        ValueError, match=r"`max_length` must be more than 5, the `min_length` of .*bart"
    ):
        pybeam.Decoder(model, pybeam.fixed_beam(2, max_length=5))


def test_a_request_goes_first(folders):
    model = pybeam.load_model(folders["nllb-to-one-language"][0])
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(2, max_length=LENGTH))
    source = sources()[0]
    requests = [source, pybeam.Request(source, [13]), pybeam.Request(source, [])]
    own, asked, none = [result.hypotheses[0].tokens for result in decoder.decode(requests)]
    assert (own[0], asked[0]) == (11, 13)
    plain = model.without("forced_bos_token_id")
    [free] = pybeam.Decoder(plain, decoder.algorithm).decode([source])
    assert none == free.hypotheses[0].tokens


def test_requests_may_change_the_algorithms_bans_beside_those_of_the_folder(folders):
    model = pybeam.load_model(folders["opus-mt"][0])
    search = pybeam.fixed_beam(2, max_length=LENGTH, processors=[processors.suppress_sequences([])])
    decoder = pybeam.Decoder(model, search)
    source = sources()[0]
    [plain] = decoder.decode([source])
    token = plain.hypotheses[0].tokens[0]
    ban = processors.suppress_sequences([[token]])
    [changed] = decoder.decode([pybeam.Request(source, processors=[ban])])
    assert token not in changed.hypotheses[0].tokens and 36 not in changed.hypotheses[0].tokens


def test_outputs_get_their_own_scores(folders):
    """Those that are cut have a forced EOS, and others do not."""
    for name in ("opus-mt", "bart-large-cnn"):
        decoder = pybeam.Decoder(
            pybeam.load_model(folders[name][0]), pybeam.fixed_beam(4, n_best=4, max_length=7)
        )
        for source, result in zip(sources(), decoder.decode(sources()), strict=True):
            for found in result.hypotheses:
                start = 1 if name == "bart-large-cnn" else 0
                [scored] = decoder.score([source], [found.tokens[start:]])
                assert scored.hypotheses[0].score == pytest.approx(found.score, abs=1e-5)


def test_alternatives_begin_with_what_is_forced(folders):
    model = pybeam.load_model(folders["nllb-to-one-language"][0])
    [result] = pybeam.Decoder(model, pybeam.fixed_beam(2, max_length=6)).alternatives(sources(1), 3)
    assert [found.tokens[0] for found in result.hypotheses] == [11] * 3
    search = compat.huggingface.beam_search(2)
    with pytest.raises(ValueError, match="prefixes count for nothing"):
        pybeam.Decoder(model, search).alternatives(sources(1), 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            dict(sequence_bias=[[[5], 2.0]]),
            r"`sequence_bias` in .*generation_config.json is not under.*with",
        ),
        (
            dict(forced_eos_token_id=7),
            r"`forced_eos_token_id` in .* must be EOS, \[2\], but is \[7\]",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(folders, tmp_path, settings, message):
    directory, _ = folders["m2m_100"]
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    model = pybeam.load_model(tmp_path)
    with pytest.raises(ValueError, match=message):
        pybeam.Decoder(model, pybeam.greedy())
    pybeam.Decoder(model.without(*settings), pybeam.greedy())


def test_older_folders_have_them_in_config_json(tmp_path):
    """Without a generation config they are those of transformers, defaults of the class among them."""
    config = transformers.BartConfig(vocab_size=45, d_model=8)
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    old = json.loads(path.read_text()) | dict(
        min_length=4, no_repeat_ngram_size=3, bad_words_ids=[[1]]
    )
    del old["forced_eos_token_id"]
    path.write_text(json.dumps(old))
    expected = Settings(
        bad_words_ids=((1,),), forced_eos_token_id=(2,), min_length=3, no_repeat_ngram_size=3
    )
    assert read_settings(tmp_path) == expected
    path.write_text(json.dumps(old | dict(forced_eos_token_id=None)))
    assert read_settings(tmp_path).forced_eos_token_id == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            dict(bad_words_ids=3),
            "`bad_words_ids` must be a list of lists .* this is in .*generation_con",
        ),
        (
            dict(no_repeat_ngram_size=-1),
            "`no_repeat_ngram_size` must be at least 0, but is -1; this is",
        ),
        (
            dict(repetition_penalty="x"),
            "`repetition_penalty` must be a number, but is 'x'; this is in",
        ),
        (
            dict(exponential_decay_length_penalty=[2]),
            "must be a pair, a count and a factor, but is",
        ),
    ],
)
def test_wrong_values(tmp_path, settings, message):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        read_settings(tmp_path)


@pytest.mark.parametrize("name", ["suppress_tokens", "begin_suppress_tokens"])
def test_a_folder_bans_what_the_algorithm_does_not(name):
    """Its tokens are banned beside other ones of the algorithm, and not twice."""
    ban = {
        "suppress_tokens": processors.suppress_tokens,
        "begin_suppress_tokens": processors.suppress_tokens_at_start,
    }[name]
    model = random_model(2, 9)
    model.settings = Settings(**{name: (3, 4)})
    for own, expected in [([], 1), ([5], 2), ([3], 2), ([4, 3], 1), ([3, 4, 5], 1)]:
        chain = applied(pybeam.greedy(processors=[ban(own)] if own else []), model).processors
        assert len(chain) == expected
        assert {3, 4} <= {token for one in chain for token in one.tokens}


def test_what_a_folder_bans_counts_from_the_start_token_as_generate_does():
    model = random_model(2, 9)
    model.settings = Settings(
        no_repeat_ngram_size=2, bad_words_ids=((3,), (4, 5)), repetition_penalty=1.2
    )
    chain = applied(pybeam.greedy(), model).processors
    assert len(chain) == 3 and all(one.counts_start for one in chain)
    # EOS alone may be among them
    assert chain[-1].spares_eos


@pytest.mark.parametrize("most", [3, 4])
def test_outputs_must_have_room_for_the_least_length_of_a_folder(most):
    model = random_model(2, 9)
    model.settings = Settings(min_length=4)
    with pytest.raises(ValueError, match=f"`max_length` must be more than 4, .* but is {most};"):
        applied(pybeam.greedy(max_length=most), model)
    assert applied(pybeam.greedy(max_length=5), model).min_length == 4


def test_bans_of_a_folder_are_those_of_an_algorithm_in_a_class_of_their_own():
    assert plain(FolderTokens((3, 4), "logits")) == SuppressTokens((3, 4), "logits")
    given = ((3, 4),), True, False, "logits"
    assert plain(FolderSequences(*given)) == SuppressSequences(*given)
    own = processors.suppress_tokens([3])
    assert plain(own) is own and plain(len) is len
