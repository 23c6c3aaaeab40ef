"""The built-in transformer computes what the original of every family computes."""

from functools import partial

import pytest
import torch

from pybeam import backends
from pybeam.models import load_model
from pybeam.models.linear import ACTIVATIONS, PackedLinear, PlainLinear, can_pack
from pybeam.models.loading import DTYPES
from pybeam.models.transformer.config import read_config
from pybeam.models.transformer.positions import position_offset, sinusoidal_table
from support.session_driver import SessionDriver
from support.tiny_models import KINDS, T5_KINDS, save_tiny_model, tiny_model

pytestmark = pytest.mark.usefixtures("inference_mode")

EXAMPLE = "examples/models/bible-es-en"
# ragged, one of a single token, one as long as the position limit
LENGTHS = (5, 1, 32, 9)


@pytest.fixture(scope="module", params=[*KINDS, *T5_KINDS])
def pair(request, tmp_path_factory, device):
    """The original and ours."""
    directory = tmp_path_factory.mktemp(request.param)
    original = save_tiny_model(directory, request.param)
    return original, load_model(directory, device=device)


def sources_for(model, lengths=LENGTHS, seed=1) -> list[list[int]]:
    """Random sources without padding tokens, which the originals do not count as positions."""
    generator = torch.Generator().manual_seed(seed)
    ids = [i for i in range(model.config.source_vocab_size) if i != model.config.pad_id]
    return [
        [ids[i] for i in torch.randint(len(ids), (n,), generator=generator).tolist()]
        for n in lengths
    ]


def targets_for(model, num: int, length: int) -> list[list[int]]:
    """Random target prefixes that begin with the start token."""
    generator = torch.Generator().manual_seed(2)
    ids = [i for i in range(model.vocab_size) if i != model.config.pad_id]
    picked = torch.randint(len(ids), (num, length - 1), generator=generator).tolist()
    return [[model.start_id, *(ids[i] for i in row)] for row in picked]


def original_logits(original, source, target) -> torch.Tensor:
    """Teacher-forced logits [T, V]."""
    return original(
        input_ids=torch.tensor([source]),
        decoder_input_ids=torch.tensor([target]),
        use_cache=False,
    ).logits[0]


def stepwise_logits(model, backend, sources, targets) -> list[torch.Tensor]:
    """Logits [T, V] of every source, all decoded together, one row each."""
    driver = SessionDriver(model, backend)
    driver.open(dict(enumerate(sources)))
    slots = list(range(len(sources)))
    steps = [driver.step(slots)]
    for t in range(1, len(targets[0])):
        driver.extend({slot: [(0, targets[slot][t])] for slot in slots})
        steps.append(driver.step(slots))
    return [torch.cat([step[slot] for step in steps]) for slot in slots]


@pytest.mark.thinned(most=4)
def test_encoder_states_equal_the_originals(pair, backend):
    original, model = pair
    sources = sources_for(model)
    session = model.session(backends.load(backend))
    states = session.encoder_states([model.check(source) for source in sources])
    states = states[: sum(LENGTHS)].cpu().split(LENGTHS)
    for source, state in zip(sources, states, strict=True):
        expected = original.get_encoder()(torch.tensor([source])).last_hidden_state[0]
        # a GPU adds up in another order
        bound = 1e-5 if model.device.type == "cpu" else 3e-5
        torch.testing.assert_close(state, expected, rtol=bound, atol=bound)


