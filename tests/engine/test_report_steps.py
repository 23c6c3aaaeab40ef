"""Several steps on a GPU between two reports: the same is found with fewer reports, in the memory allowed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import pybeam
from pybeam.engine.cuda_graphs import StepGraphs
from pybeam.engine.engine import Engine
from pybeam.engine.report_steps import report_steps
from pybeam.engine.source import Source
from pybeam.engine.workspace import Workspace
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models import load_model
from support.device_loop import REQUESTS, assert_alike, run, torch_beams
from support.graph_memory import Recomputed
from support.laws import ALGORITHMS, some_schedules
from support.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("m2m_100")
    save_tiny_model(directory, "m2m_100")
    return load_model(directory)


@pytest.fixture
def reports(monkeypatch):
    """The live sources of each report that an engine has sent for."""
    found = []
    read_later = Engine._read_later

    def noted(self, *args):
        found.append(len(self._live.slots))
        read_later(self, *args)

    monkeypatch.setattr(Engine, "_read_later", noted)
    return found


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_is_found_with_fewer_reports(transformer, reports, name):
    algorithm = ALGORITHMS[name]
    for schedule in some_schedules(name, 0, num=5):
        expected, _ = run(Workspace(transformer, algorithm, torch_beams()), schedule)
        workspace = Workspace(transformer, algorithm, torch_beams())
        workspace.graphs = StepGraphs(Recomputed())
        reports.clear()
        results, stats = run(workspace, schedule, reads_late=True, reports_every=(4, 0))
        assert_alike(results, expected)
        assert 4 * len(reports) == stats.steps


def test_sources_that_are_watched_have_a_report_each_step(transformer, reports):
    workspace = Workspace(transformer, ALGORITHMS["fixed"], torch_beams())
    late = dict(reads_late=True, reports_every=(4, 0))
    _, stats = run(workspace, pybeam.Fifo(5), partials=True, **late)
    assert len(reports) == stats.steps


def test_few_sources_have_a_report_each_step(transformer, reports):
    workspace = Workspace(transformer, ALGORITHMS["fixed"], torch_beams())
    _, stats = run(workspace, pybeam.Fifo(5), reads_late=True, reports_every=(4, 4))
    few = sum(num < 4 for num in reports)
    assert 0 < few < len(reports)
    assert stats.steps == few + 4 * (len(reports) - few)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "wide"])
@pytest.mark.parametrize("every", [1, 5])
def test_memory_has_a_limit(transformer, name, every):
    """More is claimed than sources may have, and none takes it."""
    algorithm = ALGORITHMS[name]
    free = Workspace(transformer, algorithm, torch_beams())
    late = dict(reads_late=True, reports_every=(every, 0))
    expected, _ = run(free, pybeam.Fifo(6), **late)
    source = Source(
        index=0,
        request=pybeam.Request([5] * 8),
        content=None,
        algorithm=algorithm,
        source_length=9,
        prefix=[],
    )
    limit = 2 * free.room.max_bytes(source)
    limited = Workspace(transformer, algorithm, torch_beams(), memory_limit=limit)
    results, _ = run(limited, pybeam.Fifo(6), **late)
    assert_alike(results, expected)
    assert limited.tree.num_total_pages <= limited.tree.max_pages


def test_pages_of_several_steps():
    tree = TokenTree(torch_beams(), torch.device("cpu"))
    tree.reserve(2, 5, 8)
    assert [tree.pages_of(number) for number in (1, 3, 4, 8)] == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        *((None, (1, 0)), (7_000_000, (4, 4)), (50_000_000, (4, 4))),
        *((260_000_000, (2, 16)), (7_000_000_000, (1, 0))),
    ],
)
def test_what_suits_a_model(size, expected):
    model = SimpleNamespace(num_parameters=size, device=torch.device("cuda"))
    assert report_steps(None, model) == expected
    assert report_steps(3, model) == (3, 0)


@pytest.mark.parametrize(("given", "error"), [(0, ValueError), (2, ValueError), (True, TypeError)])
def test_bad_numbers_are_refused_on_a_cpu(transformer, given, error):
    with pytest.raises(error, match="`reports_every` must be"):
        pybeam.Decoder(transformer, pybeam.greedy(), reports_every=given)
    assert pybeam.Decoder(transformer, pybeam.greedy(), reports_every=1).decode(REQUESTS[:1])
