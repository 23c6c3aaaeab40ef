"""Whisper models as faster-whisper loads them, converted for CTranslate2."""

import shutil
from pathlib import Path

import transformers
from tokenizers import Tokenizer


def convert(
    model: transformers.WhisperForConditionalGeneration, directory: Path, target: Path
) -> None:
    """Write the model of a directory, in float32, with the files that faster-whisper reads beside it."""
    from ctranslate2.converters.transformers import WhisperLoader

    loader = WhisperLoader()
    spec = loader.get_model_spec(model)
    loader.set_config(spec.config, model, None)
    known = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()
    spec.register_vocabulary(sorted(known, key=known.get))
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(target))
    for name in ("tokenizer.json", "preprocessor_config.json"):
        shutil.copy(directory / name, target / name)
