"""`pybeam.models.huggingface.wrap`: what it says of models, and searches beside `generate`."""

import functools
import inspect
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import pybeam
from pybeam.contracts import PAGE_CELLS
from pybeam.models import Ensemble
from pybeam.models.huggingface import OLDEST, check_transformers, wrap
from support.session_driver import SessionDriver, straight_line

pytest.importorskip("transformers")

import transformers
from transformers.cache_utils import DynamicCache, LinearAttentionAndFullAttentionLayer

from pybeam.models.huggingface.dense import gathered
from pybeam.tasks.wrapped import load_wrapped
from support import causal_models, speech_models, tiny_models, tiny_whisper
from support.huggingface_models import DENSE, EOS, KINDS, VOCAB, limits, tiny_network


def without(module: str, code: str) -> str:
    """The lines that a fresh interpreter, to which this module is not installed, writes to stderr."""
    code = f"import sys; sys.modules[{module!r}] = None\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr


@pytest.mark.thinned(most=6)
@pytest.mark.parametrize("kind", KINDS)
def test_models_whose_attention_can_be_replaced_keep_no_dense_cache(kind, recwarn):
    model = wrap(tiny_network(kind))
    assert model.memory.keeps == ("dense" if kind in DENSE else "tree")
    said = [str(w.message) for w in recwarn if "dense cache" in str(w.message)]
    assert len(said) == (kind in DENSE)
    assert (model.vocab_size, model.eos_id) == (VOCAB, EOS)


def test_no_tiny_model_has_a_field_that_its_config_lacks():
    """A published config would lack it, too. T5's files name a start token, and Gemma's an attention."""
    tiny = tiny_models
    kinds = [(stem, limits(kind) | options) for kind, (stem, _, options) in KINDS.items()]
    kinds += [(stem, tiny.SHAPES | options) for stem, options in tiny.KINDS.values()]
    kinds += [(stem, tiny.T5_SHAPES | options) for stem, options in tiny.T5_KINDS.values()]
    for stem, _, options in causal_models.KINDS.values():
        kinds.append((stem.removesuffix("Config"), causal_models.SHAPES | options))
    kinds += speech_models.CONFIGS.items()
    kinds.append(("Whisper", tiny_whisper.CONFIG))
    for stem, options in kinds:
        default = getattr(transformers, f"{stem}Config")()
        lacks = {name for name in options if not hasattr(default, name)}
        assert lacks <= {"decoder_start_token_id", "attn_implementation"}, (stem, lacks)


def test_only_models_are_wrapped():
    with pytest.raises(TypeError, match="must be a transformers model that generates"):
        wrap(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="in training mode"):
        wrap(tiny_network("bart").train())
    with pytest.raises(ValueError, match="`cache` must be 'auto'"):
        wrap(tiny_network("bart"), cache="paged")


def test_a_model_that_can_do_neither_is_refused_by_name():
    network = tiny_network("bloom")
    forward = network.forward

    def forgets(input_ids=None, use_cache=None, **_):
        return forward(input_ids=input_ids, use_cache=False)

    network.forward = forgets
    with pytest.raises(ValueError, match=r"BloomForCausalLM cannot be searched .*takes none of"):
        wrap(network)


def test_a_refusal_names_the_line_that_failed_where_the_error_has_no_text():
    network = tiny_network("bloom")

    def fails(cache=None, **_):
        raise AssertionError

    network.forward = fails
    line = r"AssertionError: `raise AssertionError` in `fails` of test_huggingface\.py"
    with pytest.raises(ValueError, match=line):
        wrap(network)


@pytest.mark.filterwarnings("ignore:.*keeps a dense cache")
@pytest.mark.parametrize("kind", ["bart", "t5", "mistral", "bloom", "mamba"])
def test_a_cache_is_given_by_its_name(kind):
    """transformers calls it `cache` from 5.24 on."""
    old = "cache_params" if kind == "mamba" else "past_key_values"

    def renamed(part):
        forward, parameters = part.forward, inspect.signature(part.forward).parameters.values()

        def called(*given, **inputs):
            return forward(
                *given, **{old if name == "cache" else name: inputs[name] for name in inputs}
            )

        names = [one.replace(name="cache") if one.name == old else one for one in parameters]
        called.__signature__ = inspect.Signature(names)
        part.forward = called

    network, requests = tiny_network(kind), [pybeam.Request([5, 6, 7]), pybeam.Request([8, 9])]
    if old not in inspect.signature(network.forward).parameters:
        pytest.skip("this transformers has the new name alone")
    network.register_forward_pre_hook(lambda _, given, named: seen.update(named), with_kwargs=True)
    found, seen = [], {}
    for _ in range(2):
        decoder = pybeam.Decoder(wrap(network), pybeam.fixed_beam(3, max_length=8))
        found.append([result.hypotheses for result in decoder.decode(requests)])
        assert ("cache" in seen) == (len(found) == 2) and (old in seen) == (len(found) == 1)
        seen.clear()
        renamed(network)
        renamed(network.get_decoder())
    assert found[0] == found[1]


