"""Catalogues against `generate` with `prefix_allowed_tokens_fn`: the same items with the same scores."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import pybeam
from pybeam.compat import huggingface
from pybeam.models.huggingface import wrap
from support.item_lists import random_items

transformers = pytest.importorskip("transformers")

from pybeam.catalogue import allowed_items  # noqa: E402
from support.huggingface_models import EOS, VOCAB, tiny_network  # noqa: E402
from support.tiny_models import save_tiny_model  # noqa: E402

PAD = 1


def trie_of(items) -> dict:
    trie: dict = {}
    for item in items:
        node = trie
        for token in item:
            node = node.setdefault(token, {})
        node[EOS] = {}
    return trie


def generated(network, source, start, items, **options):
    """The outputs behind the first `start` tokens, without padding, and their scores."""
    trie = trie_of(items)

    def allowed(_, tokens):
        node = trie
        for token in tokens.tolist()[start:]:
            node = node.get(token, {})
        return list(node) or [PAD]

    out = network.generate(
        torch.tensor([source]),
        attention_mask=torch.ones(1, len(source), dtype=torch.long),
        prefix_allowed_tokens_fn=allowed,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    lines = [line[start:].tolist() for line in out.sequences]
    return [line[: line.index(EOS)] for line in lines], out.sequences_scores.tolist()


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("kind", ["bart", "bart built in", "llama"])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_same_as_generate(tmp_path, kind, renormalize, penalty):
    if kind == "bart built in":
        network = save_tiny_model(tmp_path, "bart")
        vocab_size, model = network.config.vocab_size, pybeam.load_model(tmp_path)
    else:
        network = tiny_network(kind)
        vocab_size, model = VOCAB, wrap(network, eos_id=EOS)
    items = random_items(3, 300, range(3, vocab_size), range(1, 6))
    source = [5, 9, 7, EOS] if "bart" in kind else [5, 9, 7, 4]
    options = dict(num_beams=12, num_return_sequences=9, length_penalty=penalty, max_new_tokens=7)
    with torch.inference_mode():
        expected, scores = generated(
            network,
            source,
            1 if "bart" in kind else len(source),
            items,
            renormalize_logits=renormalize,
            early_stopping=True,
            **options,
        )
    search = huggingface.beam_search(early_stopping=True, **options)
    rule = allowed_items(pybeam.Catalogue.build(items), renormalize=renormalize)
    search = dataclasses.replace(search, processors=(rule,))
    [result] = pybeam.Decoder(model, search).decode([source])
    assert [h.tokens for h in result.hypotheses] == expected
    found = [h.final_score for h in result.hypotheses]
    assert found == pytest.approx(scores, abs=1e-4)
    assert [items[h.items[0]] for h in result.hypotheses] == expected
