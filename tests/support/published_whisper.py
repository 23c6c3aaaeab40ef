"""A random Whisper with the tokens, positions and windows of the published models, of few units."""

import json
from pathlib import Path

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from support.speech_models import save_tiny_speech_model
from support.tiny_whisper import favour

NUM_TEXT, NUM_ENGLISH_TEXT = 50257, 50256
# all but Cantonese, which came with the third large one
CODES = list(LANGUAGES)[:99]
SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in CODES)),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"),
    *("<|nospeech|>", "<|notimestamps|>"),
)
STAMPS = tuple(f"<|{i / 50:.2f}|>" for i in range(1501))
SYMBOLS = '"#()*+/:;<=>@[\\]^_`{|}~'


def save_published(
    directory: Path, seed: int = 1, *, eos: float = 5.0, stamps: float = -3.0, english: bool = False
) -> transformers.WhisperForConditionalGeneration:
    """Save a whole directory and return the model, with eager attention.

    Args:
        eos, stamps: nats by which the logits of EOS and of all timestamps are raised.
        english: whether the model knows English alone.
    """
    num_text = NUM_ENGLISH_TEXT if english else NUM_TEXT
    ids = {token: num_text + i for i, token in enumerate((*SPECIAL, *STAMPS))}
    end, first_stamp = ids["<|endoftext|>"], ids["<|0.00|>"]
    named = dict(
        bos_token_id=end,
        pad_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=ids["<|startoftranscript|>"],
    )
    model = save_tiny_speech_model(
        directory,
        seed,
        eos,
        kind="Whisper",
        # the converter takes one number of heads and of inner units for both stacks
        decoder_attention_heads=2,
        decoder_ffn_dim=40,
        num_mel_bins=80,
        max_source_positions=1500,
        max_target_positions=448,
        vocab_size=num_text + len(SPECIAL) + len(STAMPS),
        **named,
    )
    favour(model, range(first_stamp, model.config.vocab_size), stamps)
    # so that texts do not repeat one word
    model.model.decoder.embed_positions.weight.data *= 6
    model.save_pretrained(directory)
    transformers.WhisperFeatureExtractor().save_pretrained(directory)
    tokenizer = tokenizer_of(num_text)
    tokenizer.save(str(directory / "tokenizer.json"))
    symbols = [tokenizer.token_to_id(symbol) for symbol in SYMBOLS]
    settings = named | dict(
        is_multilingual=not english,
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        suppress_tokens=[*symbols, *range(end + 1, first_stamp - 1)],
        begin_suppress_tokens=[tokenizer.token_to_id("Ġ"), end],
        alignment_heads=[[0, 1], [1, 0]],
    )
    if not english:
        settings["lang_to_id"] = {f"<|{code}|>": ids[f"<|{code}|>"] for code in CODES}
        settings["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("translate", "transcribe")}
    (directory / "generation_config.json").write_text(json.dumps(settings))
    return transformers.WhisperForConditionalGeneration.from_pretrained(directory).eval()


def tokenizer_of(num_text: int) -> Tokenizer:
    """Return a tokenizer of all bytes and of made-up words, every second one behind a space."""
    known = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for i in range(len(known), num_text):
        known["Ġ" * (i % 2) + f"w{i}"] = i
    if num_text == NUM_TEXT:
        # the one that models of English alone do not have
        known[""] = known.pop(f"w{num_text - 1}")
    tokenizer = Tokenizer(models.BPE(known, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(token, special=False) for token in STAMPS])
    return tokenizer
