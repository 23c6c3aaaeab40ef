"""Poison reaches every kind of memory that has no meaning, so that all other tests can rely on it."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys

import pytest
import torch

import pybeam
from pybeam import backends, processors
from pybeam.backends import memory, poison
from pybeam.catalogue import allowed_items
from pybeam.engine.cuda_graphs import CudaCapture
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from pybeam.models.onnx.model import KeyValueTable
from support.built_in_models import saved
from support.front_ends import onnx_model, wrapped
from support.graph_memory import GraphMemory
from support.laws import decoded
from support.paths import ROOT
from support.search_models import random_model
from support.tiny_models import save_tiny_model
from support.tiny_rnn import save_tiny_rnn

NO_ID = 2**31 - 1


def is_poison(tensor: torch.Tensor) -> bool:
    values = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    absurd = torch.tensor(poison.absurd(values.dtype), dtype=values.dtype)
    return values.numel() > 0 and bool(torch.isclose(values, absurd, 0, 0, equal_nan=True).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64])
def test_new_tensors(dtype):
    old = torch.zeros(3, dtype=dtype)
    for new in (torch.empty(5, dtype=dtype), old.new_empty(2, 2), torch.empty_like(old)):
        assert is_poison(new)
    assert is_poison(old.resize_(9)[3:])
    assert is_poison(memory.large_array((memory.HUGE_PAGE,), dtype))


def test_new_memory_of_kernels():
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    for in_tensor in (True, False):
        bits = torch.tensor([torch.ops.pybeam.unwritten(in_tensor)], dtype=torch.int32)
        assert bits > 2**30 and is_poison(bits.view(torch.float32)), in_tensor
    assert is_poison(bits.view(torch.bfloat16))


def test_no_kernel_has_memory_of_another_kind():
    for path in (ROOT / "csrc").rglob("*.[ch]*"):
        text = path.read_text("utf-8")
        if re.search(r"make_unique_for_overwrite|\bmalloc|new \w+\[", text):
            assert "poison(" in text, path
        for name in re.findall(r"static thread_local std::vector<\w+> (\w+)", text):
            is_resized = f"{name}.resize(" in text
            assert not is_resized or f"poison({name}." in text or path.name == "tree_paths.cpp"


SOURCES = [[5 + i, 6, 7, 8, 9][: 1 + i % 4] * (1 + 6 * (i % 2)) for i in range(7)]


def watched(model, algorithm, monkeypatch, look, backend="native", sources=SOURCES):
    """Decode sources of several lengths, two at a time; call look(work, rows) after the model's steps."""
    work = Workspace(model, algorithm, backends.load(backend))
    step = work.session.step

    def watching(rows):
        logits = step(rows)
        look(work, rows)
        return logits

    monkeypatch.setattr(work.session, "step", watching)
    results = decoded(model, algorithm, pybeam.Streaming(2), backend, sources, work)
    assert [result.error for result in results if result.error] == []


def test_lines_of_slots_and_places_behind_the_last(monkeypatch, backend):
    found = set()

    def look(work, rows):
        tree, beams = work.tree, work.state.beams
        [own] = [kept for kept in work.state.processors._processors if kept.arrays]
        parameters, state = own.arrays[0], own.arrays[-1]
        assert not is_poison(tree.token[0]) and not is_poison(beams.floats[0])
        for p in range(1, work.slots.num):
            nodes, live, entries = (
                int(count[p]) for count in (tree.num_nodes, tree.num_live, beams.num_entries)
            )
            if not nodes:
                assert is_poison(beams.floats[p]) and is_poison(parameters[p])
                found.add("empty")
            for array, count in (
                *((array, nodes) for array in (tree.token, tree.parent, tree.log_prob, state)),
                *((array, live) for array in (tree.live_cell, tree.live_mask)),
                *((array, entries) for array in (tree.row_node, tree.row_cell, beams.score)),
                (tree.page, int(tree.num_pages[p])),
                (tree.free_cell, int(tree.num_free[p])),
                (beams.finished_floats, int(beams.num_finished[p])),
            ):
                if count < array.shape[1]:
                    assert is_poison(array[p, count:])
                    found.add(count > 0)

    algorithm = pybeam.stochastic_beam(3, max_length=9)
    watched(random_model(3, vocab_size=20), algorithm, monkeypatch, look, backend)
    assert found == {"empty", True, False}


