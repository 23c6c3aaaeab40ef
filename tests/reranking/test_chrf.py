"""chrF of all pairs is sacrebleu's, pair by pair."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from pybeam.reranking import chrf

texts = st.text(st.sampled_from("aabé. 🙂\t\u3000¿"), max_size=25)
VERSES = [
    "In the beginning God created the heaven and the earth.",
    "And God said, Let there be light: and there was light.",
    "Jesus wept.",
    "",
]


def oracle(hypotheses, references, **options):
    metric = CHRF(**options)
    rows = [[metric.sentence_score(h, [r]).score for r in references] for h in hypotheses]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(hypotheses), len(references))


@settings(deadline=None)
@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_it_is_sacrebleus(hypotheses, references):
    found = chrf(hypotheses, references)
    torch.testing.assert_close(found, oracle(hypotheses, references), rtol=0, atol=1e-9)


@pytest.mark.parametrize("options", [{}, dict(char_order=2), dict(beta=3), dict(beta=1)])
def test_options(options):
    found = chrf(VERSES, VERSES[::-1], **options)
    torch.testing.assert_close(found, oracle(VERSES, VERSES[::-1], **options), rtol=0, atol=1e-9)
    assert found.dtype == torch.float64


def test_a_text_is_like_itself():
    assert chrf(VERSES, VERSES).diagonal().tolist() == pytest.approx([100.0, 100.0, 100.0, 0.0])


def test_many_repeated_characters():
    hypotheses, references = ["a" * 50, "ab" * 30], ["a" * 7, "b" * 90, "aab" * 20]
    found = chrf(hypotheses, references)
    torch.testing.assert_close(found, oracle(hypotheses, references), rtol=0, atol=1e-9)


def test_bad_arguments():
    with pytest.raises(ValueError, match="`char_order` must be at least 1"):
        chrf(["a"], ["a"], char_order=0)
    with pytest.raises(ValueError, match="`beta` must be finite, greater than 0"):
        chrf(["a"], ["a"], beta=0)
