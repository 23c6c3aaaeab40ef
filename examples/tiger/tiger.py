"""A small TIGER: recommend the next item of a session, by the codes of items.

    make data
    python examples/tiger/tiger.py

As in Rajput et al. 2023, an item is a few codes, near to each other for items that are alike, and an
encoder-decoder writes the codes of the next item behind those of a session's last ones. Nobody's sessions are
among the data, so they are made of it. Items are the English verses, as rare words in 64 dimensions (tf-idf,
then a singular value decomposition). A session is a walk: a reader goes from a verse to one of the five that
are nearest to it, to the nearest ones more often. Codes come from k-means in a tree: 16 groups, 16 in each of
them, 16 in each of those, and a number for the verses that are left together. The network has the layout of
Marian in a tiny size, is trained in torch within minutes, and is saved as `pybeam.load_model` reads it. Then
walks that it has not seen, from verses at which no walk of its training begins, are continued, with beams of
several widths over a catalogue of all verses; recall@10 says how often the verse that came next is among the
ten that are found.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers

import pybeam
from pybeam.catalogue import allowed_items

ROOT = Path(__file__).parents[2]
# what `make data` writes, and a folder that may stand beside the checkout
FOLDERS = ROOT / ".data" / "bible-es-en", ROOT.parent / "shared" / "data" / "bible-es-en"
CODES, DEPTH = 16, 4
START, PAD, EOS, FIRST = 0, 1, 2, 3
HISTORY, NEIGHBOURS = 6, 5
BATCH = 128
WALKS = 10  # from every verse, to train on
DIMENSIONS, MOST_WORDS = 64, 4000
WIDTHS = 1, 4, 16, 64, 128, 512
MOST = 10


def vectors_of(verses: list[str]) -> torch.Tensor:
    """Describe verses by numbers [n, DIMENSIONS]: tf-idf of words, reduced."""
    words = [Counter(re.findall(r"\w+", verse.lower())) for verse in verses]
    number = Counter(word for own in words for word in own)
    vocabulary = {word: i for i, (word, _) in enumerate(number.most_common(MOST_WORDS))}
    places, values = [], []
    for i, own in enumerate(words):
        for word, times in own.items():
            if word in vocabulary:
                places.append((i, vocabulary[word]))
                values.append((1 + np.log(times)) * np.log(len(verses) / number[word]))
    size = (len(verses), len(vocabulary))
    matrix = torch.sparse_coo_tensor(torch.tensor(places).T, torch.tensor(values).float(), size)
    left, singular, _ = torch.svd_lowrank(matrix.coalesce(), DIMENSIONS, niter=3)
    return torch.nn.functional.normalize(left * singular, dim=1)


def groups_of(vectors: torch.Tensor, num: int, rounds: int = 8) -> torch.Tensor:
    """The group [n] of every vector, by k-means."""
    if len(vectors) <= num:
        return torch.arange(len(vectors))
    centre = vectors[torch.randperm(len(vectors))[:num]]
    for _ in range(rounds):
        group = torch.cdist(vectors, centre).argmin(1)
        total = torch.zeros_like(centre).index_add_(0, group, vectors)
        size = torch.bincount(group, minlength=num)[:, None]
        centre = torch.where(size > 0, total / size.clamp(min=1), centre)
    return torch.cdist(vectors, centre).argmin(1)


def codes_of(vectors: torch.Tensor) -> torch.Tensor:
    """The codes [n, DEPTH] of all items, no two of which are equal."""
    codes = torch.zeros(len(vectors), DEPTH, dtype=torch.long)
    classes = torch.zeros(len(vectors), dtype=torch.long)
    for depth in range(DEPTH - 1):
        for one in classes.unique():
            own = (classes == one).nonzero()[:, 0]
            codes[own, depth] = groups_of(vectors[own], CODES)
        classes = classes * CODES + codes[:, depth]
    for one in classes.unique():
        own = (classes == one).nonzero()[:, 0]
        codes[own, DEPTH - 1] = torch.arange(len(own))
    return codes


def tokens_of(codes: torch.Tensor) -> torch.Tensor:
    """Token ids of codes [n, DEPTH]; every depth has its own."""
    offset = torch.tensor([FIRST + depth * CODES for depth in range(DEPTH)])
    return codes + offset


def walks(nearest: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Walk on from these verses: [n, HISTORY + 1]."""
    share = 1 / torch.arange(1.0, nearest.shape[1] + 1)
    places = [start]
    for _ in range(HISTORY):
        chosen = torch.multinomial(share, len(start), replacement=True)
        places.append(nearest[places[-1], chosen])
    return torch.stack(places, 1)


