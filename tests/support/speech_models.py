"""Tiny random speech models, features to feed them, and sounds."""

import json
import random
import wave
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from support.tiny_models import favour_eos

NUM_FEATURES = 6
VOCAB = 19
CONFIG = dict(
    vocab_size=VOCAB,
    d_model=24,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=4,
    encoder_ffn_dim=40,
    decoder_ffn_dim=56,
    max_target_positions=40,
)
SPEECH2TEXT = CONFIG | dict(
    num_conv_layers=3,
    conv_kernel_sizes=[5, 3, 7],
    conv_channels=10,
    input_feat_per_channel=NUM_FEATURES,
    max_source_positions=30,
)
WHISPER = CONFIG | dict(
    num_mel_bins=NUM_FEATURES,
    max_source_positions=50,
    vocab_size=40,
    bos_token_id=28,
    pad_token_id=28,
    eos_token_id=28,
    decoder_start_token_id=29,
)
CONFIGS = {"Speech2Text": SPEECH2TEXT, "Whisper": WHISPER}
WHISPER_LETTERS = "abcdefghijklmnopqrstuvwxyÃ©Ġ"  # as byte-level BPE writes them, ids from 0
WHISPER_SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>"),
    *("<|transcribe|>", "<|notimestamps|>"),
)
WHISPER_TIMESTAMPS = tuple(f"<|{i / 50:.2f}|>" for i in range(5))
WHISPER_GENERATION = dict(
    is_multilingual=True,
    lang_to_id={"<|en|>": 30, "<|de|>": 31},
    task_to_id={"translate": 32, "transcribe": 33},
    no_timestamps_token_id=34,
    suppress_tokens=[5, 11, *range(30, 40)],
    begin_suppress_tokens=[27, 28],
)


def save_tiny_speech_model(
    directory: Path, seed: int = 0, eos_nats: float = 0.0, *, kind: str = "Speech2Text", **options
) -> transformers.PreTrainedModel:
    """Save a model with random weights as `save_pretrained` does and return the original.

    `eos_nats` raises the logits of EOS. `kind` is "Speech2Text" or "Whisper".
    """
    options = CONFIGS[kind] | options
    config = getattr(transformers, f"{kind}Config")(**options)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name == "model.encoder.embed_positions.weight":
                continue  # sinusoidal positions follow from a formula
            mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            weight.copy_(mean + 0.3 * torch.randn(weight.shape, generator=generator))
    favour_eos(model, eos_nats)
    model.save_pretrained(directory)
    return model


def save_tiny_whisper(
    directory: Path, seed: int = 2, eos_nats: float = 2.5, **options
) -> transformers.WhisperForConditionalGeneration:
    """Save a whole directory: a model for sources of one second, and a tokenizer of letters."""
    save_tiny_speech_model(directory, seed, eos_nats, kind="Whisper", **options)
    ids = {name: token for name, token in WHISPER.items() if name.endswith("_id")}
    (directory / "generation_config.json").write_text(json.dumps(ids | WHISPER_GENERATION))
    model = transformers.WhisperForConditionalGeneration.from_pretrained(directory).eval()
    extractor = transformers.WhisperFeatureExtractor(feature_size=NUM_FEATURES, chunk_length=1)
    extractor.save_pretrained(directory)
    letters = {letter: i for i, letter in enumerate(WHISPER_LETTERS)}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(WHISPER_SPECIAL))
    # not marked as special, as in Whisper's own files
    tokenizer.add_tokens([AddedToken(token, special=False) for token in WHISPER_TIMESTAMPS])
    tokenizer.save(str(directory / "tokenizer.json"))
    return model


def random_features(
    num: int, seed: int = 0, longest: int = 90, *, num_features: int = NUM_FEATURES
) -> list[torch.Tensor]:
    """Make sources [E, F] of many lengths, 1 among them."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lengths = [1, 9, 8, *(rng.randint(1, longest) for _ in range(num))][:num]
    return [torch.randn(length, num_features, generator=generator) for length in lengths]


def write_wav(
    path: Path, samples: np.ndarray, rate: int, *, channels: int = 1, width: int = 2
) -> None:
    """Write integers as PCM samples of so many bytes each."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.astype(f"<i{width}").tobytes())


def tone(num: int, seed: int) -> np.ndarray:
    """Make a 16-bit sine with noise."""
    rng = np.random.default_rng(seed)
    sine = 8000 * np.sin(np.arange(num) * rng.uniform(0.05, 0.8))
    return np.clip(sine + 1000 * rng.standard_normal(num), -32768, 32767).astype(np.int16)
