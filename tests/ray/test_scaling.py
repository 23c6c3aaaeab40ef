"""How many replicas the rows of a service need."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray.data", reason="needs pip install 'pybeam-search[ray]'")

from pybeam.ray.scaling import ByRows


@pytest.mark.parametrize(
    "metrics, expected",
    [
        ({"rows": {"a": 100.0, "b": 300.0}}, 4.0),
        ({"rows": {"a": 0.0}}, 0.0),
        # replicas that are starting have said nothing
        ({}, 3),
        (None, 3),
    ],
)
def test_rows_of_all_replicas_count(metrics, expected):
    context = SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=3)
    assert ByRows(100)(context) == (expected, {})