def test_prefixes_widths_and_paths(monkeypatch):
    """Few searches have given tokens, a width for each step, or beams too wide for masks."""
    found = set()

    def look(work, rows):
        tree, beams = work.tree, work.state.beams
        given = torch.maximum(beams.prefix_length, beams.scored_from + beams.target_length)
        for name, array, count in (
            ("prefix", beams.prefix, given),
            ("widths", beams.early_width, beams.num_early_widths),
            ("path", tree.path.transpose(1, 2), tree.path_length),
        ):
            for line, num in zip(array[1:], count[1:].tolist(), strict=True):
                if num < len(line):
                    assert is_poison(line[num:]), name
                    found.add((name, num > 0))
        num_free = int(tree.num_free_pages)
        if num_free < tree.free_page.numel():
            assert is_poison(tree.free_page[num_free:])
            found.add(("pages", True))

    algorithm = pybeam.fixed_beam([2, 130, 3], max_length=6)
    requests = [
        pybeam.Request([5 + i], prefix=[6, 7][: i % 3], width=[[2, 130, 3], 4][i % 2])
        for i in range(8)
    ]
    requests[4] = dataclasses.replace(requests[4], width=[2, 3, 4, 3])
    watched(random_model(3, vocab_size=70), algorithm, monkeypatch, look, sources=requests)
    assert found == {("pages", True)} | {
        (name, used) for name in ("prefix", "widths", "path") for used in (True, False)
    }


def test_what_processors_keep_for_empty_slots(monkeypatch, tmp_path):
    found = set()

    def look(work, rows):
        chain = work.state.processors
        [shared] = [kept.shared for kept in chain._processors if kept.shared is not None]
        is_empty = work.tree.num_pages == 0
        is_empty[0] = False
        if is_empty.any():
            assert is_poison(shared.line[is_empty]) and is_poison(chain.prompts[is_empty])
            found.add("empty")

    items = allowed_items(pybeam.Catalogue.build([[5, 6, 7], [8]]))
    chain = [processors.no_repeat_ngram(2), items]
    algorithm = pybeam.greedy(max_length=4, processors=chain)
    model = load_model(saved("causal-qwen3", tmp_path))
    with torch.inference_mode():
        watched(model, algorithm, monkeypatch, look)
    assert found == {"empty"}


def test_memory_that_grows():
    """Tokens of prefixes are read before the first step begins."""
    work = Workspace(random_model(3), pybeam.fixed_beam(2), backends.load("reference"))
    work.state.reserve(4, 2, 9)
    assert is_poison(work.tree.token[1:]) and is_poison(work.state.beams.floats[1:])
    table = KeyValueTable(1, 2, 3)
    table.grow(5)
    assert is_poison(table.cells) and not table.inputs("own")["own_key.0"][:, 0].any()


def test_guesses_of_empty_slots(monkeypatch):
    found = []

    def look(work, rows):
        is_empty = work.tree.num_nodes == 0
        is_empty[0] = False
        if is_empty.any():
            found.append(is_poison(work.state.drafts.ints[is_empty]))

    watched(random_model(3, vocab_size=20), pybeam.jacobi(max_length=9), monkeypatch, look)
    assert found and all(found)


KINDS = ("m2m_100", "t5", "causal-qwen3", "causal-gemma3", "onnx", "wrapped-mistral", "wrapped-t5")


