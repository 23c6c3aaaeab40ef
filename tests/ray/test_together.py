"""Replicas that answer for all: what each of them says, if it says anything."""

import asyncio

import pytest

from support.ray_cluster import MARKS

pytest.importorskip("ray.serve", reason="needs pip install 'pybeam-search[ray]'")

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
        if isinstance(found[0], TimeoutError):
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


def test_metrics_are_not_those_of_some(said):
    said.append(TimeoutError())
    with pytest.raises(APIError, match="does not answer"):
        asyncio.run(Together(1).metrics())
