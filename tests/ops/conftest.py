"""Operators run on several threads, whatever their test asks."""

import pytest


@pytest.fixture
def num_threads() -> int:
    """An odd number, so that shares differ in size."""
    return 3
