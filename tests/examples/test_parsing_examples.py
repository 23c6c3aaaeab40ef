"""The example parsers: transitions beside plain Python, the laws of search, and what the weights can do."""

import random

import pytest
import torch

import pybeam
from examples.parsing import parser, treebank
from examples.parsing.parser import LEFT, RIGHT, SHIFT, Actions, Network, Parser
from examples.parsing.treebank import Sentence
from pybeam.engine.workspace import Workspace
from support.device_loop import assert_alike, run, torch_beams
from support.paths import DATA, ROOT

EXAMPLES = ROOT / "examples"
TREEBANK = DATA / "ud-ewt" / "dev.conllu"
RELATIONS = ["det", "nsubj", "root"]
WORDS = ["a", "b", "c", "d"]


def oracle_legal(stack: list[int], first: int, num_words: int) -> list[bool]:
    """SHIFT, LEFT and RIGHT, from the stack itself."""
    has_next, has_words = first <= num_words, len(stack) > 1
    makes_root = has_words and stack[-2] == 0
    return [has_next, has_words and has_next, has_words and not (makes_root and has_next)]


def played(actions: list[int]) -> tuple[list[int], int]:
    """Stack and first word of the buffer after these kinds of action."""
    stack, first = [0], 1
    for kind in actions:
        if kind == SHIFT:
            stack.append(first)
            first += 1
        else:
            stack.pop()
    return stack, first


def random_derivation(rng: random.Random, num_words: int) -> list[treebank.Action]:
    kinds: list[int] = []
    while len(kinds) < 2 * num_words:
        stack, first = played(kinds)
        allowed = oracle_legal(stack, first, num_words)
        kinds.append(rng.choice([kind for kind in (SHIFT, LEFT, RIGHT) if allowed[kind]]))
    return [(kind, rng.choice(RELATIONS) if kind else "") for kind in kinds]


def sentence_of(num_words: int, actions: list[treebank.Action], rng: random.Random) -> Sentence:
    words = [rng.choice([*WORDS, "new"]) for _ in range(num_words)]
    tags = [rng.choice(["X", "Y"]) for _ in range(num_words)]
    return Sentence(words, tags, tags, *treebank.tree(num_words, actions))


@pytest.fixture(scope="module")
def model() -> Parser:
    torch.manual_seed(0)
    tables = [["<unknown>", "<root>", "<none>", *more] for more in (WORDS, WORDS, "XY", "XY")]
    sizes = [len(table) for table in tables]
    network = Network(sizes, [6, 5, 4, 3], 10, Actions(RELATIONS).vocab_size)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape))
    return Parser(network, tables, RELATIONS)


def test_every_derivation_makes_a_projective_tree_and_comes_back():
    rng = random.Random(1)
    for num_words in [1, 2, 3] * 20 + list(range(4, 40)):
        sentence = sentence_of(num_words, random_derivation(rng, num_words), rng)
        assert sentence.heads.count(0) == 1
        assert treebank.is_projective(sentence.heads)
        actions = treebank.derivation(sentence)
        assert len(actions) == 2 * num_words
        assert treebank.tree(num_words, actions) == (sentence.heads, sentence.relations)


def test_gold_derivations_rebuild_the_treebank():
    if not TREEBANK.exists():
        pytest.skip("needs shared/data/ud-ewt beside the checkout")
    sentences = treebank.read(TREEBANK)
    projective = [sentence for sentence in sentences if treebank.is_projective(sentence.heads)]
    assert (len(sentences), len(projective)) == (2001, 1970)
    for sentence in projective:
        built = treebank.tree(len(sentence.words), treebank.derivation(sentence))
        assert built == (sentence.heads, sentence.relations)
        assert treebank.num_correct(sentence, *built) == len(sentence.words)
    crossing = next(sentence for sentence in sentences if sentence not in projective)
    with pytest.raises(ValueError, match="must be projective"):
        treebank.derivation(crossing)


def test_legal_actions_are_those_of_the_stack():
    rng = random.Random(2)
    lines, expected = [], []
    for num_words in range(1, 9):
        kinds = [kind for kind, _ in random_derivation(rng, num_words)]
        for i in range(len(kinds) + 1):
            stack, first = played(kinds[:i])
            lines.append((first - 1, i, num_words))
            expected.append([*oracle_legal(stack, first, num_words), False])
    counts = torch.tensor(lines).unbind(1)
    assert parser.legal(*counts).tolist() == expected


