"""The files that are taken from repositories as they are published."""

import pytest

from pybeam.hub.needed import SETTINGS, matching, weights_among

# by the name of a repository: what is taken from it, and what is left there
PUBLISHED = {
    "Helsinki-NLP/opus-mt-es-en": (
        "config.json generation_config.json pytorch_model.bin source.spm target.spm "
        "tokenizer_config.json vocab.json",
        ".gitattributes README.md metadata.json tf_model.h5",
    ),
    "facebook/nllb-200-distilled-600M": (
        "config.json generation_config.json pytorch_model.bin sentencepiece.bpe.model "
        "special_tokens_map.json tokenizer.json tokenizer_config.json",
        ".gitattributes README.md",
    ),
    "facebook/wmt19-en-ru": (
        "config.json generation_config.json merges.txt pytorch_model.bin tokenizer_config.json "
        "vocab-src.json vocab-tgt.json",
        ".gitattributes README.md",
    ),
    "openai/whisper-tiny": (
        "added_tokens.json config.json generation_config.json merges.txt model.safetensors "
        "normalizer.json preprocessor_config.json special_tokens_map.json tokenizer.json "
        "tokenizer_config.json vocab.json",
        ".gitattributes README.md flax_model.msgpack pytorch_model.bin tf_model.h5",
    ),
    "Systran/faster-whisper-tiny": (
        "config.json model.bin tokenizer.json vocabulary.txt",
        ".gitattributes README.md",
    ),
    "a conversion of CTranslate2": (
        "config.json model.bin shared_vocabulary.json source.spm target.spm",
        "README.md",
    ),
    "openai-community/gpt2": (
        "config.json generation_config.json merges.txt model.safetensors tokenizer.json "
        "tokenizer_config.json vocab.json",
        ".gitattributes 64-8bits.tflite README.md flax_model.msgpack onnx/config.json "
        "onnx/decoder_model.onnx onnx/vocab.json pytorch_model.bin rust_model.ot tf_model.h5",
    ),
    "google-t5/t5-small": (
        "config.json generation_config.json model.safetensors spiece.model tokenizer.json "
        "tokenizer_config.json",
        ".gitattributes README.md flax_model.msgpack onnx/encoder_model.onnx pytorch_model.bin "
        "rust_model.ot tf_model.h5",
    ),
    "Qwen/Qwen3-0.6B": (
        "config.json generation_config.json merges.txt model.safetensors tokenizer.json "
        "tokenizer_config.json vocab.json",
        ".gitattributes LICENSE README.md",
    ),
    # the shards follow from the index
    "meta-llama/Llama-3.1-8B-Instruct": (
        "config.json generation_config.json model.safetensors.index.json special_tokens_map.json "
        "tokenizer.json tokenizer_config.json",
        ".gitattributes LICENSE README.md USE_POLICY.md model-00001-of-00002.safetensors "
        "model-00002-of-00002.safetensors original/consolidated.00.pth original/params.json "
        "original/tokenizer.model",
    ),
    "google/gemma-3-4b-it": (
        "added_tokens.json chat_template.json config.json generation_config.json "
        "model.safetensors.index.json preprocessor_config.json processor_config.json "
        "special_tokens_map.json tokenizer.json tokenizer.model tokenizer_config.json",
        ".gitattributes README.md model-00001-of-00002.safetensors",
    ),
    "FireRedTeam/FireRedASR-AED-L": (
        "cmvn.ark dict.txt model.pth.tar train_bpe1000.model",
        ".gitattributes README.md cmvn.txt config.yaml train_bpe1000.vocab",
    ),
    # the model and the vocabularies follow from the settings
    "a training of Marian": (
        "model.npz.decoder.yml source.spm target.spm",
        "README.md model.npz model.npz.optimizer.npz model.npz.progress.yml train.log valid.en",
    ),
    "a folder of Marian with its weights in both forms": (
        "decoder.yml source.spm target.spm",
        "README.md model.bin model.npz",
    ),
    "an export of pybeam": (
        "config.json decoder.onnx decoder.onnx.data encoder.onnx sentencepiece.model",
        "README.md features.onnx search.onnx",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_taken(name):
    taken, left = (names.split() for names in PUBLISHED[name])
    names = [*left, *taken]
    weights = weights_among(names)
    assert sorted({*matching(names, SETTINGS), *weights}) == taken
    assert weights
