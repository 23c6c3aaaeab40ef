"""A decoder whose layers are one launch has the results of one operator after another."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pybeam
from pybeam import backends
from pybeam.backends import torch_layers
from pybeam.backends.torch_layers import FUNCTIONS
from pybeam.contracts import Cells, NewNodes
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from pybeam.models.ensemble import Ensemble
from pybeam.models.transformer import one_launch
from pybeam.models.transformer.norms import Norm
from support.built_in_models import saved
from support.decoder_layers import Selected
from support.device_loop import assert_alike, run
from support.resident_layers import Resident, compiled
from support.tiny_models import save_tiny_model

SIZES = dict(d_model=64, decoder_attention_heads=1, decoder_ffn_dim=96)
REFERENCE = backends.load("reference")
MOST_ROWS, LINES = 64, 8


def at(address: int, *shape: int) -> Tensor | None:
    """The float32 numbers at an address of this process."""
    if not address:
        return None
    numbers = (ctypes.c_float * math.prod(shape)).from_address(address)
    return torch.frombuffer(numbers, dtype=torch.float32).view(shape)


def layers_by_address(x, embedding, kept, seen, *given):
    """Do as the operator does, through the table alone."""
    table, places, _ = kept
    offset, slot, cell, num_cells, mask, entry, new_cell, source_cell, source_length = seen
    *norm, weight, bias = given[:4]
    selected, sizes = Selected(*given[4:18]), given[18:]
    num_pool_cells, inner, num_heads, activation, is_pre_norm = sizes[:5]
    skipped_id, embedding_scale, epsilon, scale = sizes[5:]
    if x is None:
        x, _ = embed_norm(*embedding, embedding_scale, skipped_id, [None, None])
    assert places.shape[1] == len(table) and bool((places == -1).all())
    cells = Cells(offset, slot, cell, num_cells, mask, entry)
    source_cells = Cells(offset, slot, source_cell, source_length)
    d = x.shape[1]
    columns = [(3 * d, d), (d, d), (d, d), (d, d), (inner, d), (d, inner)]
    # cells of sources are counted by nobody
    num_source_cells = 1 + int(source_cell.max())
    heads = num_heads, d // num_heads
    for line in table.tolist():
        parts = [line[4 * j : 4 * j + 4] for j in range(6)]
        own, source = (
            at(address, num, 2, *heads).unbind(1)
            for address, num in zip(line[24:], (num_pool_cells, num_source_cells), strict=True)
        )

        def multiplied(j: int, y: Tensor, parts=parts) -> Tensor:
            return F.linear(y, at(parts[j][2], *columns[j]), at(parts[j][3], columns[j][0]))

        def normed(j: int, x: Tensor, parts=parts) -> tuple[Tensor, Tensor]:
            weight, bias = (at(address, d) for address in parts[j][:2])
            y = x if weight is None else F.layer_norm(x, (d,), weight, bias, epsilon)
            return (x if is_pre_norm else y), y

        x, y = normed(0, x)
        query, key, value = multiplied(0, y).view(-1, 3, *heads).unbind(1)
        new = NewNodes(key, value, new_cell)
        y = REFERENCE.tree_attention(query, *own, cells, scale, None, new)
        x, y = normed(2, x + multiplied(1, y.flatten(1)))
        query = multiplied(2, y).view(-1, *heads)
        y = REFERENCE.tree_attention(query, *source, source_cells, scale)
        x, y = normed(4, x + multiplied(3, y.flatten(1)))
        x = x + multiplied(5, FUNCTIONS[activation](multiplied(4, y)))
    if weight is None:
        return [x]
    y = F.linear(x if norm[0] is None else F.layer_norm(x, (d,), *norm, epsilon), weight, bias)
    if selected.score is None:
        return [y]
    return list(REFERENCE.select(y[: int(offset[-1])], *selected[:3], selected.options))


def embed_norm(token, place, table, positions, scale, skipped_id, norms):
    num = len(positions) // 2 if skipped_id >= 0 else 0
    place = place + num * (token == skipped_id)
    x = torch_layers.embed(token, place, table, None, len(table), positions, scale)
    x = x if norms[0] is None else Norm(*norms[0])(x)
    return x, (x if norms[1] is None else Norm(*norms[1])(x))


class Operators:
    """Stand in for those of an extension with CUDA, and count the rows of launches."""

    def __init__(self, layers) -> None:
        self.num_rows: list[int] = []
        self.num_chosen = 0  # launches that have selected, too
        self._layers = layers

    def __call__(self, name: str):
        return getattr(self, name)

    def takes_decoder_layers(self, like, num_rows, *sizes) -> bool:
        self.num_logits = sizes[-1]
        return num_rows <= MOST_ROWS

    def decoder_layers(self, states, embedding, *given) -> list[Tensor]:
        self.num_rows.append(len(embedding[0]))
        self.num_chosen += Selected(*given[6:20]).score is not None
        return self._layers(states, embedding, *given)


def installed(monkeypatch, layers) -> Operators:
    operators = Operators(layers)
    monkeypatch.setattr(one_launch, "IS_ON", True)
    monkeypatch.setattr(one_launch, "_operator", operators)
    monkeypatch.setattr(one_launch, "has_operator", lambda: True)
    monkeypatch.setattr(one_launch, "takes_choice", lambda like, options: True)
    monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)
    return operators


@pytest.fixture
def operators(monkeypatch) -> Operators:
    monkeypatch.setattr(one_launch, "DTYPES", (torch.float32,))
    return installed(monkeypatch, layers_by_address)


def on_a_gpu() -> SimpleNamespace:
    """The reference with what one launch needs of a GPU's backend."""
    never = SimpleNamespace(takes_product=lambda *_: False)
    return SimpleNamespace(**{**vars(REFERENCE), "few_rows": never, "embed_norm": embed_norm})


