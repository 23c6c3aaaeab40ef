"""Whisper networks with random weights, and all that stands around them, for every system."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import tokenizers
import torch
import transformers

import pybeam
from benchmarks.setup import Setup

VOCAB_SIZE = 51865
# ids of tokens that systems look for by name
NAMES = {
    50257: "<|endoftext|>",
    50258: "<|startoftranscript|>",
    50259: "<|en|>",
    50358: "<|translate|>",
    50359: "<|transcribe|>",
    50360: "<|startoflm|>",
    50361: "<|startofprev|>",
    50362: "<|nospeech|>",
    50363: "<|notimestamps|>",
}
END, START, *TASK = 50257, 50258, 50259, 50359, 50363
GENERATION = dict(
    decoder_start_token_id=START,
    eos_token_id=END,
    is_multilingual=True,
    lang_to_id={"<|en|>": 50259},
    task_to_id={"translate": 50358, "transcribe": 50359},
    no_timestamps_token_id=50363,
    prev_sot_token_id=50361,
    suppress_tokens=[],
    begin_suppress_tokens=[],
)


class Shape(NamedTuple):
    """The sizes of a Whisper."""

    hidden_size: int
    num_layers: int
    num_heads: int
    inner_size: int


SHAPES = {"tiny": Shape(384, 4, 6, 1536), "base": Shape(512, 6, 8, 2048)}
DRY = Shape(64, 1, 1, 128)


class Whisper:
    """One network with random weights, for every system."""

    def __init__(self, setup: Setup, name: str) -> None:
        self._setup, self._name = setup, name
        self.shape = DRY if setup.is_tiny else SHAPES[name]

    @cached_property
    def directory(self) -> Path:
        torch.manual_seed(0)
        size, layers, heads, inner = self.shape
        of_stack = dict(layers=layers, attention_heads=heads, ffn_dim=inner)
        config = transformers.WhisperConfig(
            vocab_size=VOCAB_SIZE,
            d_model=size,
            **{f"{stack}_{k}": n for k, n in of_stack.items() for stack in ("encoder", "decoder")},
            decoder_start_token_id=START,
            **{f"{name}_token_id": END for name in ("pad", "bos", "eos")},
        )
        network = transformers.WhisperForConditionalGeneration(config).half().float()
        directory = self._setup.folder / f"whisper-{self._name}"
        network.save_pretrained(directory)
        (directory / "generation_config.json").write_text(json.dumps(GENERATION))
        save_front(directory)
        return directory

    def loaded(self, dtype: str, **more) -> pybeam.Model:
        return pybeam.load_model(self.directory, device="cpu", dtype=dtype, **more)

    @cached_property
    def converted_directory(self) -> Path:
        """That of CTranslate2's model, which its converter's own loader specifies."""
        from ctranslate2.converters.transformers import WhisperLoader

        # the loader takes the layers out of the network
        network = transformers.WhisperForConditionalGeneration.from_pretrained(self.directory)
        with torch.no_grad():
            spec = WhisperLoader().get_model_spec(network)
        words = [NAMES.get(i, f"<{i}>") for i in range(VOCAB_SIZE)]
        # by this word CTranslate2 knows a model of several languages
        words[END - 1] = ""
        spec.register_vocabulary(words)
        spec.config.suppress_ids = spec.config.suppress_ids_begin = []
        spec.config.lang_ids, spec.config.alignment_heads = TASK[:1], [(0, 0)]
        spec.validate()
        spec.optimize(quantization=None)
        directory = self._setup.folder / f"whisper-{self._name}-ctranslate2"
        directory.mkdir()
        spec.save(str(directory))
        save_front(directory)
        return directory

    def converted(self, dtype: str):
        import ctranslate2

        return ctranslate2.models.Whisper(
            str(self.converted_directory),
            device="cpu",
            intra_threads=self._setup.threads,
            compute_type=dtype,
        )


def save_front(directory: Path) -> None:
    """Save the settings of features, and a tokenizer whose tokens are words."""
    transformers.WhisperFeatureExtractor().save_pretrained(directory)
    words = [f"Ġw{i}" if i < END else NAMES.get(i, f"<{i}>") for i in range(VOCAB_SIZE)]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(NAMES.values()))
    tokenizer.save(str(directory / "tokenizer.json"))
