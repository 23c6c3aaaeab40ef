"""Every generative class of transformers fares, with its default config, as the table says.

The table is `published_classes.json`, from which the page of models is made. Write it anew with
``python -m support.published_table`` when transformers is another, or when a class fares better than it says.
"""

import pytest

transformers = pytest.importorskip("transformers")

from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

from pybeam.models.transformer.config import FAMILIES  # noqa: E402
from support.published_cases import BUILT_IN, loads_natively, outcome  # noqa: E402
from support.published_classes import generative_classes  # noqa: E402
from support.published_table import read_table  # noqa: E402

TABLE = read_table()
CLASSES = TABLE["classes"]
# an encoder-decoder, a multimodal model, one with a dense cache and one that is refused: all of them small
QUICK = (
    "BlenderbotForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "BartForCausalLM",
    "RobertaForCausalLM",
)
pinned = pytest.mark.skipif(
    transformers.__version__ != TABLE["transformers"],
    reason=f"the table is of transformers {TABLE['transformers']}",
)


@pinned
def test_every_class_is_in_the_table():
    assert list(CLASSES) == generative_classes()


@pinned
def test_every_class_of_a_built_in_family_is_loaded_natively():
    native = {name for name, own in CLASSES.items() if own.get("native")}
    # half of an encoder-decoder has no source
    halves = {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type) for model_type in FAMILIES}
    assert native == set(generative_classes(BUILT_IN)) - halves


def test_what_is_not_searched_has_a_reason():
    for name, own in CLASSES.items():
        assert own["how"] in ("tree", "dense", "refused", "not tried"), name
        assert ("why" in own) == (own["how"] in ("refused", "not tried")), name


def cases(names) -> list:
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if name in QUICK else slow) for name in names]


@pytest.mark.thinned(most=2)
@pinned
@pytest.mark.parametrize("name", cases(CLASSES))
def test_a_class_is_searched_as_by_generate_or_refused(name):
    expected = {key: value for key, value in CLASSES[name].items() if key != "native"}
    assert outcome(name) == expected


@pinned
@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_loaded_natively(name, tmp_path):
    if CLASSES[name]["how"] == "not tried":
        pytest.skip(CLASSES[name]["why"])
    assert loads_natively(name, tmp_path) == CLASSES[name].get("native", False)
