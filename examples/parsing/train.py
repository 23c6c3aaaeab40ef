"""Train the shift-reduce parsers of parser.py: dependencies by default, constituents with `ptb`.

    python examples/parsing/train.py
    python examples/parsing/train.py --data DIR --epochs 20
    python examples/parsing/train.py ptb --data .data --epochs 8 --batch-size 32

DIR holds ud-ewt/dev.conllu and ud-ewt/test.conllu, or ptb/train.mrg, as `make data` writes them into .data.
It defaults to ../shared/data beside the checkout. The parsers read the tags of the files.

The parser of dependencies learns from 1,970 of the 2,001 sentences of dev.conllu of Universal Dependencies'
English Web Treebank. The arcs of the others cross, so that no derivation builds them. The treebank's
training part is not used. The parser of constituents learns from nine tenths of the sample of the Penn
Treebank that nltk ships, 3,914 sentences for uses that are not commercial. Then score them:

    python -m benchmarks parsing --only ud-ewt ptb
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from brackets import derivation as span_derivation
from brackets import read as read_brackets
from parser import Network, Parser, SpanParser, columns, encoded
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm
from treebank import derivation, is_projective, read

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[2] / "shared" / "data"
TREEBANKS = {"ud-ewt": "ud-ewt/dev.conllu", "ptb": "ptb/train.mrg"}
SPECIAL = ["<unknown>", "<root>", "<none>"]
WIDTHS = [64, 32, 16, 32]  # sizes of the vectors of form, ending, UPOS and XPOS
HIDDEN_SIZE = 96


class Example(NamedTuple):
    """A sentence with its derivation of A actions."""

    ids: Tensor  # [n + 2, columns]
    words: Tensor  # [A, 4], the words that the network looks at before each action
    num_shifts: Tensor  # [A], shifts before each action
    action: Tensor  # [A]


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    order = random.Random(options.seed)
    path = options.data / TREEBANKS[options.name]
    if not path.exists():
        raise SystemExit(f"{path} is missing; pass --data DIR with {TREEBANKS[options.name]}")
    if options.name == "ptb":
        kind, sentences = SpanParser, read_brackets(path.read_text("utf-8"))
        derivations = [span_derivation(tree) for tree in sentences]
    else:
        kind, sentences = Parser, [one for one in read(path) if is_projective(one.heads)]
        derivations = [derivation(sentence) for sentence in sentences]
    counts = [Counter() for _ in WIDTHS]
    for sentence in sentences:
        for count, column in zip(counts, columns(sentence), strict=True):
            count.update(column)
    tables = [[*SPECIAL, *sorted(e for e, n in count.items() if n > 1)] for count in counts]
    relations = sorted({name for one in derivations for _, name in one if name})
    actions = kind.transitions(relations)
    sizes = [len(table) for table in tables]
    network = Network(sizes, WIDTHS, HIDDEN_SIZE, actions.vocab_size)
    numbers = [{entry: i for i, entry in enumerate(table)} for table in tables]
    examples = [
        example(encoded(sentence, numbers), [actions.id_of(*action) for action in taken], actions)
        for sentence, taken in zip(sentences, derivations, strict=True)
    ]
    # hide rare words at random, so that the network learns what an unknown word may be
    rarity = torch.tensor([0.25 / (0.25 + counts[0][entry]) for entry in tables[0]])
    rarity[: len(SPECIAL)] = 0.0
    optimizer = torch.optim.Adam(network.parameters(), options.lr)
    num_steps = options.epochs * math.ceil(len(examples) / options.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, num_steps, pct_start=0.1)
    with tqdm(total=num_steps, desc=f"{options.epochs} epochs", unit="batch") as bar:
        for _ in range(options.epochs):
            order.shuffle(examples)
            for start in range(0, len(examples), options.batch_size):
                batch = [
                    forgetful(one, rarity) for one in examples[start : start + options.batch_size]
                ]
                loss = loss_of(network, batch, actions, kind.rule, options.dropout)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
                optimizer.step()
                schedule.step()
                bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
                bar.update()
    directory = options.output or HERE / options.name
    directory.mkdir(parents=True, exist_ok=True)
    config = dict(relations=relations, tables=tables, widths=WIDTHS, hidden_size=HIDDEN_SIZE)
    (directory / "config.json").write_text(json.dumps(config, ensure_ascii=False) + "\n", "utf-8")
    weights = {name: weight.half() for name, weight in network.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    print(f"{directory}: trained on {len(examples)} sentences")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=TREEBANKS, default="ud-ewt")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with ud-ewt/ or ptb/")
    parser.add_argument("--output", type=Path, help="the parser's folder")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16, help="sentences")
    parser.add_argument("--lr", type=float, default=4e-3, help="highest learning rate")
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def example(ids: Tensor, tokens: list[int], actions) -> Example:
    none = len(ids) - 1
    stack, first = [none, none, 0], 1
    words, num_shifts = [], []
    for token in tokens:
        words.append([*stack[-3:], first])
        num_shifts.append(first - 1)
        if actions.moves[token] > 0:
            stack.append(first)
            first += 1
        elif actions.moves[token] < 0:
            stack.pop()
    return Example(ids, *map(torch.tensor, (words, num_shifts, tokens)))


def forgetful(one: Example, rarity: Tensor) -> Example:
    """The example with some words replaced by the unknown word."""
    ids = one.ids.clone()
    ids[torch.rand(len(ids)) < rarity[ids[:, 0]], 0] = 0
    return one._replace(ids=ids)


def loss_of(network: Network, batch: list[Example], actions, legal, dropout: float) -> Tensor:
    """Cross-entropy over legal actions, in nats per action."""
    kinds = torch.tensor(actions.kinds)
    given = torch.cat(network.read([one.ids for one in batch], dropout))  # [n, 4, hidden]
    start, words, is_legal = 0, [], []
    for one in batch:
        words.append(one.words + start)
        start += len(one.ids)
        num_actions = torch.arange(len(one.action))
        num_words = torch.tensor(len(one.ids) - 2)
        is_legal.append(legal(one.num_shifts, num_actions, num_words)[:, kinds])
    hidden = sum(given[place, k] for k, place in enumerate(torch.cat(words).unbind(1)))
    hidden = F.dropout(F.relu(hidden), dropout, network.training)
    logits = network.output(hidden).masked_fill(~torch.cat(is_legal), -torch.inf)
    return F.cross_entropy(logits, torch.cat([one.action for one in batch]))


if __name__ == "__main__":
    main()
