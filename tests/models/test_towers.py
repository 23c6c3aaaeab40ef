"""Models that see, too, are read as their language models, whose outputs are theirs for text alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import pybeam
from pybeam.models.transformer.causal_config import read_config
from support.causal_models import EOS, OTHER_EOS, tiny_causal

PROMPTS = [[11, 30, 17, 2], [25, 14, 33, 20, 12]]
EYES = dict(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    image_size=28, patch_size=14,
)  # fmt: skip
KINDS = {
    "gemma3": ("Gemma3", "gemma3", dict(mm_tokens_per_image=4)),
    "llava": ("Llava", "llama", {}),
    "llava_next": ("LlavaNext", "mistral", {}),
    "mistral3": ("Mistral3", "mistral", {}),
}


def seeing(kind: str) -> transformers.PreTrainedModel:
    """Make a model of text and images around a tiny model of text."""
    stem, text, options = KINDS[kind]
    inner = tiny_causal(text)
    config = getattr(transformers, f"{stem}Config")(
        text_config=inner.config.to_dict(), vision_config=EYES, image_token_index=44, **options
    )
    network = getattr(transformers, f"{stem}ForConditionalGeneration")(config).eval()
    network.model.language_model.load_state_dict(inner.model.state_dict())
    network.lm_head.load_state_dict(inner.lm_head.state_dict())
    network.generation_config = inner.generation_config
    return network


def rename(directory: Path, *pairs: tuple[str, str]) -> None:
    """Begin the names of tensors otherwise."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for old, new in pairs:
        tensors = {
            new + name.removeprefix(old) if name.startswith(old) else name: tensor
            for name, tensor in tensors.items()
        }
    save_file(tensors, path, {"format": "pt"})


NEW = ("language_model.model.", "model.language_model."), ("language_model.lm_head.", "lm_head.")
OLD = (
    ("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
    ("model.vision_tower.", "vision_tower."), ("model.image_newline", "image_newline"),
    ("model.multi_modal_projector.", "multi_modal_projector."),
)  # fmt: skip


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_text_alone_is_what_transformers_makes_of_it(kind, tmp_path):
    network = seeing(kind)
    network.save_pretrained(tmp_path)
    expected = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        [line] = network.generate(ids, max_new_tokens=7, do_sample=False).tolist()
        new = line[len(prompt) :]
        ends = (i for i, token in enumerate(new) if token in (EOS, OTHER_EOS))
        expected.append(new[: next(ends, len(new))])
    for names in (NEW, OLD):
        rename(tmp_path, *names)
        model = pybeam.load_model(tmp_path, device="cpu")
        assert type(model).__name__ == "CausalTransformer"
        results = pybeam.Decoder(model, pybeam.greedy(max_length=7)).decode(PROMPTS)
        assert [result.hypotheses[0].tokens for result in results] == expected
    pybeam.quantize(tmp_path, tmp_path / "int8")
    assert pybeam.load_model(tmp_path / "int8").weight_dtype == torch.int8


# as Gemma 3 4B, LLaVA 1.5 7B and LLaVA 1.6 on Mistral 7B are published, and the least that may stand there
PUBLISHED = [
    ("Gemma3", dict(eos_token_id=[1, 106]), dict(
        model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
        rope_scaling=dict(factor=8.0, rope_type="linear"), sliding_window=1024,
    )),
    ("Llava", dict(pad_token_id=32001), dict(
        model_type="llama", max_position_embeddings=4096, rms_norm_eps=1e-5, vocab_size=32064,
    )),
    ("LlavaNext", dict(hidden_size=7, vocab_size=32064), dict(
        model_type="mistral", intermediate_size=14336, max_position_embeddings=32768,
        num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6, sliding_window=None,
        vocab_size=32064,
    )),
    ("Llava", {}, dict(model_type="qwen2", eos_token_id=5)),
    ("Llava", {}, {}),
    ("LlavaNext", {}, {}),
    ("Mistral3", {}, {}),
    ("Gemma3", {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "outer", "text"), PUBLISHED)
def test_what_a_published_config_leaves_out(stem, outer, text, tmp_path):
    """Transformers writes the fields that differ from the defaults of their classes."""
    config_class = getattr(transformers, f"{stem}Config")
    config = dict(model_type=config_class.model_type, text_config=text, vision_config={}, **outer)
    (tmp_path / "config.json").write_text(json.dumps(config))
    found, theirs = read_config(tmp_path), config_class(**config).text_config
    assert found.model_type == theirs.model_type and found.vocab_size == theirs.vocab_size
    eos_ids = outer.get("eos_token_id", theirs.eos_token_id)
    assert found.eos_ids == (tuple(eos_ids) if isinstance(eos_ids, list) else (eos_ids,))
    assert found.max_positions == theirs.max_position_embeddings
    stack = found.stack
    assert stack.num_layers == theirs.num_hidden_layers
    assert stack.hidden_size == theirs.hidden_size
    assert stack.inner_size == theirs.intermediate_size
    assert stack.num_heads == theirs.num_attention_heads
    assert stack.num_key_heads == theirs.num_key_value_heads
    heads = theirs.hidden_size // theirs.num_attention_heads
    assert stack.head_size == (getattr(theirs, "head_dim", None) or heads)
    assert stack.norm.epsilon == theirs.rms_norm_eps
    if stem == "Gemma3":
        windows = [one == "sliding_attention" for one in theirs.layer_types]
        assert [window == theirs.sliding_window for window in stack.windows] == windows
    else:
        window = None if theirs.model_type == "qwen2" else getattr(theirs, "sliding_window", None)
        assert set(stack.windows) == {window}