def test_an_encoder_is_refused_as_one_and_works_as_a_decoder():
    sizes = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2)
    config = transformers.BertConfig(vocab_size=VOCAB, **sizes)
    torch.manual_seed(0)
    network = transformers.BertLMHeadModel(config).eval()
    with pytest.raises(ValueError, match="logits change with the tokens behind them"):
        wrap(network, eos_id=EOS)
    config.is_decoder = True
    torch.manual_seed(0)
    network = transformers.BertLMHeadModel(config).eval()
    assert wrap(network, eos_id=EOS).memory.keeps == "tree"


def test_a_wrong_cache_is_noticed(monkeypatch):
    """A model's addition to its scores shows in its logits."""
    network = tiny_network("bart")
    monkeypatch.setattr(
        "pybeam.models.huggingface.positions.PositionTable.rows",
        lambda self, token, position: self._table[0].expand(token.numel(), 1, -1),
    )
    with pytest.raises(ValueError, match="its logits are wrong by up to"):
        wrap(network, cache="tree")


def test_which_tokens_end_a_hypothesis():
    network = tiny_network("llama")
    network.generation_config.eos_token_id = [2, 5]
    assert wrap(network).eos_ids == (2, 5)
    assert wrap(network, eos_id=5).eos_ids == (5,)
    assert wrap(network, eos_id=[5, 7, 5]).eos_ids == (5, 7)
    with pytest.raises(ValueError, match="`eos_id` must hold token ids from 0"):
        wrap(network, eos_id=[2, -1])
    network.generation_config.eos_token_id = network.config.eos_token_id = None
    with pytest.raises(ValueError, match="names no EOS; give `eos_id`"):
        wrap(network)


@pytest.mark.slow
def test_transformers_is_not_needed_until_a_model_is_wrapped():
    said = without("transformers", "import pybeam; pybeam.models.huggingface.wrap(None)")
    assert "ImportError" in said and "pip install -U transformers" in said


def test_a_transformers_that_is_too_old_is_refused_at_each_door(monkeypatch):
    monkeypatch.setattr(transformers, "__version__", "5.4.0")
    said = (
        f"transformers {OLDEST} or later is needed, but 5.4.0 is installed: `pip install -U trans"
    )
    with pytest.raises(ImportError, match=said):
        wrap(None)
    with pytest.raises(ImportError, match=said):
        pybeam.generate(None, None, generation_config=transformers.GenerationConfig())
    with pytest.raises(ValueError, match=f"holds a model that is not built in .*, and {said}"):
        load_wrapped(Path("folder"), "cpu", "auto", None, ValueError("unknown"))
    # numbers are compared, not texts
    monkeypatch.setattr(transformers, "__version__", "5.24.0.dev0")
    check_transformers()


def test_the_page_names_the_oldest_transformers():
    page = Path(__file__).parents[3] / "docs/reference/models.md"
    assert re.findall(r"transformers (\S+) or later", page.read_text("utf-8")) == [OLDEST]


@torch.inference_mode()
def test_prompts_and_encoder_states_are_kept_once_per_source(backend):
    """However wide the beam."""
    for kind in ("gpt2", "bart"):
        model = wrap(tiny_network(kind))
        driver = SessionDriver(model, backend, num_slots=2)
        driver.open({0: [5] * 20, 1: [7] * 30})
        driver.step([0, 1])
        driver.extend({slot: [(0, token) for token in range(40)] for slot in (0, 1)})
        driver.step([0, 1])
        session = driver.session
        pool = session._prompts.pool if kind == "gpt2" else session._cross
        cells = pool.num_prompt if kind == "gpt2" else pool.num_cells
        assert cells == 4 * PAGE_CELLS, kind


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["t5", "bloom", "gpt2", "mistral"])
def test_dense_lines_share_calls_and_outlive_a_longer_source_and_nothing_else(kind):
    network = tiny_network(kind)
    model = wrap(network, cache="dense")
    driver = SessionDriver(model, "reference", num_slots=2)
    short, calls = [9, 8, 7], []
    driver.open({0: [5] * 12, 1: short})
    network.register_forward_hook(lambda *_: calls.append(kind))
    for rows in ([(0, 4), (0, 5), (0, 6)], [(2, 7), (1, 8)], [(1, 3)]):
        driver.step(list(driver.prefixes))
        driver.extend(dict.fromkeys(driver.prefixes, rows))
        assert len(driver.session._behind) == sum(map(len, driver.prefixes.values()))
        if len(driver.prefixes[1]) == 2:
            driver.close([0])
    found = driver.step([1])[1][0]
    assert len(calls) == 4, "a step is a call, whatever is before its rows"
    expected = straight_line(model, "reference", short, driver.prefixes[1][0])[-1]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_line_of_a_cache_may_be_a_state_without_tokens():
    parts = []
    for num_lines, index in ((3, [2, 0]), (1, [0])):
        cache = DynamicCache()
        cache.layers = [LinearAttentionAndFullAttentionLayer()]
        keys = torch.randn(num_lines, 2, 5, 4)
        cache.update(keys, keys + 1, 0)
        cache.update_recurrent_state(torch.randn(num_lines, 6), 0)
        parts.append((cache, index))
    (layer,) = gathered(parts).layers
    for name in ("keys", "values"):
        chosen = [getattr(cache.layers[0], name)[index] for cache, index in parts]
        assert getattr(layer, name).equal(torch.cat(chosen)), name
    states = [cache.layers[0].recurrent_states[0][index] for cache, index in parts]
    assert layer.recurrent_states[0].equal(torch.cat(states))


