"""Train the attentional LSTM of Dong and Lapata 2016 to write logical forms: GEO, ATIS or JOBS.

    python examples/semantic_parsing/train.py geo
    python examples/semantic_parsing/train.py atis --data DIR --epochs 30
    python examples/semantic_parsing/train.py jobs --data .data

DIR holds geo/geography-logic.json, atis/atis-logic.txt or jobs/{train,test}.txt, as `make data` writes
them into .data. It defaults to ../shared/data beside the checkout. The script writes config.json,
tokenizer.json and model.safetensors (float16) into a folder beside itself, or into --output. For ATIS it
also writes names.json, the lexicon of the constants. Then score it, and use it:

    python -m benchmarks parsing --only geo        # four search methods
    echo "what is the capital of var0" | pybeam translate --model examples/semantic_parsing/geo
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from network import Network
from questions import EOS, FILES, START, UNKNOWN, Question, load, vocabulary
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[2] / "shared" / "data"
SIZES = {
    "geo": dict(embedding_size=96, hidden_size=192, num_layers=1),
    "atis": dict(embedding_size=128, hidden_size=256, num_layers=1),
    "jobs": dict(embedding_size=96, hidden_size=192, num_layers=1),
}
TRAINING = {
    "geo": dict(epochs=60, batch_size=20, lr=4e-3, dropout=0.4),
    "atis": dict(epochs=20, batch_size=20, lr=4e-3, dropout=0.4),
    "jobs": dict(epochs=60, batch_size=20, lr=4e-3, dropout=0.4),
}
PADDING = -100


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    order = random.Random(options.seed)
    train, test, lexicon = load(options.name, options.data)
    tokens, num_targets = vocabulary(train)
    sizes = dict(source_vocab_size=len(tokens), vocab_size=num_targets, **SIZES[options.name])
    network = Network(**sizes, dropout=options.dropout)
    examples = [encoded(question, tokens) for question in train]
    optimizer = torch.optim.Adam(network.parameters(), options.lr)
    num_steps = options.epochs * math.ceil(len(examples) / options.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, num_steps, pct_start=0.1)
    with tqdm(
        total=num_steps, desc=f"{options.name}, {options.epochs} epochs", unit="batch"
    ) as bar:
        for _ in range(options.epochs):
            for batch in batches(examples, options.batch_size, order):
                loss = loss_of(network, batch)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
                optimizer.step()
                schedule.step()
                bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
                bar.update()
    directory = options.output or HERE / options.name
    save(network, sizes, tokens, directory)
    if lexicon:
        lexicon.save(directory / "names.json")
    network.eval()
    with torch.inference_mode():
        known = [encoded(q, tokens) for q in test if set(q.form) <= set(tokens[:num_targets])]
        loss = sum(loss_of(network, [one]).item() for one in known) / len(known)
    print(f"{directory}: {loss:.3f} nats per token of {len(known)} test forms")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=FILES)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with geo/, atis/ or jobs/")
    parser.add_argument("--output", type=Path, help="the model's folder")
    for name, meaning in (
        ("epochs", "passes over the training questions"),
        ("batch_size", "questions of a step"),
        ("lr", "highest learning rate"),
        ("dropout", "share of numbers that are zeroed"),
    ):
        kind = type(TRAINING["geo"][name])
        values = ", ".join(f"{settings[name]:g} for {of}" for of, settings in TRAINING.items())
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, help=f"{meaning} (default: {values})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    given = {name: value for name, value in vars(options).items() if value is not None}
    return argparse.Namespace(**{**vars(options), **TRAINING[options.name], **given})


def encoded(question: Question, tokens: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return source ids with EOS, in the encoder's reading order, and target ids from START to EOS."""
    number = {token: i for i, token in enumerate(tokens)}
    source = [number.get(word, number[UNKNOWN]) for word in [*question.text, EOS]]
    target = [number.get(token, number[UNKNOWN]) for token in [START, *question.form, EOS]]
    return torch.tensor(source[::-1]), torch.tensor(target)


def batches(examples: list, size: int, order: random.Random):
    """Split the examples into batches of similar target length."""
    ranked = sorted(examples, key=lambda example: len(example[1]) + order.random() * 4)
    found = [ranked[i : i + size] for i in range(0, len(ranked), size)]
    order.shuffle(found)
    return found


def loss_of(network: Network, batch: list) -> torch.Tensor:
    """Cross-entropy in nats per token."""
    sources, targets = zip(*batch, strict=True)
    length = torch.tensor([source.numel() for source in sources])
    read = pad_sequence([target[:-1] for target in targets], batch_first=True)
    written = pad_sequence([target[1:] for target in targets], True, PADDING)
    logits = network(pad_sequence(list(sources), batch_first=True), length, read)
    return F.cross_entropy(logits.flatten(0, 1), written.flatten(), ignore_index=PADDING)


def save(network: Network, sizes: dict[str, int], tokens: list[str], directory: Path) -> None:
    """Write what `pybeam.load_model` and `pybeam.load_tokenizer` read."""
    directory.mkdir(parents=True, exist_ok=True)
    ids = {"decoder_start_token_id": tokens.index(START), "eos_token_id": tokens.index(EOS)}
    config = {"model_type": "attentional_lstm", **sizes, "reverses_source": True, **ids}
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    words = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([START, EOS])
    words.save(str(directory / "tokenizer.json"))
    weights = {name: weight.half() for name, weight in network.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
