"""Folders of tiny random models with a tokenizer of letters, as `pybeam.load` takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from support.causal_models import save_tiny_causal
from support.huggingface_models import tiny_network
from support.tiny_models import save_tiny_model

# as many as the tiny models have
VOCAB = 45
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
LANGUAGES = ("eng_Latn", "fra_Latn", "spa_Latn")
CHAT_TOKENS = ("<|start|>", "<|end|>")
# the second one, and the letter c
CHAT_EOS = (VOCAB - 1, 7)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "{{ '<|start|>' + message.role + ' ' + message.content | trim + '<|end|>' }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|start|>assistant ' }}{% endif %}"
)


def save_letters(
    directory: Path, tags: Sequence[str] = (), has_bos: bool = False, **config: Any
) -> None:
    """Save a tokenizer of 45 tokens, `tags` being the last. `config` joins tokenizer_config.json."""
    letters = "Ġabcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"
    plain = [*SPECIAL, *letters][: VOCAB - len(tags)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(plain)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (*SPECIAL, *tags)])
    if has_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    own = dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    own |= {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(own))


def save_nllb(directory: Path, **generation: Any) -> transformers.PreTrainedModel:
    """Save a model of three languages, whose sources are English unless somebody says otherwise."""
    network = save_tiny_model(directory, "m2m_100")
    save_letters(directory, LANGUAGES, src_lang="eng_Latn")
    change(directory / "generation_config.json", **generation)
    return network


def save_chat(
    directory: Path, kind: str = "llama", **generation: Any
) -> transformers.PreTrainedModel:
    """Save a decoder-only model with a chat template, which writes letters."""
    network = save_tiny_causal(directory, kind)
    save_letters(directory, CHAT_TOKENS, has_bos=True, chat_template=TEMPLATE)
    own = dict(eos_token_id=[*CHAT_EOS], suppress_tokens=[*range(len(SPECIAL))])
    change(directory / "generation_config.json", **own | generation)
    return network


def save_network(directory: Path, kind: str) -> transformers.PreTrainedModel:
    """Save a network of `support.huggingface_models`."""
    network = tiny_network(kind)
    network.save_pretrained(directory)
    save_letters(directory)
    return network


def change(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file; None takes one out."""
    found = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))
