"""Fixtures that several tests of models share."""

import pytest

from support.built_in_models import saved


@pytest.fixture(scope="module")
def directories_of(tmp_path_factory):
    """Directories of a kind of model, saved when they are first asked for."""
    made: dict[str, list] = {}

    def of(kind: str) -> list:
        if kind not in made:
            made[kind] = saved(kind, tmp_path_factory.mktemp("models") / kind)
        return made[kind]

    return of