@pytest.mark.thinned(most=6)
def test_stepwise_logits_equal_the_originals(pair, backend):
    original, model = pair
    sources = sources_for(model)
    targets = targets_for(model, len(sources), length=12)
    logits = stepwise_logits(model, backend, sources, targets)
    for source, target, ours in zip(sources, targets, logits, strict=True):
        expected = original_logits(original, source, target)
        # the bound is relative to the largest logit: these random models have logits up to 100
        assert (ours - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


def compute_norms_in_float64(model) -> None:
    """T5's norms square in float32 whatever the dtype."""

    def forward(norm, x):
        return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, True) + norm.variance_epsilon)

    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = partial(forward, module)


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("kind", [*KINDS, *T5_KINDS])
def test_formulas_are_the_originals(tmp_path, kind, monkeypatch):
    """In float64, which only tests use, logits agree to nine places, whatever their size."""
    if kind.startswith("fsmt"):
        pytest.skip("transformers' FSMT masks with float32's extremes and runs in no other dtype")
    monkeypatch.setitem(DTYPES, "float64", torch.float64)
    original = save_tiny_model(tmp_path, kind).double()
    compute_norms_in_float64(original)
    model = load_model(tmp_path, device="cpu", dtype="float64")
    sources = sources_for(model)
    targets = targets_for(model, len(sources), length=12)
    logits = stepwise_logits(model, "reference", sources, targets)
    for source, target, ours in zip(sources, targets, logits, strict=True):
        assert (ours - original_logits(original, source, target)).abs().max() <= 1e-9


def test_facts_come_from_the_config(pair, device):
    original, model = pair
    config = original.config
    assert model.vocab_size == original_logits(original, [3], [model.start_id]).shape[-1] == 45
    assert (model.start_id, model.eos_id) == (config.decoder_start_token_id, config.eos_token_id)
    limit = None if config.model_type in ("t5", "mt5", "umt5") else 32
    assert model.max_positions == model.max_source_positions == limit
    assert model.dtype == torch.float32 and model.device.type == device.type


@pytest.mark.parametrize("kind", ["m2m_100", "m2m_100-pad0", "marian", "fsmt"])
def test_sinusoidal_tables_are_the_originals(kind, tmp_path):
    original = save_tiny_model(tmp_path, kind)
    config = read_config(tmp_path)
    module = original.get_decoder().embed_positions
    table = module.weights if kind.startswith("m2m") else module.weight
    offset = position_offset(config)
    ours = sinusoidal_table(config)[offset:]
    torch.testing.assert_close(ours, table[offset : offset + 32], rtol=0, atol=1e-6)


def test_odd_sizes_have_the_originals_tables(tmp_path):
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    from pybeam.models.transformer.config import FAMILIES

    class Config:
        hidden_size, max_positions, pad_id = 7, 9, 1

    Config.family = FAMILIES["m2m_100"]
    expected = M2M100SinusoidalPositionalEmbedding.get_embedding(11, 7, 1)
    torch.testing.assert_close(sinusoidal_table(Config)[2:], expected[2:])
    Config.family = FAMILIES["marian"]
    expected = MarianSinusoidalPositionalEmbedding(9, 7).create_weight()
    torch.testing.assert_close(sinusoidal_table(Config), expected)


@pytest.mark.thinned(most=1)
def test_example_model_equals_transformers(backend, device):
    from transformers import AutoModelForSeq2SeqLM

    original = AutoModelForSeq2SeqLM.from_pretrained(EXAMPLE, dtype=torch.float32).eval()
    model = load_model(EXAMPLE, device=device, dtype="float32")
    sources = sources_for(model, lengths=(13, 40, 1, 88, 24))
    targets = targets_for(model, len(sources), length=15)
    logits = stepwise_logits(model, backend, sources, targets)
    for source, target, ours in zip(sources, targets, logits, strict=True):
        expected = original_logits(original, source, target)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("kind", ["m2m_100", "bart", "m2m_100-untied", "t5", "mt5"])
