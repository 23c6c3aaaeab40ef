"""The tokens that end hypotheses: several, or those that a caller gives a folder without any."""

import json
from pathlib import Path

import pytest

from pybeam import load_model
from support.tiny_models import save_tiny_model


def edit_json(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("kind", ["m2m_100", "bart", "mbart", "marian", "fsmt", "t5"])
def test_lists_of_eos_ids(tmp_path, kind):
    save_tiny_model(tmp_path, kind)
    edit_json(tmp_path / "generation_config.json", eos_token_id=[6, 3])
    assert load_model(tmp_path).eos_ids == (6, 3)
    assert load_model(tmp_path, eos_id=[9, 6]).eos_ids == (9, 6)


@pytest.mark.parametrize("kind", ["bart", "marian"])
def test_a_folder_without_eos_can_be_given_one(tmp_path, kind):
    save_tiny_model(tmp_path, kind)
    for name in ("config.json", "generation_config.json"):
        edit_json(tmp_path / name, eos_token_id=None, forced_eos_token_id=None)
    with pytest.raises(
        ValueError, match=r"but is None; give those to use as `eos_id` of `load_mod"
    ):
        load_model(tmp_path)
    assert load_model(tmp_path, eos_id=4).eos_ids == (4,)
