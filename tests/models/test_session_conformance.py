"""Laws of every session: what a hypothesis gets depends on its source and itself alone."""

import random

import pytest
import torch

from pybeam.contracts import PAGE_CELLS
from pybeam.kvcache.pools import KeyValuePool, SourceCells
from pybeam.models import Ensemble, FunctionModel, load_model
from pybeam.models.linear import PackedLinear, can_pack
from pybeam.models.transformer.model import _chunks
from support.built_in_models import saved
from support.front_ends import VOCAB, hashed, onnx_model, sources, wrapped
from support.session_driver import SessionDriver, straight_line
from support.tiny_models import save_tiny_model
from support.tiny_rnn import save_tiny_rnn

pytestmark = [pytest.mark.usefixtures("inference_mode"), pytest.mark.thinned()]

CAUSAL = ("causal-qwen3", "causal-gemma3", "causal-gpt_neox", "causal-mixtral")
FRONT_ENDS = (
    *("function", "m2m_100", "marian", "mbart", "t5", "umt5", "ensemble", "rnn", "onnx"),
    *CAUSAL,
)
# every way in which a wrapped model keeps its cache, and the rest of them
WRAPPED = ("mistral", "t5", "gemma", "gptoss", "bloom")
ALL_WRAPPED = ("nllb", "bart", "pegasus", "gpt2", "llama", "qwen", "mamba")


@pytest.fixture(
    scope="module",
    params=[
        *FRONT_ENDS,
        *(f"wrapped-{kind}" for kind in WRAPPED),
        *(pytest.param(f"wrapped-{kind}", marks=pytest.mark.slow) for kind in ALL_WRAPPED),
    ],
)
def model(request, tmp_path_factory, device):
    if request.param.startswith("wrapped"):
        return wrapped(request.param.removeprefix("wrapped-"), device)
    if request.param == "function":
        if device.type != "cpu":
            pytest.skip("functions run on the CPU")
        return FunctionModel(hashed, VOCAB, bos_id=0, eos_id=1)
    if request.param == "rnn":
        directory = tmp_path_factory.mktemp("rnn")
        save_tiny_rnn(directory)
        return load_model(directory, device=device)
    if request.param == "onnx":
        return onnx_model(tmp_path_factory, device)
    if request.param in CAUSAL:
        pytest.importorskip("transformers")
        return load_model(saved(request.param, tmp_path_factory.mktemp("causal")), device=device)
    kinds = ("m2m_100", "bart") if request.param == "ensemble" else [request.param]
    directories = [tmp_path_factory.mktemp(kind) for kind in kinds]
    for seed, (directory, kind) in enumerate(zip(directories, kinds, strict=True)):
        save_tiny_model(directory, kind, seed)
    return load_model(directories, device=device)


def promises_bits(model, backend: str) -> bool:
    """Whether a row's logits are the same to the last bit, whatever is beside it."""
    if isinstance(model, Ensemble):
        return all(promises_bits(member, backend) for member in model.members)
    is_packed = isinstance(getattr(model, "output", None), PackedLinear)
    return isinstance(model, FunctionModel) or (is_packed and backend == "native")


def assert_near(model, actual, expected):
    """Exact for functions. In attention, a row's terms are summed in places that depend on its beam."""
    if isinstance(model, FunctionModel):
        assert torch.equal(actual, expected)
    else:
        scale = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * scale)


def assert_same(model, backend: str, actual, expected):
    """For the same beams beside others: the same to the last bit where that is promised."""
    if promises_bits(model, backend):
        assert torch.equal(actual, expected)
    else:
        assert_near(model, actual, expected)


@pytest.mark.thinned(most=2)
def test_built_in_models_promise_bits(model, backend, request):
    """Where weights are packed: these tests do not compare loosely by mistake."""
    kind = request.node.callspec.params["model"]
    is_exact = kind == "function" or (
        kind in ("m2m_100", "marian", "mbart", "t5", "umt5", "ensemble", "rnn", *CAUSAL)
        and backend == "native"
        and can_pack(model.device, torch.float32)
    )
    assert promises_bits(model, backend) == is_exact


def survivors(rng: random.Random, num_rows: int, width: int) -> list[tuple[int, int]]:
    """Random survivors: rows die, double and change places."""
    return [(rng.randrange(num_rows), rng.randrange(VOCAB)) for _ in range(rng.randint(2, width))]


def grow(driver: SessionDriver, slots, num_steps: int, width: int, seeds=None) -> list[dict]:
    """Step and extend beams at random, each slot by its own seed; returns all logits."""
    rngs = {slot: random.Random(seed) for slot, seed in zip(slots, seeds or slots, strict=True)}
    logits = []
    for _ in range(num_steps):
        logits.append(driver.step(slots))
        driver.extend(
            {slot: survivors(rngs[slot], len(driver.prefixes[slot]), width) for slot in slots}
        )
    logits.append(driver.step(slots))
    return logits


