"""Train a small speech recogniser of spoken numbers: `python train.py [OUT_DIR]`.

A Speech2Text transformer learns from recordings that espeak-ng synthesises, in minutes on one CPU core.
Its encoder also learns to spell, by connectionist temporal classification (Graves et al. 2006). Both are
trained together, as in Watanabe et al. 2017. The spelling layer is dropped afterwards. Needs transformers.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from spoken_numbers import RATE, WORDS, recordings
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

from pybeam.speech import FeatureExtractor

NUM_RECORDINGS, NUM_UPDATES, BATCH = 2000, 2000, 32
PEAK_RATE, WARMUP, CTC_SHARE, SMOOTHING = 3e-3, 100, 0.3, 0.1
START, PAD, EOS, UNK = range(4)
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
NUM_MEL_BINS = 40


def build() -> Speech2TextForConditionalGeneration:
    config = Speech2TextConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        dropout=0.1,
        activation_function="relu",
        num_conv_layers=3,
        conv_kernel_sizes=(5, 5, 5),
        conv_channels=64,
        input_feat_per_channel=NUM_MEL_BINS,
        max_source_positions=256,
        max_target_positions=64,
        bos_token_id=START,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
    )
    return Speech2TextForConditionalGeneration(config)


def load(extract: FeatureExtractor) -> list[tuple[torch.Tensor, list[int]]]:
    ids = {word: len(SPECIAL) + i for i, word in enumerate(WORDS)}
    return [
        (extract(samples), [ids[word] for word in text.split()])
        for samples, text in recordings("train", NUM_RECORDINGS, seed=1)
    ]


def masked(features: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Hide a stretch of time and a band of frequencies (SpecAugment, Park et al. 2019)."""
    features = features.clone()
    for size, most, hide in ((len(features), 20, 0), (NUM_MEL_BINS, 8, 1)):
        width = rng.randint(0, most)
        start = rng.randint(0, max(0, size - width))
        features.narrow(hide, start, min(width, size - start)).zero_()
    return features


def loss_of(model, spell, batch, rng) -> torch.Tensor:
    features = torch.nn.utils.rnn.pad_sequence(
        [masked(one, rng) for one, _ in batch], batch_first=True
    )
    lengths = torch.tensor([len(one) for one, _ in batch])
    mask = (torch.arange(features.shape[1]) < lengths[:, None]).long()  # [B, E]
    most = 1 + max(len(words) for _, words in batch)
    target = torch.full((len(batch), most), PAD)
    for line, (_, words) in zip(target, batch, strict=True):
        line[: len(words) + 1] = torch.tensor([*words, EOS])
    shifted = torch.cat((torch.full((len(batch), 1), EOS), target[:, :-1]), 1)
    out = model(input_features=features, attention_mask=mask, decoder_input_ids=shifted)
    loss = F.cross_entropy(
        out.logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
    )
    log_probs = spell(out.encoder_last_hidden_state).log_softmax(-1).transpose(0, 1)
    sizes = model._get_feat_extract_output_lengths(lengths)
    words = torch.tensor([word for _, words in batch for word in words])
    counts = torch.tensor([len(words) for _, words in batch])
    ctc = F.ctc_loss(log_probs, words, sizes, counts, blank=PAD, zero_infinity=True)
    return (1 - CTC_SHARE) * loss + CTC_SHARE * ctc


def save(model, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    weights = {k: v.half().contiguous() for k, v in model.state_dict().items()}
    del weights["lm_head.weight"]  # the same as the token table
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(directory)
    extractor = {
        "feature_extractor_type": "Speech2TextFeatureExtractor",
        "num_mel_bins": NUM_MEL_BINS,
        "sampling_rate": RATE,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(extractor, indent=2) + "\n")
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))


def main(directory: Path) -> None:
    torch.manual_seed(1)
    rng = random.Random(1)
    start = time.time()
    data = load(FeatureExtractor(NUM_MEL_BINS, RATE))
    print(f"{len(data)} recordings after {time.time() - start:.0f} s", flush=True)
    model = build().train()
    spell = torch.nn.Linear(model.config.d_model, model.config.vocab_size)
    weights = [*model.parameters(), *spell.parameters()]
    print(f"{sum(w.numel() for w in model.parameters()):,} weights", flush=True)
    optimizer = torch.optim.AdamW(weights, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min(
            (i + 1) / WARMUP, (1 - i / NUM_UPDATES) * NUM_UPDATES / (NUM_UPDATES - WARMUP)
        ),
    )
    total = 0.0
    for i in range(NUM_UPDATES):
        # recordings of similar length need little padding
        some = sorted(rng.sample(data, 4 * BATCH), key=lambda pair: len(pair[0]))
        first = rng.randrange(4) * BATCH
        loss = loss_of(model, spell, some[first : first + BATCH], rng)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        total += float(loss.detach())
        if (i + 1) % 100 == 0:
            print(f"{i + 1:5d} {total / 100:.3f} {time.time() - start:.0f} s", flush=True)
            total = 0.0
            save(model, directory)


if __name__ == "__main__":
    default = Path(__file__).parents[1] / "models" / "spoken-numbers-en"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
