"""Train a small Whisper on verses that two engines speak, on a CPU.

    python -m examples.speech.train_whisper DATA_DIR [OUT_DIR] [--minutes 60] [--words 100]
        [--start DIR]

Run it in the root of the repository. DATA_DIR holds train.en, dev.en and test.en, a verse per line; no
phrase of the last two is trained on. The encoder learns two further tasks by connectionist temporal
classification (Graves et al. 2006): its lower layers to tell phonemes apart, its upper ones to spell, as
in Sanabria and Metze 2018. The layers for that are dropped afterwards. Needs espeak-ng, flite,
transformers and jiwer.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import jiwer
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

import pybeam
from examples.speech.spoken_verses import (
    NUM_KNOWN,
    Clip,
    Recording,
    clips,
    phrases,
    recording,
)
from examples.speech.training_windows import IGNORED, Example, Material, extractor
from examples.speech.whisper_layout import (
    DROPOUT,
    EOS,
    FIRST_TIME,
    NO_TIMES,
    NUM_PIECES,
    NUM_TIMES,
    PRECISION,
    VOCAB_SIZE,
    WINDOW_SECONDS,
    build,
    train_tokenizer,
    write_files,
    write_weights,
)
from pybeam.speech import load_feature_extractor, load_transcription

NUM_CLIPS, MOST_VOICES = 12000, 6  # the latter for one phrase
SIZES = dict(d_model=128, encoder_layers=3, decoder_layers=2, heads=4)
PEAK_RATE, WARMUP = 1.5e-3, 150
SMOOTHING, TIME_DEVIATION = 0.1, 2.0  # of targets; the latter in timestamps
CTC_SHARE = 0.2  # of each of two
LONGEST_UPDATE_SECONDS = 20  # what a pause of the whole program counts
SAVE_SECONDS, REPORT_UPDATES, NUM_CHECKED = 300, 50, 60


class Recogniser(nn.Module):
    """The model, with the two layers that are dropped after training."""

    def __init__(self, num_sounds: int) -> None:
        super().__init__()
        self.whisper = build(**SIZES)
        d = SIZES["d_model"]
        self.spell, self.tell = nn.Linear(d, NUM_PIECES + 1), nn.Linear(d, num_sounds + 1)
        self._spread()
        self.register_buffer("_smooth", smoothed_targets(), persistent=False)

    @torch.no_grad()
    def _spread(self) -> None:
        """Weights so large that every layer matters from the first update on."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.whisper.proj_out:
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, nn.Conv1d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        decoder, places = self.whisper.model.decoder, self.whisper.model.encoder.embed_positions
        d = places.weight.shape[1]
        decoder.embed_tokens.weight.normal_(std=d**-0.5)
        # a timestamp looks like the encoder's position there, so that attention can copy it
        at = places.weight.shape[0] / (NUM_TIMES - 1) * torch.arange(NUM_TIMES)
        near = places.weight[at.long().clamp_max(len(places.weight) - 1)]
        decoder.embed_tokens.weight[FIRST_TIME:] = near / near.norm(dim=1, keepdim=True)

    def start_from(self, directory: Path) -> None:
        """Take the weights of an earlier training; the two layers begin anew."""
        weights = load_file(directory / "model.safetensors")
        missing, extra = self.whisper.load_state_dict(weights, strict=False)
        # the output layer is the table of tokens
        assert missing == ["proj_out.weight"] and not extra, (missing, extra)

    def encode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """States [B, n, d] before and after the last layer, of features [B, E, F] of any E."""
        encoder = self.whisper.model.encoder
        x = F.gelu(encoder.conv1(features.transpose(1, 2)))
        x = F.gelu(encoder.conv2(x)).transpose(1, 2)
        x = F.dropout(x + encoder.embed_positions.weight[: x.shape[1]], DROPOUT, self.training)
        for layer in encoder.layers[:-1]:
            x = layer(x, None)
        return x, encoder.layer_norm(encoder.layers[-1](x, None))

    def loss(self, batch: list[Example], features: Tensor) -> Tensor:
        lower, states = self.encode(features)
        inputs = padded([one.inputs for one in batch], EOS)
        targets = padded([one.targets for one in batch], IGNORED)
        decoder = self.whisper.model.decoder
        hidden = decoder(
            input_ids=inputs, encoder_hidden_states=states, use_cache=False
        ).last_hidden_state
        kept = targets != IGNORED
        log_probs = self.whisper.proj_out(hidden[kept]).float().log_softmax(-1)  # [n, V]
        attention = -(self._smooth[targets[kept]] * log_probs).sum(-1).mean()
        whole = [i for i, one in enumerate(batch) if one.pieces]
        if not whole:
            return attention
        spelled = ctc(self.spell(states[whole]), [batch[i].pieces for i in whole])
        told = ctc(self.tell(lower[whole]), [batch[i].sounds for i in whole])
        return (1 - 2 * CTC_SHARE) * attention + CTC_SHARE * (spelled + told)