@pytest.mark.thinned(most=4)
def test_a_batch_changes_nothing(model, backend):
    """Batch invariance: beams decoded together get what they get alone."""
    together = SessionDriver(model, backend, num_slots=4)
    all_sources = sources(4)
    together.open(dict(enumerate(all_sources)))
    batched = grow(together, [0, 1, 2, 3], num_steps=6, width=5)
    for slot, source in enumerate(all_sources):
        alone = SessionDriver(model, backend)
        alone.open({0: source}, [slot])
        single = grow(alone, [0], num_steps=6, width=5, seeds=[slot])
        assert alone.prefixes[0] == together.prefixes[slot]
        for ours, expected in zip(batched, single, strict=True):
            assert_same(model, backend, ours[slot], expected[0])


@pytest.mark.thinned(most=2)
def test_branches_equal_straight_lines(model, backend):
    """Advance then step equals step then permute: a row gets what its hypothesis gets alone."""
    driver = SessionDriver(model, backend, num_slots=2)
    all_sources = sources(2, seed=5)
    driver.open(dict(enumerate(all_sources)))
    logits = grow(driver, [0, 1], num_steps=7, width=6)[-1]
    for slot, source in enumerate(all_sources):
        assert len(driver.prefixes[slot]) > 1
        for row, prefix in enumerate(driver.prefixes[slot]):
            expected = straight_line(model, backend, source, prefix, index=slot)[-1]
            assert_near(model, logits[slot][row], expected)


@pytest.mark.thinned(most=8)
def test_permuted_rows_get_permuted_logits(model, backend):
    """Nearly: rows in another order write their keys to other cells, so sums run in another order."""
    order = [3, 0, 2, 1]
    logits = []
    for rows in (range(4), order):
        driver = SessionDriver(model, backend)
        driver.open({0: sources(1)[0]})
        driver.step([0])
        driver.extend({0: [(0, 5), (0, 6), (0, 7), (0, 8)]})
        driver.step([0])
        driver.extend({0: [(row, 10 + row) for row in rows]})
        logits.append(driver.step([0])[0])
    assert_near(model, logits[1], logits[0][order])


@pytest.mark.thinned(most=2)
def test_sixty_five_rows_and_more(model, backend):
    """Beams whose masks need a second word."""
    driver = SessionDriver(model, backend)
    source = sources(1)[0]
    driver.open({0: source})
    driver.step([0])
    driver.extend({0: [(0, token % VOCAB) for token in range(100)]})
    driver.step([0])
    driver.extend({0: [(99 - row, row % VOCAB) for row in range(100)]})
    logits = driver.step([0])[0]
    for row in (0, 35, 63, 64, 99):
        expected = straight_line(model, backend, source, driver.prefixes[0][row])[-1]
        assert_near(model, logits[row], expected)


@pytest.mark.thinned(most=4)
def test_paused_sources_lose_nothing(model, backend):
    """Sources step at different times, so that one call holds rows of different positions."""
    driver = SessionDriver(model, backend, num_slots=3)
    all_sources = sources(3, seed=9)
    driver.open(dict(enumerate(all_sources)))
    plan = [[0], [0, 2], [2], [1, 0], [0, 1, 2]]
    rng = random.Random(1)
    for slots in plan:
        driver.step(slots)
        driver.extend({slot: survivors(rng, len(driver.prefixes[slot]), 4) for slot in slots})
    logits = driver.step([2, 0, 1])
    assert len({len(driver.prefixes[slot][0]) for slot in range(3)}) > 1
    for slot in range(3):
        for row, prefix in enumerate(driver.prefixes[slot]):
            expected = straight_line(model, backend, all_sources[slot], prefix, index=slot)[-1]
            assert_near(model, logits[slot][row], expected)


@pytest.mark.thinned(most=2)
def test_slots_used_again_leave_others_unchanged(model, backend):
    first, second, third = sources(3, seed=3)
    driver = SessionDriver(model, backend, num_slots=2)
    driver.open({0: first, 1: second}, [0, 1])
    grow(driver, [0, 1], num_steps=4, width=3)
    driver.close([0])
    driver.open({0: third}, [2])
    logits = grow(driver, [0, 1], num_steps=3, width=3)[-1]
    for slot, source, index in ((0, third, 2), (1, second, 1)):
        for row, prefix in enumerate(driver.prefixes[slot]):
            expected = straight_line(model, backend, source, prefix, index=index)[-1]
            assert_near(model, logits[slot][row], expected)