def nearest_of(vectors: torch.Tensor) -> torch.Tensor:
    """The verses [n, NEIGHBOURS] that are nearest to each, without itself."""
    found = []
    for part in vectors.split(1024):
        alike = part @ vectors.T
        found.append(alike.topk(NEIGHBOURS + 1).indices)
    nearest, own = torch.cat(found), torch.arange(len(vectors))[:, None]
    # equal verses may come before the verse itself
    order = (nearest == own).int().argsort(dim=1, stable=True)
    return nearest.gather(1, order)[:, :NEIGHBOURS]


def inputs_of(items: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of all verses of walks but the last, and those of the last."""
    source = items[places[:, :-1]].flatten(1)
    end = torch.full((len(source), 1), EOS)
    return torch.cat((source, end), 1), items[places[:, -1]]


def network(vocab_size: int) -> transformers.MarianMTModel:
    config = transformers.MarianConfig(
        vocab_size=vocab_size,
        d_model=96,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_position_embeddings=HISTORY * DEPTH + 8,
        dropout=0.1,
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
    )
    return transformers.MarianMTModel(config)


def train(
    model: transformers.MarianMTModel, source: torch.Tensor, target: torch.Tensor, minutes: float
) -> int:
    """Train on sources [n, S] and targets [n, DEPTH] for so long; returns the number of steps."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    start = torch.full((len(target), 1), START)
    inputs = torch.cat((start, target[:, :-1]), 1)
    end, steps = time.perf_counter() + 60 * minutes, 0
    model.train()
    while time.perf_counter() < end:
        own = torch.randint(len(source), (BATCH,))
        share = 1 - (end - time.perf_counter()) / (60 * minutes)
        optimiser.param_groups[0]["lr"] = 2e-3 * min(1.0, 10 * share) * (1 - share)
        logits = model(input_ids=source[own], decoder_input_ids=inputs[own]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[own].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps += 1
        if steps % 200 == 0:
            print(f"step {steps}: loss {loss.item():.3f}", flush=True)
    return steps


class Trained(NamedTuple):
    """A network that was trained, its catalogue, and sessions that it has not seen."""

    model: pybeam.Model
    catalogue: pybeam.Catalogue
    sessions: list[list[int]]
    right: list[int]  # the items that came next


def trained(folder: Path, minutes: float, num_sessions: int, output: Path) -> Trained:
    """Make items and walks of the verses in a folder, train on them, and save the network in `output`."""
    torch.manual_seed(0)
    verses = (folder / "train.en").read_text("utf-8").splitlines()
    start = time.perf_counter()
    vectors = vectors_of(verses)
    items = tokens_of(codes_of(vectors))
    catalogue = pybeam.Catalogue.build(items)
    print(f"{catalogue}, made of verses in {time.perf_counter() - start:.1f} s", flush=True)

    order = torch.randperm(len(verses))
    held, seen = order[:num_sessions], order[num_sessions:]
    nearest = nearest_of(vectors)
    source, target = inputs_of(items, walks(nearest, seen.repeat(WALKS)))
    model = network(int(items.max()) + 1)
    steps = train(model, source, target, minutes)
    model.eval().save_pretrained(output)
    size = sum(weight.numel() for weight in model.parameters())
    print(f"{steps} steps, {size / 1e6:.2f} million weights in {output}\n")

    places = walks(nearest, held)
    sessions, right = inputs_of(items, places)[0].tolist(), places[:, -1].tolist()
    return Trained(pybeam.load_model(output), catalogue, sessions, right)


def recommended(own: Trained, width: int) -> list[list[int]]:
    """The items that a search of this width finds for every session, best first."""
    search = pybeam.fixed_beam(
        width,
        n_best=min(width, MOST),
        max_length=DEPTH,
        processors=[allowed_items(own.catalogue)],
    )
    results = pybeam.Decoder(own.model, search, pybeam.Fifo(16)).decode(own.sessions)
    return [[item for h in result.hypotheses for item in h.items] for result in results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="default: what `make data` wrote")
    parser.add_argument("--minutes", type=float, default=4.0, help="to train for")
    parser.add_argument("--sessions", type=int, default=500, help="to continue in the end")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "tiger", help="for weights")
    options = parser.parse_args()
    folder = options.data or next((path for path in FOLDERS if path.is_dir()), FOLDERS[0])
    if not folder.is_dir():
        parser.error(f"there is no {folder}; run `make data`, or name a folder with --data")
    own = trained(folder, options.minutes, options.sessions, options.output)
    print(f"{'':12} {'recall@1':>9} {'recall@10':>9} {'ms/session':>11}")
    for width in options.widths:
        start = time.perf_counter()
        lists = recommended(own, width)
        ms = 1000 * (time.perf_counter() - start) / len(lists)
        first = np.mean([found[:1] == [one] for found, one in zip(lists, own.right, strict=True)])
        among = np.mean([one in found for found, one in zip(lists, own.right, strict=True)])
        print(f"width {width:<6} {first:9.1%} {among:9.1%} {ms:11.2f}", flush=True)


if __name__ == "__main__":
    main()