def smoothed_targets() -> Tensor:
    """[V, V]: the distribution that a target stands for; a timestamp stands for its neighbours, too."""
    table = (1 - SMOOTHING) * torch.eye(VOCAB_SIZE) + SMOOTHING / VOCAB_SIZE
    place = torch.arange(NUM_TIMES)
    near = (-((place[:, None] - place) / TIME_DEVIATION).square() / 2).exp()
    table[FIRST_TIME:] = 0
    table[FIRST_TIME:, FIRST_TIME:] = near / near.sum(1, keepdim=True)
    return table


def ctc(logits: Tensor, targets: list[list[int]]) -> Tensor:
    """Connectionist temporal classification; the last class is the blank."""
    blank = logits.shape[-1] - 1
    log_probs = logits.float().log_softmax(-1).transpose(0, 1)  # [n, B, classes]
    sizes = torch.full((len(targets),), log_probs.shape[0])
    counts = torch.tensor([len(one) for one in targets])
    flat = torch.tensor([token for one in targets for token in one])
    return F.ctc_loss(log_probs, flat, sizes, counts, blank, zero_infinity=True)


def padded(rows: list[list[int]], value: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


@torch.no_grad()
def alignment_heads(recogniser: Recogniser, material: Material, num: int = 50) -> list[list[int]]:
    """The heads [layer, head] of the decoder that look where a token is spoken, best first.

    Tokens of a phrase are taken to be spoken evenly between its beginning and its end.
    """
    whisper, rng, errors = recogniser.eval().whisper, material.rng, torch.zeros(())
    whisper.config._attn_implementation = "eager"
    for _ in range(num):
        heard = recording([rng.choice(material.clips)], rng, seconds=WINDOW_SECONDS)
        [(start, end, text)] = heard.phrases
        inputs, _ = material.tokens(heard, [], has_times=False)
        _, states = recogniser.encode(extractor(WINDOW_SECONDS)(heard.samples)[None])
        weights = whisper.model.decoder(
            input_ids=torch.tensor([inputs]),
            encoder_hidden_states=states,
            use_cache=False,
            output_attentions=True,
        ).cross_attentions
        weight = torch.cat(weights)  # [layers, heads, T, n]
        at = (weight * torch.arange(weight.shape[-1])).sum(-1) / PRECISION
        count = len(material.encode(text))
        place = start + (torch.arange(count) + 0.5) / count * (end - start)
        # the input before a token looks for it
        first = inputs.index(NO_TIMES)
        errors = errors + (at[..., first : first + count] - place).abs().mean(-1) / num
    whisper.config._attn_implementation = "sdpa"
    recogniser.train()
    best = errors.flatten().argsort()[: errors.numel() // 2]
    print(f"attention is {errors.min():.2f} s from the tokens", flush=True)
    return [[int(i) // errors.shape[1], int(i) % errors.shape[1]] for i in best]


def word_errors(directory: Path, checked: list[Recording]) -> float:
    """Word error rate in percent of greedy search on recordings."""
    asked, extract = load_transcription(directory), load_feature_extractor(directory)
    model, tokenizer = pybeam.load_model(directory), pybeam.load_tokenizer(directory)
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=60, processors=asked.processors))
    requests = [pybeam.Request(extract(one.samples), prefix=asked.prefix) for one in checked]
    found = [tokenizer.decode(one.hypotheses[0].tokens) for one in decoder.decode(requests)]
    for one, text in list(zip(checked, found, strict=True))[:3]:
        print(f"    {one.text!r} -> {text.strip()!r}", flush=True)
    return 100 * jiwer.wer([one.text for one in checked], found)


def train(
    recogniser: Recogniser,
    material: Material,
    checked: list[Recording],
    directory: Path,
    minutes: float,
) -> None:
    recogniser.train()
    weights = [weight for weight in recogniser.parameters() if weight.requires_grad]
    print(f"{sum(w.numel() for w in recogniser.whisper.parameters()):,} weights", flush=True)
    optimizer = torch.optim.AdamW(weights, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    spent, saved, total, updates = 0.0, 0.0, 0.0, 0
    while spent < 60 * minutes:
        start = time.perf_counter()
        progress = spent / (60 * minutes)
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min((updates + 1) / WARMUP, 1.02 - progress)
        loss = recogniser.loss(*material.batch(progress))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        updates, total = updates + 1, total + float(loss.detach())
        spent += min(time.perf_counter() - start, LONGEST_UPDATE_SECONDS)
        if updates % REPORT_UPDATES == 0:
            print(f"{updates:5d} {total / REPORT_UPDATES:.3f} {spent:.0f} s", flush=True)
            total = 0.0
        if spent - saved > SAVE_SECONDS or spent >= 60 * minutes:
            saved = spent
            write_weights(directory, recogniser.whisper)
            print(f"      word error rate {word_errors(directory, checked):.1f} %", flush=True)


def spoken(folder: Path, num_words: int) -> tuple[list[Clip], list[Clip], list[str]]:
    """Clips for training and for checks, and all phrases that may be trained on."""
    read = {
        split: phrases((folder / f"{split}.en").read_text("utf-8").splitlines(), num_words)
        for split in ("train", "dev", "test")
    }
    held_out = {*read["dev"], *read["test"]}
    texts = [text for text in read["train"] if text not in held_out]
    start = time.time()
    random.Random(1).shuffle(texts)
    heard = list(clips((texts * MOST_VOICES)[:NUM_CLIPS], "train", seed=1))
    checked = list(clips(read["dev"][:NUM_CHECKED], "test", seed=2))
    print(
        f"{len(heard)} clips of {len(texts)} phrases after {time.time() - start:.0f} s", flush=True
    )
    return heard, checked, texts


def main() -> None:
    default = Path(__file__).parents[1] / "models" / "spoken-verses-en"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA_DIR")
    parser.add_argument("directory", type=Path, nargs="?", default=default, metavar="OUT_DIR")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--words", type=int, default=NUM_KNOWN, help="that phrases have")
    parser.add_argument("--start", type=Path, help="a model from which the training goes on")
    options = parser.parse_args()
    torch.manual_seed(1)
    heard, checked, texts = spoken(options.data, options.words)
    if options.start is None:
        tokenizer = train_tokenizer(texts)
    else:
        tokenizer = Tokenizer.from_file(str(options.start / "tokenizer.json"))
    write_files(options.directory, tokenizer, build(**SIZES).config)
    rng = random.Random(3)
    lines = [recording([clip], rng, (15.0, 30.0), WINDOW_SECONDS) for clip in checked]
    material = Material(heard, tokenizer, seed=1)
    recogniser = Recogniser(len(material.sound_ids))
    if options.start is not None:
        recogniser.start_from(options.start)
    train(recogniser, material, lines, options.directory, options.minutes)
    heads = alignment_heads(recogniser, material)
    write_files(options.directory, tokenizer, recogniser.whisper.config, heads)


if __name__ == "__main__":
    main()
