"""Replicas that answer for all: what each of them says, if it says anything."""

import asyncio

import pytest

from support.ray_cluster import MARKS

pytest.importorskip("ray.serve", reason="needs pip install 'pybeam-search[ray]'")

from ray.serve.exceptions import RayServeException

from pybeam.ray import together
from pybeam.ray.together import Report, Together
from pybeam.server.errors import APIError

pytestmark = MARKS
ready, busy = Report("a", True, []), Report("b", False, [])


@pytest.fixture
def said(monkeypatch):
    """The words of replicas: reports and errors, or an error in place of all."""
    found = []

    async def reports():
        await asyncio.sleep(0)
        if isinstance(found[0], together.UNHEARD):
            raise found[0]
        return found

    monkeypatch.setattr(together, "_reports", reports)
    return found


@pytest.mark.parametrize(
    ("reports", "is_ready"),
    [
        ([ready, ready], True),
        ([ready, ready, ready], True),
        ([ready, busy], False),
        ([ready, ready, busy], False),
        ([ready], False),
        ([ready, RuntimeError("lost")], False),
        ([TimeoutError()], False),
        ([RayServeException()], False),
    ],
)
def test_all_are_ready_if_each_one_is_and_enough_run(said, reports, is_ready):
    said += reports
    assert asyncio.run(Together(2).is_ready()) == is_ready


def test_metrics_name_their_replica(said):
    from prometheus_client import CollectorRegistry, Counter, Gauge

    for name, number in (("a", 3), ("b", 4)):
        registry = CollectorRegistry()
        Counter("n", "Words.", ["model_name"], registry=registry).labels("m").inc(number)
        if name == "b":
            Gauge("rows", "Rows.", registry=registry).set(7)
        said.append(Report(name, True, list(registry.collect())))
    said.append(RuntimeError("lost"))
    lines = asyncio.run(Together(2).metrics()).decode().splitlines()
    assert [one for one in lines if "_created" not in one] == [
        "# HELP n_total Words.",
        "# TYPE n_total counter",
        'n_total{model_name="m",replica="a"} 3.0',
        'n_total{model_name="m",replica="b"} 4.0',
        "# HELP rows Rows.",
        "# TYPE rows gauge",
        'rows{replica="b"} 7.0',
    ]


def test_many_clients_ask_one_question(monkeypatch):
    """One of them goes, and the others have their answer."""
    asked = []

    async def reports():
        asked.append(1)
        await asyncio.sleep(0.01)
        return [ready]

    async def ask():
        whole = Together(1)
        tasks = [asyncio.ensure_future(whole.is_ready()) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert len(asked) == 1 and answers[1:] == [True] * 4
        assert await whole.is_ready() and len(asked) == 2

    monkeypatch.setattr(together, "_reports", reports)
    asyncio.run(ask())


def test_metrics_are_not_those_of_some(said):
    said.append(TimeoutError())
    with pytest.raises(APIError, match="not all replicas answer"):
        asyncio.run(Together(1).metrics())