KINDS = ["m2m_100", "mbart", "bart-gelu_new", "pegasus", "marian", "fsmt"]


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("kind", KINDS)
def test_as_one_operator_after_another(kind, tmp_path, operators):
    save_tiny_model(tmp_path, kind, **SIZES)
    model = load_model(tmp_path, device="cpu")
    algorithm = pybeam.fixed_beam(3, n_best=2, max_length=6)
    requests = [[5, 7, 9], [6, 8], [7, 7, 5, 6, 8]]
    expected, _ = run(Workspace(model, algorithm, REFERENCE), pybeam.Batch(2), requests)
    assert not operators.num_rows
    results, stats = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), requests)
    assert_alike(results, expected)
    assert len(operators.num_rows) == operators.num_chosen == stats.steps


ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=6),
    "variable": pybeam.variable_beam(3, relative_threshold=0.2, max_length=6),
    "optimal": pybeam.optimal_beam(3, max_length=6),
    "no early end": pybeam.fixed_beam(3, min_length=4, max_length=6),
    "sample": pybeam.sample(seed=3, max_length=6),
    "stochastic": pybeam.stochastic_beam(3, seed=3, max_length=6),
    "jacobi": pybeam.jacobi(length=4, max_length=6),
    "diverse": pybeam.diverse(pybeam.fixed_beam(4, max_length=6), 2, 0.5),
}

# nothing stands between their logits and `select`
CHOOSING = ("greedy", "variable", "optimal", "no early end")


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("schedule", [pybeam.Batch(2), pybeam.Streaming(9)], ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_searches(name, schedule, tmp_path, operators):
    """Each search with each schedule, and a prefix, has the results of one operator after another."""
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    requests = [[5, 7, 9], pybeam.Request([6, 8], prefix=[9, 5, 7]), [7, 7, 5, 6, 8]]
    given = schedule, requests
    expected, _ = run(Workspace(model, ALGORITHMS[name], REFERENCE), *given)
    results, _ = run(Workspace(model, ALGORITHMS[name], on_a_gpu()), *given)
    assert operators.num_rows
    assert (operators.num_chosen > 0) == (name in CHOOSING)
    assert_alike(results, expected)


@pytest.mark.parametrize("what", ["target", "ensemble"])
def test_logits_that_somebody_changes_are_not_selected_from(what, tmp_path, operators):
    """A launch makes logits alone for a target, and for a member of an ensemble."""
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    request = pybeam.Request([6, 8], target=[9, 5]) if what == "target" else [6, 8]
    if what == "ensemble":
        model = Ensemble([model, model])
    given = pybeam.Batch(2), [request, request]
    algorithm = pybeam.fixed_beam(3, max_length=6)
    expected, _ = run(Workspace(model, algorithm, REFERENCE), *given)
    results, _ = run(Workspace(model, algorithm, on_a_gpu()), *given)
    assert operators.num_rows and not operators.num_chosen
    assert_alike(results, expected)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_searches_take_the_kernel(kind, tmp_path, monkeypatch):
    """The CUDA C++ kernel itself, as fibers of this CPU, in searches of float16."""
    operators = installed(monkeypatch, Resident(compiled(), 5).operator)
    save_tiny_model(tmp_path, kind, **SIZES)
    model = load_model(tmp_path, device="cpu", dtype="float16")
    algorithm = pybeam.fixed_beam(3, n_best=2, max_length=6)
    requests = [[5, 7, 9], [6, 8], [7, 7, 5, 6, 8]]
    expected, _ = run(Workspace(model, algorithm, REFERENCE), pybeam.Batch(2), requests)
    results, stats = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), requests)
    assert len(operators.num_rows) == operators.num_chosen == stats.steps
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.error is None
        # second places of such models are ties, but for the last bits
        assert ours.hypotheses[0].tokens == theirs.hypotheses[0].tokens
        scores = [h.score for h in theirs.hypotheses]
        assert [h.score for h in ours.hypotheses] == pytest.approx(scores, abs=0.02)


@pytest.mark.parametrize("kind", ["t5", "causal-qwen3"])
def test_others_are_left_to_operators(kind, tmp_path, operators):
    if kind.startswith("causal"):
        saved(kind, tmp_path)
    else:
        save_tiny_model(tmp_path, kind)
    model = load_model(tmp_path, device="cpu")
    algorithm = pybeam.fixed_beam(3, max_length=6)
    results, _ = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), [[5, 7, 9]])
    assert results and not operators.num_rows


def test_many_rows_are_left_to_operators(tmp_path, operators):
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    work = Workspace(model, pybeam.fixed_beam(3, max_length=6), on_a_gpu())
    _, stats = run(work, pybeam.Batch(30), [[5, 7, 9], [6, 8]] * 15)
    assert operators.num_rows and max(operators.num_rows) <= MOST_ROWS
    assert len(operators.num_rows) < stats.steps


def test_it_is_off(tmp_path, operators, monkeypatch):
    monkeypatch.setattr(one_launch, "IS_ON", False)
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    assert one_launch.in_one_launch(on_a_gpu(), model.decoder, None) is None


def test_an_extension_without_cuda_says_so(monkeypatch):
    """That of this test has no CUDA."""
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    if hasattr(torch.ops.pybeam, "decoder_layers"):
        pytest.skip("the extension has CUDA")
    one_launch.has_operator.cache_clear()
    with pytest.warns(RuntimeWarning, match="built without CUDA kernels"):
        assert not one_launch.has_operator()
    one_launch.has_operator.cache_clear()
