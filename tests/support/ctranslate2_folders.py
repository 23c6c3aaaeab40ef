"""Tiny models as CTranslate2's own converters write them, and what CTranslate2 finds with them."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import transformers

from support.causal_models import tiny_causal
from support.tiny_models import favour_eos, tiny_model

VOCAB = 45
MAX_LENGTH = 20
# what CTranslate2's converters support of the tiny models: one number of heads in both stacks
TRANSLATORS: dict[str, dict[str, Any]] = {
    "m2m_100-even": {},
    "m2m_100-untied": dict(encoder_attention_heads=4),
    "mbart-scaled": dict(encoder_attention_heads=4, tokenizer_class="MBart50Tokenizer"),
    "bart": dict(encoder_attention_heads=4),
    "pegasus": dict(encoder_attention_heads=4),
    "marian": dict(encoder_attention_heads=4, pad_token_id=44, decoder_start_token_id=44),
    "t5": {},
    "flan-t5": {},
    "byt5": {},
    "mt5": {},
    "umt5": {},
}
PLAIN_ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=500.0))
# the settings of these families that the converters take over
GENERATORS: dict[str, dict[str, Any]] = {
    "qwen2": dict(use_sliding_window=False, **PLAIN_ROPE),
    "qwen3": PLAIN_ROPE,
    "llama": dict(head_dim=16, **PLAIN_ROPE),
    # prompts are as long as the window, which CTranslate2 does not keep within longer ones
    "mistral": dict(sliding_window=9, **PLAIN_ROPE),
    "gemma": {},
    "gemma2": dict(
        query_pre_attn_scalar=8,
        sliding_window=64,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    ),
    "gpt2": {},
    "gemma3": dict(
        sliding_window=9, final_logit_softcapping=None, rms_norm_eps=1e-6, query_pre_attn_scalar=8
    ),
    "opt": dict(vocab_size=48),
    "gpt_neox": {},
    "gpt_neox, one after another": dict(attention_bias=True),
    "bloom": {},
    "falcon": dict(activation="gelu"),
    "falcon, new": dict(activation="gelu", multi_query=False),
    "phi": dict(num_key_value_heads=4),
    "phi3": dict(sliding_window=None, rms_norm_eps=1e-6, **PLAIN_ROPE),
}
# fields that the converters read, and that configs of transformers 5 no longer have
OLD_FIELDS: dict[str, dict[str, Any]] = {
    "bart": dict(normalize_before=False, normalize_embedding=True),
    "mbart": dict(normalize_before=True, normalize_embedding=True),
    "pegasus": dict(normalize_before=True, normalize_embedding=False),
    "gpt_neox": dict(rotary_pct=0.25),
    "phi3": dict(rope_theta=500.0, rope_parameters=None),
}


class Pieces:
    """Stands in for a tokenizer of transformers: the token of id i is ``t<i>``, but for the special ones."""

    special_tokens_map: ClassVar[dict[str, list[str]]] = {}
    num_madeup_words = 0
    chat_template = None

    def __init__(self, config: Any, size: int = VOCAB) -> None:
        self.tokens = [f"t{i}" for i in range(size)]
        first = config.eos_token_id
        for name in ("pad", "bos", "eos"):
            found = getattr(config, f"{name}_token_id", None)
            token = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}[name]
            if found is not None and found < size:
                self.tokens[first if name == "eos" else found] = token
            setattr(self, f"{name}_token", token if token in self.tokens else None)
        self.unk_token_id = 3
        self.tokens[3] = self.unk_token = "<unk>"

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.tokens[token]


def convert(network: Any, directory: Path, quantization: str | None = None) -> list[str]:
    """Write a network as CTranslate2's converter for it does, and return the tokens of its vocabulary."""
    pieces = Pieces(network.config, network.config.vocab_size)
    write(network, pieces, directory, quantization)
    return pieces.tokens


def write(network: Any, pieces: Pieces, directory: Path, quantization: str | None) -> None:
    """Let the converter write a folder."""
    from ctranslate2.converters.transformers import _MODEL_LOADERS

    loader = _MODEL_LOADERS[type(network.config).__name__]
    # it takes layers out of some networks, and changes some configs
    network = copy.deepcopy(network)
    for name, value in OLD_FIELDS.get(network.config.model_type, {}).items():
        setattr(network.config, name, value)
    if network.config.model_type == "gpt_neox":
        network.embed_out = network.get_output_embeddings()
    elif network.config.model_type == "phi":
        network = first_phi(network)
    elif network.config.model_type == "phi3":
        for layer in network.model.layers:
            layer.self_attn.rotary_emb = SimpleNamespace(long_factor=None, short_factor=None)
    with torch.no_grad():
        spec = loader(network, pieces)
        spec.validate()
        spec.optimize(quantization=quantization)
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def first_phi(network: Any) -> Any:
    """Return a Phi under the names of its first publication, which are those that the converter reads."""
    config, base = network.config, network.model
    size = config.hidden_size // config.num_attention_heads
    own = SimpleNamespace(
        n_layer=config.num_hidden_layers,
        n_head=config.num_attention_heads,
        activation_function=config.hidden_act,
        rotary_dim=int(size * config.rope_parameters["partial_rotary_factor"]),
        vocab_size=config.vocab_size,
    )
    layers = []
    for layer in base.layers:
        projections = [getattr(layer.self_attn, f"{part}_proj") for part in "qkv"]
        joined = torch.nn.Linear(config.hidden_size, 3 * config.hidden_size)
        for name in ("weight", "bias"):
            joined.get_parameter(name).data = torch.cat(
                [getattr(one, name).data for one in projections]
            )
        mixer = SimpleNamespace(Wqkv=joined, out_proj=layer.self_attn.dense)
        layers.append(SimpleNamespace(ln=layer.input_layernorm, mixer=mixer, mlp=layer.mlp))
    return SimpleNamespace(
        config=own,
        transformer=SimpleNamespace(embd=SimpleNamespace(wte=base.embed_tokens), h=layers),
        lm_head=SimpleNamespace(linear=network.lm_head, ln=base.final_layernorm),
    )


def tiny_translator(kind: str) -> transformers.PreTrainedModel:
    """Make a model with an encoder whose hypotheses end at many lengths."""
    model = tiny_model(kind, **TRANSLATORS[kind])
    favour_eos(model, 2.0)
    if kind == "marian":
        # the token that it starts from says nothing
        with torch.no_grad():
            model.get_input_embeddings().weight[model.config.pad_token_id] = 0
    return model


def tiny_generator(kind: str) -> transformers.PreTrainedModel:
    """Make a model without an encoder."""
    return tiny_causal(kind, **GENERATORS[kind])


def convert_whisper(source: Path, directory: Path, quantization: str | None = None) -> None:
    """Write a tiny Whisper's folder as CTranslate2's converter does, with the files that it copies."""
    from tokenizers import Tokenizer

    network = transformers.WhisperForConditionalGeneration.from_pretrained(source)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    pieces = Pieces(network.config, network.config.vocab_size)
    pieces.tokens = [tokenizer.id_to_token(i) or f"<unused {i}>" for i in range(len(pieces.tokens))]
    # a token by which CTranslate2 knows models of many languages
    pieces.tokens[0] = ""
    write(network, pieces, directory, quantization)
    for name in ("tokenizer.json", "preprocessor_config.json"):
        shutil.copyfile(source / name, directory / name)