def oracle_score(model: Parser, sentence: Sentence, tokens: list[int]) -> float:
    """Log-probability of a derivation: a stack in plain Python, one action at a time."""
    actions, num_words = model.actions, len(sentence.words)
    own = model.network.read([model.check(sentence)])[0]  # [n + 2, 4, hidden]
    kinds, total = [], 0.0
    for token in tokens:
        stack, first = played(kinds)
        none = num_words + 1
        words = [*[none, none, *stack][-3:], first]
        hidden = sum(own[word, k] for k, word in enumerate(words)).relu()
        logits = model.network.output(hidden)
        allowed = [*oracle_legal(stack, first, num_words), False]
        logits = logits.masked_fill(
            ~torch.tensor([allowed[kind] for kind in actions.kinds]), -torch.inf
        )
        total += torch.log_softmax(logits, 0)[token].item()
        kinds.append(actions.kinds[token])
    return total


def test_sources_that_are_no_sentences_are_refused(model):
    with pytest.raises(TypeError, match=r"must be a treebank\.Sentence, but is list"):
        model.check([1, 2])
    with pytest.raises(ValueError, match="must be of one length, but have 2, 1 and 2"):
        model.check(Sentence(["a", "b"], ["X"], ["X", "Y"]))


@torch.inference_mode()
def test_scores_are_those_of_a_stack_in_plain_python(model, backend):
    rng = random.Random(3)
    sentences = [sentence_of(n, random_derivation(rng, n), rng) for n in (1, 2, 5, 9)]
    algorithm = pybeam.variable_beam(6, 4.0, 3, n_best=6, processors=(model.legal_actions,))
    decoder = pybeam.Decoder(model, algorithm, backend=backend)
    results = decoder.decode([model.request(s) for s in sentences])
    assert sum(len(result.hypotheses) for result in results) > 12
    for sentence, result in zip(sentences, results, strict=True):
        for found in result.hypotheses:
            assert len(found.tokens) == 2 * len(sentence.words)
            assert found.score == pytest.approx(
                oracle_score(model, sentence, found.tokens), abs=1e-4
            )
            actions = [model.actions.action_of(token) for token in found.tokens]
            assert found.tokens == [model.actions.id_of(*action) for action in actions]
            heads, _ = treebank.tree(len(sentence.words), actions)
            assert heads.count(0) == 1 and treebank.is_projective(heads)


@pytest.mark.slow
def test_a_step_never_waits_and_schedules_agree(model, guard):
    rng = random.Random(4)
    sentences = [sentence_of(n, random_derivation(rng, n), rng) for n in (3, 6, 1, 4)]
    requests = [model.request(sentence) for sentence in sentences]
    algorithm = pybeam.variable_beam(5, 2.0, 3, n_best=5, processors=(model.legal_actions,))
    plain = Workspace(model, algorithm, torch_beams())
    expected, _ = run(plain, pybeam.Batch(1), requests)
    for schedule in (pybeam.Streaming(2, row_budget=12), pybeam.Fifo(3)):
        workspace = Workspace(model, algorithm, torch_beams())
        results, _ = run(workspace, schedule, requests, reads_late=True)
        assert_alike(results, expected)


# sentence, UPOS, XPOS, heads, relations; right in the best tree, and in the best of all trees found
RECORDED = [
    (
        "The dog chased a small cat into the garden .",
        "DET NOUN VERB DET ADJ NOUN ADP DET NOUN PUNCT",
        "DT NN VBD DT JJ NN IN DT NN .",
        [2, 3, 0, 6, 6, 3, 9, 9, 3, 3],
        "det nsubj root det amod obj case det obl punct",
        (9, 10),
    ),
    (
        "She said that he will call you tomorrow .",
        "PRON VERB SCONJ PRON AUX VERB PRON NOUN PUNCT",
        "PRP VBD IN PRP MD VB PRP NN .",
        [2, 0, 6, 6, 6, 2, 6, 6, 2],
        "nsubj root mark nsubj aux ccomp obj obl punct",
        (8, 8),
    ),
    ("Go !", "VERB PUNCT", "VB .", [0, 1], "root punct", (2, 2)),
]


def test_the_weights_build_the_recorded_trees():
    directory = EXAMPLES / "parsing" / "ud-ewt"
    trained = Parser.load(directory)
    sentences = [
        Sentence(words.split(), upos.split(), xpos.split(), heads, relations.split())
        for words, upos, xpos, heads, relations, _ in RECORDED
    ]
    algorithm = pybeam.variable_beam(10, 2.5, 3, n_best=10, processors=(trained.legal_actions,))
    decoder = pybeam.Decoder(trained, algorithm)
    results = decoder.decode([trained.request(s) for s in sentences])
    for sentence, result, (*_, recorded) in zip(sentences, results, RECORDED, strict=True):
        right = []
        for found in result.hypotheses:
            actions = [trained.actions.action_of(token) for token in found.tokens]
            built = treebank.tree(len(sentence.words), actions)
            right.append(treebank.num_correct(sentence, *built))
        assert (right[0], max(right)) == recorded
    assert (directory / "model.safetensors").stat().st_size < 3e6