def test_16_bits_stay_near_float32(kind, is_packed, dtype, tmp_path, monkeypatch):
    original = save_tiny_model(tmp_path, kind)
    if not is_packed:
        monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)
    elif not can_pack(torch.device("cpu"), DTYPES[dtype]):
        pytest.skip("there is no C++ extension for this CPU")
    model = load_model(tmp_path, device="cpu", dtype=dtype)
    assert model.weight_dtype == DTYPES[dtype]
    sources, targets = sources_for(model), targets_for(model, len(LENGTHS), length=6)
    logits = stepwise_logits(model, "reference", sources, targets)
    for source, target, ours in zip(sources, targets, logits, strict=True):
        assert ours.dtype == model.dtype == (torch.float32 if is_packed else DTYPES[dtype])
        expected = original_logits(original, source, target)
        # 8 bits of mantissa through three layers: correlation shows a wrong formula, noise does not
        both = torch.stack((ours.float().flatten(), expected.flatten()))
        assert torch.corrcoef(both)[0, 1] > 0.99


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_packed_linear_equals_plain(activation):
    if not can_pack(torch.device("cpu"), torch.float32):
        pytest.skip("there is no C++ extension for this CPU")
    torch.manual_seed(0)
    weight, bias = torch.randn(40, 24), torch.randn(40)
    x, residual = torch.randn(9, 24), torch.randn(9, 40)
    for b in (bias, None):
        plain, packed = PlainLinear(weight, b, activation), PackedLinear(weight, b, activation)
        torch.testing.assert_close(packed(x), plain(x), rtol=1e-5, atol=2e-5)
    plain, packed = PlainLinear(weight, bias), PackedLinear(weight, bias)
    expected = residual + x @ weight.T + bias
    torch.testing.assert_close(packed.add(residual.clone(), x), expected, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(plain.add(residual.clone(), x), expected, rtol=1e-5, atol=2e-5)


def test_plain_linear_gives_the_same_model(tmp_path, monkeypatch):
    save_tiny_model(tmp_path, "bart")
    packed = load_model(tmp_path, device="cpu")
    monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)
    plain = load_model(tmp_path, device="cpu")
    assert isinstance(plain.output, PlainLinear)
    sources, targets = sources_for(plain), targets_for(plain, len(LENGTHS), length=6)
    for a, b in zip(
        stepwise_logits(packed, "reference", sources, targets),
        stepwise_logits(plain, "reference", sources, targets),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("hello", TypeError, "encode the text first"),
        (3, TypeError, "but is int"),
        ([1.5, 2.0], TypeError, "but holds torch.float32"),
        ([True], TypeError, "but holds torch.bool"),
        (["a"], TypeError, "cannot be read as one"),
        ([1, None], TypeError, "cannot be read as one"),
        ([2**70], TypeError, "cannot be read as one"),
        ([[1, 2]], ValueError, "give one source per request"),
        (torch.zeros(2, 2, dtype=torch.long), ValueError, r"but is \[2, 2\]"),
        ([5, 45], ValueError, "must be 0 to 44, but one is 45"),
        ([5, -1], ValueError, "must be 0 to 44, but one is -1"),
        ([3] * 33, ValueError, "at most 32 ids .* but has 33"),
    ],
)
def test_unfit_sources_are_refused(tmp_path_factory, source, error, message):
    model = _checked_model(tmp_path_factory)
    with pytest.raises(error, match=message):
        model.check(source)


@pytest.mark.parametrize(
    "source", [[3, 4, 2], (3, 4, 2), torch.tensor([3, 4, 2]), torch.tensor([3, 4, 2]).int()]
)
def test_fit_sources_become_tensors(tmp_path_factory, source):
    model = _checked_model(tmp_path_factory)
    ids = model.check(source)
    assert ids.dtype == torch.long and ids.tolist() == [3, 4, 2]
    assert model.source_length(ids) == 3


def test_empty_source_is_fit(tmp_path_factory):
    model = _checked_model(tmp_path_factory)
    assert model.source_length(model.check([])) == 0


_MODELS = {}


def _checked_model(tmp_path_factory):
    if "checked" not in _MODELS:
        directory = tmp_path_factory.mktemp("checked")
        save_tiny_model(directory, "m2m_100")
        _MODELS["checked"] = load_model(directory)
    return _MODELS["checked"]


def test_untied_models_have_different_tables():
    """Otherwise the untied kinds above would show nothing."""
    for kind in ("m2m_100-untied", "bart-untied"):
        model = tiny_model(kind)
        assert not torch.equal(model.lm_head.weight, model.model.shared.weight)