def memories(session):
    """The tensors of a session that have a line per cell: of tokens, and of encoders or prompts."""
    if hasattr(session, "_prompts"):
        pool = session._prompts.pool
        own, behind = pool.num_own, pool.position.shape[0] - pool.num_own
        arrays = [*pool.both, *([pool.position] if session._prompts.needs_positions else [])]
        return [a[:own] for a in arrays], [a[own:].flip(0) for a in arrays], behind
    if hasattr(session._own, "_memory"):
        cross = session._cross.cells
        return [session._own.cells], [cross], cross.shape[0]
    return session._own.both, session._cross.both, session._cross.num_cells


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("kind", KINDS)
def test_cells_and_pages_that_nobody_uses(kind, monkeypatch, tmp_path, tmp_path_factory):
    model = model_of(kind, tmp_path, tmp_path_factory)
    ever, found = set(), set()

    def look(work, rows):
        session, tree = work.session, work.tree
        own, source, num_cells = memories(session)
        ever.update(rows.cell[rows.cell >= 0].tolist())
        unseen = tree.is_forgotten(rows.cell.new_empty(0))
        again = [cell for cell in sorted(ever) if unseen[cell]]
        if again:
            found.add("cell")
            assert all(is_poison(array[again]) for array in own)
        cells = session._prompts.cells if hasattr(session, "_prompts") else session._source
        free = [16 * page + i for page in cells._free for i in range(16)]
        if free:
            found.add("page")
            assert max(free) < num_cells and all(is_poison(array[free]) for array in source)

    with torch.inference_mode():
        watched(model, pybeam.fixed_beam(3, max_length=7), monkeypatch, look)
    assert found == {"cell", "page"}


def model_of(kind, tmp_path, tmp_path_factory):
    device = torch.device("cpu")
    if kind == "onnx":
        return onnx_model(tmp_path_factory, device)
    if kind.startswith("wrapped"):
        return wrapped(kind.removeprefix("wrapped-"), device)
    if kind.startswith("causal"):
        # idle pages of prompts are kept: without room for them they are free
        model = load_model(saved(kind, tmp_path))
        model.prefix_cache_bytes = 0
        return model
    save_tiny_model(tmp_path, kind)
    return load_model(tmp_path)


def test_states_of_rows_and_of_encoders(monkeypatch, tmp_path):
    save_tiny_rnn(tmp_path)
    found = []

    def look(work, rows):
        used = [p for p in work.slots.free if int(work.session._source.length[p])]
        if used:
            found.append(is_poison(work.session._states.memory[:, used]))
            free = [16 * page + i for page in work.session._source._free for i in range(16)]
            found.append(is_poison(work.session._pool[free]))

    watched(load_model(tmp_path), pybeam.fixed_beam(3, max_length=7), monkeypatch, look)
    assert found and all(found)


def test_memory_that_is_given_back():
    model, algorithm = random_model(3), pybeam.greedy(max_length=9)
    work = Workspace(model, algorithm, backends.load("reference"))
    decoded(model, algorithm, pybeam.Batch(2), "reference", [[1], [2]], work)
    old = [buffer for buffer in work.buffers() if buffer.numel()]
    work.give_back()
    assert old and all(map(is_poison, old))


@pytest.mark.parametrize("graph_memory", ["2.11"], indirect=True)
def test_what_a_graph_pool_hands_out_again(graph_memory: GraphMemory):
    """The replay of another graph of the same pool may write there."""
    capture = CudaCapture(torch.device("cpu"))
    slot = torch.zeros(2, dtype=torch.int32)

    def step(slot):
        return torch.ones(2, 2) @ torch.ones(2, 2)

    first, second = capture(step, slot), capture(step, slot)
    assert first.report.tolist() == [[2.0, 2.0]] * 2
    second.replay()
    assert is_poison(first.report)


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["1", "0"])
def test_other_processes_do_as_the_variable_says(variable):
    code = "import pybeam.backends, torch; print(torch.empty(1 << 20, dtype=torch.int32).max())"
    given = {**os.environ, "PYBEAM_POISON": variable}
    told = subprocess.check_output([sys.executable, "-c", code], env=given, cwd=ROOT, text=True)
    assert (str(NO_ID) in told) == (variable == "1")
