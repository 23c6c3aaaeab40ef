"""A decoder whose layers are one launch has the results of one operator after another."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pybeam
from pybeam import backends
from pybeam.backends import torch_layers
from pybeam.backends.torch_layers import FUNCTIONS
from pybeam.contracts import NewNodes
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from support.built_in_models import saved
from support.device_loop import assert_alike, run
from support.tiny_models import save_tiny_model

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.models.transformer import one_launch
from pybeam.models.transformer.norms import Norm
from pybeam.triton_kernels import persistent, product

SIZES = dict(d_model=32, decoder_attention_heads=2, decoder_ffn_dim=64)
REFERENCE = backends.load("reference")


def at(address: int, *shape: int) -> Tensor | None:
    """The float32 numbers at an address of this process."""
    if not address:
        return None
    numbers = (ctypes.c_float * torch.Size(shape).numel()).from_address(address)
    return torch.frombuffer(numbers, dtype=torch.float32).view(shape)


def layers_by_address(states, addresses, shape, seen, exchange, programs, after):
    """Do as the docstring of `decoder_layers` says, through the table alone."""
    cells, new_cell, num_cells, source_cells = seen
    d, inner, size = shape.width, shape.inner_width, shape.width // shape.num_heads
    columns = [(3 * d, d), (d, d), (d, d), (d, d), (inner, d), (d, inner)]
    # cells of sources are counted by nobody
    num_source_cells = 1 + int(max(source_cells.cell.flatten().tolist()))
    x, heads = states, (shape.num_heads, size)
    for line in addresses.tolist():
        parts = [line[4 * j : 4 * j + 4] for j in range(6)]
        own, source = (
            at(address, num, 2, *heads).unbind(1)
            for address, num in zip(line[24:], (num_cells, num_source_cells), strict=True)
        )

        def multiplied(j: int, y: Tensor, parts=parts) -> Tensor:
            return F.linear(y, at(parts[j][2], *columns[j]), at(parts[j][3], columns[j][0]))

        def normed(j: int, x: Tensor, parts=parts) -> tuple[Tensor, Tensor]:
            scale, shift = (at(address, d) for address in parts[j][:2])
            y = x if scale is None else F.layer_norm(x, (d,), scale, shift, shape.epsilon)
            return (x if shape.is_pre_norm else y), y

        x, y = normed(0, x)
        query, key, value = multiplied(0, y).view(-1, 3, *heads).unbind(1)
        new = NewNodes(key, value, new_cell)
        y = REFERENCE.tree_attention(query, *own, cells, shape.scale, None, new)
        x, y = normed(2, x + multiplied(1, y.flatten(1)))
        query = multiplied(2, y).view(-1, *heads)
        y = REFERENCE.tree_attention(query, *source, source_cells, shape.scale)
        x, y = normed(4, x + multiplied(3, y.flatten(1)))
        y = FUNCTIONS[shape.activation](multiplied(4, y))
        x = x + multiplied(5, y)
    return x


def embed_norm(token, place, table, positions, scale, skipped_id, norms):
    num = len(positions) // 2 if skipped_id >= 0 else 0
    place = place + num * (token == skipped_id)
    x = torch_layers.embed(token, place, table, None, len(table), positions, scale)
    x = x if norms[0] is None else Norm(*norms[0])(x)
    return x, (x if norms[1] is None else Norm(*norms[1])(x))


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """Numbers of rows of the launches so far."""
    found: list[int] = []

    def noted(states, *given):
        found.append(len(states))
        return layers_by_address(states, *given)

    monkeypatch.setattr(persistent, "IS_ON", True)
    monkeypatch.setattr(persistent, "DTYPES", (torch.float32,))
    monkeypatch.setattr(persistent, "programs_of", lambda *_: persistent.Programs(64, 4))
    monkeypatch.setattr(persistent, "decoder_layers", noted)
    monkeypatch.setattr(persistent, "exchange_for", lambda *_: ())
    monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)
    return found


def on_a_gpu() -> SimpleNamespace:
    """The reference with what one launch needs of Triton."""
    never = SimpleNamespace(product=product.product, takes_product=lambda *_: False)
    own = {"few_rows": never, "embed_norm": embed_norm}
    return SimpleNamespace(**{**vars(REFERENCE), **own})


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("kind", ["m2m_100", "mbart", "bart-gelu_new", "pegasus", "marian", "fsmt"])
def test_as_one_operator_after_another(kind, tmp_path, calls):
    save_tiny_model(tmp_path, kind, **SIZES)
    model = load_model(tmp_path, device="cpu")
    algorithm = pybeam.fixed_beam(3, n_best=2, max_length=6)
    requests = [[5, 7, 9], [6, 8], [7, 7, 5, 6, 8]]
    expected, _ = run(Workspace(model, algorithm, REFERENCE), pybeam.Batch(2), requests)
    assert not calls
    results, stats = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), requests)
    assert_alike(results, expected)
    assert len(calls) == stats.steps and max(calls) <= persistent.MOST_ROWS


@pytest.mark.parametrize("kind", ["t5", "causal-qwen3"])
def test_others_are_left_to_operators(kind, tmp_path, calls):
    if kind.startswith("causal"):
        saved(kind, tmp_path)
    else:
        save_tiny_model(tmp_path, kind)
    model = load_model(tmp_path, device="cpu")
    algorithm = pybeam.fixed_beam(3, max_length=6)
    results, _ = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), [[5, 7, 9]])
    assert results and not calls


def test_many_rows_are_left_to_operators(tmp_path, calls):
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    work = Workspace(model, pybeam.fixed_beam(9, max_length=6), on_a_gpu())
    run(work, pybeam.Batch(2), [[5, 7, 9], [6, 8]])
    assert calls and max(calls) <= persistent.MOST_ROWS


def test_it_is_off(tmp_path, calls, monkeypatch):
    monkeypatch.setattr(persistent, "IS_ON", False)
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    assert one_launch.in_one_launch(on_a_gpu(), model.decoder, None) is None
