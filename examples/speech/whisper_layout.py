"""The files of a Whisper model beside its weights: tokenizer, configurations, features."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import WhisperConfig, WhisperForConditionalGeneration

NUM_PIECES = 512
WINDOW_SECONDS = 10
PRECISION = 50  # timestamps of a second
# ids from NUM_PIECES on, in Whisper's order
SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
EOS, START, ENGLISH, _, TRANSCRIBE, _, PREVIOUS, NO_SPEECH, NO_TIMES = range(
    NUM_PIECES, NUM_PIECES + len(SPECIAL)
)
FIRST_TIME = NO_TIMES + 1
NUM_TIMES = WINDOW_SECONDS * PRECISION + 1
VOCAB_SIZE = FIRST_TIME + NUM_TIMES
MAX_TOKENS = 192
DROPOUT = 0.0
LATEST_START_SECONDS = 1.0


def time_token(seconds: float) -> int:
    """The token of a point in time within the window."""
    return FIRST_TIME + min(round(seconds * PRECISION), NUM_TIMES - 1)


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Byte-level BPE, then Whisper's special tokens and its timestamps, which are not marked as special.

    Raises:
        ValueError: the texts have too few words for so many pieces.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_PIECES, initial_alphabet=alphabet, show_progress=False
    )
    # a phrase begins with a space, as in Whisper's outputs
    tokenizer.train_from_iterator((" " + text for text in texts), trainer)
    if (num := tokenizer.get_vocab_size()) < NUM_PIECES:
        raise ValueError(
            f"the texts give {num} pieces, and {NUM_PIECES} are needed; take more words (--words), or the "
            f"tokenizer of an earlier training (--start)"
        )
    tokenizer.add_special_tokens(list(SPECIAL))
    times = (f"<|{i / PRECISION:.2f}|>" for i in range(NUM_TIMES))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in times])
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def build(d_model: int, encoder_layers: int, decoder_layers: int, heads: int):
    """A model with random weights."""
    config = WhisperConfig(
        vocab_size=VOCAB_SIZE,
        num_mel_bins=80,
        d_model=d_model,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * d_model,
        decoder_ffn_dim=4 * d_model,
        dropout=DROPOUT,
        max_source_positions=WINDOW_SECONDS * PRECISION,
        max_target_positions=MAX_TOKENS,
        bos_token_id=EOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
        decoder_start_token_id=START,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return WhisperForConditionalGeneration(config)


def write_files(
    directory: Path,
    tokenizer: Tokenizer,
    config: WhisperConfig,
    alignment_heads: Sequence[Sequence[int]] = (),
) -> None:
    """Write all files but the weights."""
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    end = SPECIAL[0]
    names = {f"{name}_token": end for name in ("bos", "eos", "pad", "unk")}
    _write(directory / "tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer"} | names)
    extractor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": config.num_mel_bins,
        "sampling_rate": 16000,
        "n_fft": 400,
        "hop_length": 160,
        "chunk_length": WINDOW_SECONDS,
        "n_samples": 16000 * WINDOW_SECONDS,
        "nb_max_frames": 100 * WINDOW_SECONDS,
    }
    _write(directory / "preprocessor_config.json", extractor)
    generation = {
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "decoder_start_token_id": START,
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": ENGLISH},
        "language": "en",
        "task_to_id": {"transcribe": TRANSCRIBE},
        "task": "transcribe",
        "no_timestamps_token_id": NO_TIMES,
        "prev_sot_token_id": PREVIOUS,
        "max_initial_timestamp_index": round(LATEST_START_SECONDS * PRECISION),
        "max_length": MAX_TOKENS,
        "return_timestamps": False,
        "suppress_tokens": list(range(START, NO_TIMES)),
        "begin_suppress_tokens": [tokenizer.token_to_id("Ġ")],
    }
    if alignment_heads:
        generation["alignment_heads"] = alignment_heads
    _write(directory / "generation_config.json", generation)


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_weights(directory: Path, model: WhisperForConditionalGeneration) -> None:
    """Write the weights in float16; an unfinished file never has the name."""
    weights = {k: v.to(torch.float16).contiguous() for k, v in model.state_dict().items()}
    del weights["proj_out.weight"]  # the same as the token table
    unfinished = directory / "model.safetensors.part"
    save_file(weights, unfinished, {"format": "pt"})
    unfinished.replace(directory / "model.safetensors")
