"""Tiny random Hugging Face models of every supported class, with nothing left at its default."""

from pathlib import Path

import torch
import transformers

SHAPES = dict(
    d_model=24,
    encoder_layers=2,
    decoder_layers=3,
    encoder_attention_heads=2,
    decoder_attention_heads=4,
    encoder_ffn_dim=40,
    decoder_ffn_dim=56,
    max_position_embeddings=32,
)
IDS = dict(pad_token_id=1, eos_token_id=2, bos_token_id=0, decoder_start_token_id=2)
MARIAN_IDS = dict(pad_token_id=36, eos_token_id=0, decoder_start_token_id=36, bos_token_id=None)

# name -> class stem and what its config holds beside SHAPES
KINDS = {
    "m2m_100": ("M2M100", dict(vocab_size=45, **IDS)),
    "m2m_100-even": ("M2M100", dict(vocab_size=45, **IDS, encoder_attention_heads=4)),
    "m2m_100-pad0": (
        "M2M100",
        dict(vocab_size=45, **{**IDS, "pad_token_id": 0}, activation_function="swish"),
    ),
    "m2m_100-untied": ("M2M100", dict(vocab_size=45, **IDS, tie_word_embeddings=False)),
    "m2m_100-unscaled": ("M2M100", dict(vocab_size=45, **IDS, scale_embedding=False)),
    "mbart": ("MBart", dict(vocab_size=45, **IDS)),
    "mbart-scaled": ("MBart", dict(vocab_size=45, **IDS, scale_embedding=True)),
    "bart": ("Bart", dict(vocab_size=45, **IDS)),
    "bart-gelu_new": ("Bart", dict(vocab_size=45, **IDS, activation_function="gelu_new")),
    "bart-untied": ("Bart", dict(vocab_size=45, **IDS, tie_word_embeddings=False)),
    "marian": ("Marian", dict(vocab_size=45, **MARIAN_IDS, activation_function="swish")),
    "marian-separate": (
        "Marian",
        dict(
            vocab_size=37,
            decoder_vocab_size=45,
            share_encoder_decoder_embeddings=False,
            scale_embedding=True,
            **MARIAN_IDS,
        ),
    ),
    "fsmt": ("FSMT", dict(src_vocab_size=37, tgt_vocab_size=45, **IDS)),
    "fsmt-tied": (
        "FSMT",
        dict(src_vocab_size=45, tgt_vocab_size=45, **IDS, tie_word_embeddings=True),
    ),
}
MODEL_CLASSES = {
    "M2M100": "M2M100ForConditionalGeneration",
    "MBart": "MBartForConditionalGeneration",
    "Bart": "BartForConditionalGeneration",
    "Marian": "MarianMTModel",
    "FSMT": "FSMTForConditionalGeneration",
}


def tiny_model(kind: str, seed: int = 0, **changes) -> transformers.PreTrainedModel:
    """Make the original in eval mode, with random biases and norms; `changes` go to its config."""
    stem, options = KINDS[kind]
    config = getattr(transformers, f"{stem}Config")(**{**SHAPES, **options, **changes})
    model = getattr(transformers, MODEL_CLASSES[stem])(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" in name and stem not in ("Bart", "MBart"):
                continue  # these follow from a formula
            mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            weight.copy_(mean + 0.3 * torch.randn(weight.shape, generator=generator))
    return model


@torch.no_grad()
def favour_eos(model: transformers.PreTrainedModel, nats: float) -> None:
    """Raise the logits of EOS, so that hypotheses end at many lengths."""
    eos = model.config.eos_token_id
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[:, eos] += nats
    else:  # every state that the last norm gives has its bias in it
        bias = model.model.decoder.layer_norm.bias
        model.get_output_embeddings().weight[eos] += nats * bias / (bias @ bias)


def save_tiny_model(
    directory: Path, kind: str, seed: int = 0, **changes
) -> transformers.PreTrainedModel:
    """Save a tiny model as `save_pretrained` does and return the original."""
    model = tiny_model(kind, seed, **changes)
    model.save_pretrained(directory)
    return model