def test_lines_are_padded_only_where_that_changes_nothing():
    network = tiny_network("bloom")
    assert wrap(network, cache="dense").memory.pads
    network, forward = tiny_network("bloom"), network.forward

    @functools.wraps(forward)
    def sees_padding(*args, attention_mask, **options):
        return forward(*args, **options)

    network.forward = sees_padding
    assert not wrap(network, cache="dense").memory.pads


def test_positions_are_told_only_to_networks_that_count_from_zero():
    network = tiny_network("gpt2")
    assert wrap(network, cache="dense").memory.is_told
    network, forward = tiny_network("gpt2"), network.forward

    @functools.wraps(forward)
    def counts_from_two(*args, position_ids=None, **options):
        if position_ids is not None:
            position_ids = position_ids + 2
        return forward(*args, position_ids=position_ids, **options)

    network.forward = counts_from_two
    assert not wrap(network, cache="dense").memory.is_told


@pytest.mark.parametrize(
    ("kind", "source", "error"),
    [
        ("bart", [1, VOCAB], "ids of `source` must be 0 to 44"),
        ("bart", [3] * 65, "at most 64 ids"),
        ("gpt2", [3] * 65, "at most 64 ids"),
        ("gpt2", [3] * 60, "positions"),
        ("gpt2", torch.randn(3, 4), "must be a list, tuple or 1-D integer tensor"),
        ("whisper", [1, 2], "must be a float tensor, the `input_features`"),
        ("whisper", torch.randn(6, 23), r"must be `input_features` \[6, 24\]"),
    ],
)
def test_unfit_sources_fail_alone(kind, source, error):
    decoder = pybeam.Decoder(wrap(tiny_network(kind)), pybeam.fixed_beam(2, max_length=8))
    good = torch.randn(6, 24) if kind == "whisper" else [5, 6, 7]
    bad, fine = decoder.decode([source, good], on_error="return")
    assert bad.error is not None and fine.error is None
    with pytest.raises(type(bad.error), match=error):
        raise bad.error


def found(model, algorithm, schedule, sources) -> list:
    results = pybeam.Decoder(model, algorithm, schedule).decode(sources)
    return [(h.tokens, pytest.approx(h.score, abs=1e-3)) for r in results for h in r.hypotheses]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    "kinds",
    [("bloom",), ("t5",), ("gemma",), ("gptoss",), ("llama", "qwen")],
    ids="+".join,
)
def test_results_do_not_depend_on_the_schedule(kinds):
    """With beams that prune, hold and stop early, rows of many lengths in a step, and an ensemble."""
    members = [
        wrap(tiny_network(kind), cache="dense" if kind == "bloom" else "auto") for kind in kinds
    ]
    model = members[0] if len(members) == 1 else Ensemble(members)
    rng = random.Random(2)
    sources = [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 12))] for _ in range(6)]
    algorithm = pybeam.variable_beam(5, threshold=3.0, max_candidates=3, n_best=2, max_length=9)
    expected = found(model, algorithm, pybeam.Batch(1), sources)
    for schedule in (pybeam.Fifo(4, row_budget=9), pybeam.Streaming(4, 0.5)):
        assert found(model, algorithm, schedule, sources) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", "t5", "gemma", "gptoss"])
def test_guesses_look_as_far_back_as_the_tokens_they_stand_for(kind):
    """Rows of one source at different positions, with windows and with relative positions."""
    model = wrap(tiny_network(kind))
    sources = [[5 + i, 7, 9, 11] * (1 + i % 3) for i in range(6)]
    limits = dict(max_length=20, min_length=15)
    expected = found(model, pybeam.greedy(**limits), pybeam.Fifo(3), sources)
    assert found(model, pybeam.jacobi(**limits), pybeam.Fifo(3), sources) == expected


@pytest.mark.slow
def test_threads_take_turns():
    """Which attention a network uses is said in its config, so steps of one network must not overlap."""
    network = tiny_network("bart")
    sources = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14]]
    algorithm = pybeam.fixed_beam(3, max_length=12)
    expected = found(wrap(network), algorithm, pybeam.Fifo(2), sources)
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(found, wrap(network), algorithm, pybeam.Fifo(2), sources) for _ in range(3)
        ]
        assert all(run.result() == expected for run in runs)
