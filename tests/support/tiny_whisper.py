"""A tiny random Whisper with all special tokens and timestamps, for recordings longer than its window."""

import json
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import pybeam
from support.speech_models import NUM_FEATURES, WHISPER_LETTERS, save_tiny_speech_model

EOT, SOT, EN, DE, FR, TRANSLATE, TRANSCRIBE, LM, PREVIOUS, NO_SPEECH, NO_STAMPS = range(28, 39)
SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>", "<|translate|>"),
    *("<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
BEGIN = NO_STAMPS + 1
WINDOW = 100  # frames, which are a second
NUM_POSITIONS = 64
STAMPS = tuple(f"<|{i / 50:.2f}|>" for i in range(51))
SPACE = WHISPER_LETTERS.index("Ġ")
# the letters that are no whole character, and the space, are never written
SUPPRESSED = [25, 26, SPACE, *range(SOT, NO_STAMPS)]
CONFIG = dict(
    max_source_positions=50,
    max_target_positions=NUM_POSITIONS,
    vocab_size=BEGIN + len(STAMPS),
    bos_token_id=EOT,
    pad_token_id=EOT,
    eos_token_id=EOT,
    decoder_start_token_id=SOT,
)
GENERATION = dict(
    bos_token_id=EOT,
    pad_token_id=EOT,
    eos_token_id=EOT,
    decoder_start_token_id=SOT,
    is_multilingual=True,
    lang_to_id={"<|en|>": EN, "<|de|>": DE, "<|fr|>": FR},
    task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    no_timestamps_token_id=NO_STAMPS,
    prev_sot_token_id=PREVIOUS,
    suppress_tokens=SUPPRESSED,
    begin_suppress_tokens=[3, EOT],
    max_initial_timestamp_index=30,
)


def save_whisper(
    directory: Path, seed: int = 1, *, eos: float = 0.5, stamps: float = 0.0, **options
) -> transformers.WhisperForConditionalGeneration:
    """Save a whole directory and return the model, with eager attention.

    Args:
        eos, stamps: nats by which the logits of EOS and of all timestamps are raised, so that windows have
            several segments of several letters.
        options: changes of the config.
    """
    model = save_tiny_speech_model(directory, seed, eos, kind="Whisper", **CONFIG | options)
    favour(model, range(BEGIN, model.config.vocab_size), stamps)
    with torch.no_grad():
        # so that texts do not repeat one letter
        model.model.decoder.embed_positions.weight *= 6
    model.save_pretrained(directory)
    save_front(directory, model.config.num_mel_bins)
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    return transformers.WhisperForConditionalGeneration.from_pretrained(directory).eval()


def favour(model, tokens: range, nats: float) -> None:
    """Raise the logits of these tokens in every state."""
    bias = model.model.decoder.layer_norm.bias
    with torch.no_grad():
        model.get_output_embeddings().weight[list(tokens)] += nats * bias / (bias @ bias)


def save_front(directory: Path, num_features: int) -> None:
    """Save the features' settings and a tokenizer of letters."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=num_features, chunk_length=1)
    extractor.save_pretrained(directory)
    letters = {letter: i for i, letter in enumerate(WHISPER_LETTERS)}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(token, special=False) for token in STAMPS])
    tokenizer.save(str(directory / "tokenizer.json"))


def sounds(*lengths: int, seed: int = 0, num_features: int = NUM_FEATURES) -> list[torch.Tensor]:
    """Make features [E, F] of so many frames each."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, num_features, generator=generator) for length in lengths]


OPTIONS = pybeam.TranscriptionOptions(
    max_initial_timestamp=0.6, max_new_tokens=20, temperatures=(0.0, 0.6), best_of=3
)


def transcribed(model, directory: Path, recordings, options=OPTIONS, **more) -> list:
    """Return the transcripts of these recordings."""
    return list(pybeam.Transcriber(model, directory, options, **more).transcribe(recordings))
