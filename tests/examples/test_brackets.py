"""Constituency trees: how they are read, built and counted, beside plain Python and cases by hand."""

import random

import pytest
import torch

import pybeam
from benchmarks import parsing
from examples.parsing import brackets, parser
from examples.parsing.brackets import COMBINE, NAME, SHIFT, Tree
from examples.parsing.parser import Network, SpanActions, SpanParser

GOLD = """
( (S (NP-SBJ-1 (NP (NNP Pierre) (NNP Vinken)) (, ,) (ADJP (JJ old)) (, ,))
     (VP (VBD said) (SBAR (-NONE- 0) (S (-NONE- *T*-1))) (PRT=2 (RP up)))
     (. .)) )
"""
LABELS = ["NP", "S+VP", "VP"]


def test_trees_are_read_without_traces_functions_and_what_is_empty():
    tree, other = brackets.read(GOLD + "(TOP (FRAG (-LRB- -LRB-) (NP (NP (NN x)))))")
    assert tree.words == "Pierre Vinken , old , said up .".split()
    assert tree.xpos == "NNP NNP , JJ , VBD RP .".split()
    assert tree.upos == "NN NN , JJ , VB RP .".split()
    named = {(0, 8): "S", (0, 5): "NP", (0, 2): "NP", (3, 4): "ADJP", (5, 7): "VP", (6, 7): "PRT"}
    assert tree.labels == named
    assert other.labels == {(0, 2): "TOP+FRAG", (1, 2): "NP+NP"}
    for text, message in (("(S (NN x)", "has not"), (")", "closes nothing")):
        with pytest.raises(ValueError, match=message):
            brackets.read(text)


@pytest.mark.parametrize(
    ("labels", "right", "found"),
    [
        # S and NP end before punctuation or behind it: the same brackets
        ({(0, 7): "S", (0, 4): "NP", (0, 3): "NP", (3, 5): "ADJP", (5, 8): "VP"}, 5, 5),
        # ADVP and PRT are one label, and TOP is none
        ({(0, 8): "TOP+S", (6, 7): "ADVP"}, 2, 2),
        # a bracket over punctuation alone does not count
        ({(0, 8): "S", (7, 8): "NP", (2, 3): "PRN"}, 1, 1),
        # another label, another span, and a label too many
        ({(0, 8): "SINV", (1, 3): "NP", (5, 7): "VP+VP"}, 1, 4),
        # one of two like brackets
        ({(6, 7): "PRT+ADVP"}, 1, 2),
        ({}, 0, 0),
    ],
)
def test_brackets_are_counted_as_evalb_does(labels, right, found):
    (tree,) = brackets.read(GOLD)
    assert brackets.counts(tree, labels) == (2 * right, 6 + found)


def test_a_tree_of_punctuation_alone_has_nothing_to_find():
    (tree,) = brackets.read("(TOP (X (. .) (. .)))")
    nothing = brackets.counts(tree, {(0, 2): "X"})
    assert nothing == (0, 0)
    assert parsing.share(nothing) == 1.0
    assert parsing.share((2, 6)) == 1 / 3
    assert parsing.percentage([nothing, (2, 8)]) == 25.0


def random_tree(rng: random.Random, num_words: int) -> Tree:
    tags = [rng.choice(["X", "Y", ","]) for _ in range(num_words)]
    labels = {(0, num_words): rng.choice(LABELS)}

    def split(first: int, end: int) -> None:
        if rng.random() < 0.6:
            labels[first, end] = rng.choice(LABELS)
        cuts = sorted(rng.sample(range(first + 1, end), min(end - first - 1, rng.randint(1, 3))))
        for a, b in zip([first, *cuts], [*cuts, end], strict=True):
            if b - a < end - first:
                split(a, b)

    split(0, num_words)
    return Tree([rng.choice("abcde") for _ in tags], tags, tags, labels)


def played(taken: list[brackets.Action]) -> tuple[list[int], int]:
    """First words of the spans on the stack, and of what is in none."""
    stack, end = [], 0
    for kind, _ in taken:
        if kind == SHIFT:
            stack.append(end)
            end += 1
        elif kind == COMBINE:
            stack.pop()
    return stack, end


def oracle_legal(taken: list[brackets.Action], num_words: int) -> list[bool]:
    """SHIFT, COMBINE, no label, a label and the start token, from the stack itself."""
    stack, end = played(taken)
    must_name = len(taken) % 2 == 1
    is_whole = len(stack) == 1 and end == num_words
    may_shift, may_combine = end < num_words, len(stack) > 1
    structure = [not must_name and may_shift, not must_name and may_combine]
    return [*structure, must_name and not is_whole, must_name, False]


def test_derivations_build_their_trees_by_legal_actions():
    rng = random.Random(1)
    for num_words in [1, 2, 3, 5, 9, 17]:
        tree = random_tree(rng, num_words)
        taken = brackets.derivation(tree)
        assert len(taken) == SpanActions.num_actions(num_words) == 4 * num_words - 2
        assert brackets.built(taken) == tree.labels
        assert brackets.counts(tree, tree.labels)[0] == brackets.counts(tree, tree.labels)[1]
        num_shifts = [played(taken[:i])[1] for i in range(len(taken))]
        counts = torch.tensor([[s, i, num_words] for i, s in enumerate(num_shifts)]).unbind(1)
        expected = [oracle_legal(taken[:i], num_words) for i in range(len(taken))]
        assert parser.legal_spans(*counts).tolist() == expected
        actions = SpanActions(LABELS)
        assert [actions.action_of(actions.id_of(*one)) for one in taken] == taken


@pytest.mark.thinned(most=1)
@torch.inference_mode()
def test_scores_are_those_of_a_stack_in_plain_python(backend):
    torch.manual_seed(0)
    rng = random.Random(2)
    tables = [["<unknown>", "<root>", "<none>", *more] for more in ("abcd", "abcd", "XY", "XY")]
    sizes = [len(table) for table in tables]
    network = Network(sizes, [6, 5, 4, 3], 10, SpanActions(LABELS).vocab_size)
    for weight in network.parameters():
        weight.copy_(0.5 * torch.randn(weight.shape))
    model = SpanParser(network, tables, LABELS)
    trees = [random_tree(rng, n) for n in (1, 2, 5, 8)]
    algorithm = pybeam.variable_beam(6, 4.0, 3, n_best=6, processors=(model.legal_actions,))
    decoder = pybeam.Decoder(model, algorithm, pybeam.Streaming(2, row_budget=12), backend=backend)
    for tree, result in zip(trees, decoder.decode(map(model.request, trees)), strict=True):
        own = model.network.read([model.check(tree)])[0]  # [n + 2, 4, hidden]
        num_words = len(tree.words)
        for found in result.hypotheses:
            taken, total = [model.actions.action_of(token) for token in found.tokens], 0.0
            assert (0, num_words) in brackets.built(taken)
            assert len(taken) == 4 * num_words - 2
            for i, token in enumerate(found.tokens):
                stack, end = played(taken[:i])
                rows = [*[num_words + 1, num_words + 1, 0, *(b + 1 for b in stack)][-3:], end + 1]
                logits = network.output(sum(own[row, k] for k, row in enumerate(rows)).relu())
                allowed = oracle_legal(taken[:i], num_words)
                is_legal = torch.tensor([allowed[kind] for kind in model.actions.kinds])
                total += logits.masked_fill(~is_legal, -torch.inf).log_softmax(0)[token].item()
            assert found.score == pytest.approx(total, abs=1e-4)
            assert taken[1::2] == [(NAME, label) for _, label in taken[1::2]]