@pytest.mark.thinned(most=4)
def test_growth_in_the_middle_changes_nothing(model, backend):
    """More slots, wider beams and more cells arrive while a beam is under way."""
    first, *more = sources(6, seed=4)
    small = SessionDriver(model, backend)
    small.open({0: first}, [0])
    large = SessionDriver(model, backend, num_slots=8, width=12, length=40)
    large.tree.reserve_pages(64)
    large.open({0: first}, [0])
    for driver in (small, large):
        grow(driver, [0], num_steps=3, width=2)
    cells = small.tree.num_cells
    small.open(dict(enumerate(more, 1)), range(1, 6))
    logits = [grow(driver, [0], num_steps=12, width=12)[-1][0] for driver in (small, large)]
    assert small.tree.num_cells > cells, "nothing has grown"
    assert_same(model, backend, logits[0], logits[1])


def test_the_same_load_again_takes_no_more_memory(tmp_path, backend, device):
    save_tiny_model(tmp_path, "m2m_100")
    driver = SessionDriver(load_model(tmp_path, device=device), backend, num_slots=4)
    sizes = []
    for _ in range(4):
        driver.open(dict(enumerate(sources(4, seed=7))))
        grow(driver, [0, 1, 2, 3], num_steps=3, width=4)
        driver.close([3, 1])
        driver.close([0, 2])
        sizes.append((driver.session._cross.num_cells, driver.session._own.num_cells))
    assert len(set(sizes)) == 1, sizes


def test_many_tokens_are_encoded_in_parts(tmp_path, backend, device, monkeypatch):
    save_tiny_model(tmp_path, "m2m_100")
    model = load_model(tmp_path, device=device)
    logits = []
    for most in (4096, 15):
        for name in ("CPU_ENCODER_TOKENS", "MAX_ENCODER_TOKENS"):
            monkeypatch.setattr(f"pybeam.models.transformer.model.{name}", most)
        driver = SessionDriver(model, backend, num_slots=5)
        driver.open(dict(enumerate(sources(5, seed=8))))
        logits.append(torch.cat(list(driver.step(range(5)).values())))
    assert_same(model, backend, logits[1], logits[0])


def test_empty_sources_are_encoded(tmp_path, backend, device):
    save_tiny_model(tmp_path, "m2m_100")
    model = load_model(tmp_path, device=device)
    alone, beside = SessionDriver(model, backend), SessionDriver(model, backend, num_slots=2)
    alone.open({0: []})
    beside.open({0: [4, 5, 6], 1: []})
    logits = alone.step([0])[0]
    assert logits.isfinite().all()
    assert_same(model, backend, beside.step([0, 1])[1], logits)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([4], [(0, 1)]),
        ([40, 1], [(0, 1), (1, 2)]),
        ([3, 3, 4, 1, 20, 2], [(0, 3), (3, 4), (4, 5), (5, 6)]),
        ([0, 0, 10, 0], [(0, 4)]),
    ],
)
def test_parts_of_ten_tokens(lengths, expected):
    assert [(part.start, part.stop) for part in _chunks(lengths, 10)] == expected


def test_source_cells_have_one_owner_and_come_back():
    cells = SourceCells(torch.device("cpu"))
    rng = random.Random(0)
    owned: dict[int, list[int]] = {}
    most_pages = 0
    for _ in range(200):
        if len(owned) == 8 or (owned and rng.random() < 0.4):
            slots = rng.sample(sorted(owned), rng.randint(1, len(owned)))
            cells.release(slots)
            for slot in slots:
                del owned[slot]
        else:
            slots = rng.sample(
                [s for s in range(8) if s not in owned], rng.randint(1, 8 - len(owned))
            )
            lengths = [rng.randint(0, 40) for _ in slots]
            index = cells.allocate(slots, lengths).tolist()
            for slot, n in zip(slots, lengths, strict=True):
                owned[slot] = cells.cell[slot, :n].tolist()
                assert int(cells.length[slot]) == n
            assert index == [cell for slot in slots for cell in owned[slot]]
        flat = [cell for row in owned.values() for cell in row]
        assert len(flat) == len(set(flat)) and max(flat, default=-1) < cells.num_cells
        most_pages = max(most_pages, sum(-(-len(row) // PAGE_CELLS) for row in owned.values()))
    assert cells.num_cells == most_pages * PAGE_CELLS


def test_pool_keeps_what_it_held():
    pool = KeyValuePool(2, 3, 4, torch.float32, torch.device("cpu"))
    pool.grow(5)
    for both in pool.both:
        both.copy_(torch.randn(both.shape))
    before = [(key.clone(), value.clone()) for key, value in zip(pool.key, pool.value, strict=True)]
    pool.grow(3)
    assert pool.num_cells == 5
    pool.grow(9)
    assert pool.num_cells == 9
    for (key, value), new_key, new_value in zip(before, pool.key, pool.value, strict=True):
        assert torch.equal(new_key[:5], key) and torch.equal(new_value[:5], value)
