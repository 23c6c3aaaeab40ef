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
    "pegasus": (
        "Pegasus",
        dict(
            vocab_size=45,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            scale_embedding=True,
        ),
    ),
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
T5_SHAPES = dict(
    d_model=24,
    d_kv=10,
    d_ff=40,
    num_layers=3,  # transformers' cache has room for as many layers of the decoder
    num_decoder_layers=2,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
)
T5_IDS = dict(vocab_size=45, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
GATED = dict(feed_forward_proj="gated-gelu")
# as KINDS, beside T5_SHAPES; `tie_word_embeddings` says whether the output layer is the token table
T5_KINDS = {
    "t5": ("T5", dict(T5_IDS, feed_forward_proj="relu")),
    "flan-t5": ("T5", dict(T5_IDS, **GATED, tie_word_embeddings=False)),
    "byt5": (
        "T5",
        dict(
            T5_IDS, **GATED, d_kv=8, num_layers=3, num_decoder_layers=1, tie_word_embeddings=False
        ),
    ),
    "madlad": (
        "T5",
        dict(
            T5_IDS,
            **GATED,
            pad_token_id=1,
            eos_token_id=2,
            d_kv=16,
            num_heads=2,
            tie_word_embeddings=False,
        ),
    ),
    "mt5": ("MT5", dict(T5_IDS, **GATED, tie_word_embeddings=False)),
    "umt5": ("UMT5", dict(T5_IDS, feed_forward_proj="gated-silu")),
}
MODEL_CLASSES = {
    "M2M100": "M2M100ForConditionalGeneration",
    "MBart": "MBartForConditionalGeneration",
    "Bart": "BartForConditionalGeneration",
    "Pegasus": "PegasusForConditionalGeneration",
    "Marian": "MarianMTModel",
    "FSMT": "FSMTForConditionalGeneration",
    "T5": "T5ForConditionalGeneration",
    "MT5": "MT5ForConditionalGeneration",
    "UMT5": "UMT5ForConditionalGeneration",
}


def tiny_model(kind: str, seed: int = 0, **changes) -> transformers.PreTrainedModel:
    """Make the original in eval mode, with random biases and norms; `changes` go to its config."""
    stem, options = {**KINDS, **T5_KINDS}[kind]
    shapes = T5_SHAPES if kind in T5_KINDS else SHAPES
    config = getattr(transformers, f"{stem}Config")(**{**shapes, **options, **changes})
    model = getattr(transformers, MODEL_CLASSES[stem])(config).eval()
    if stem == "UMT5":
        # transformers 5.17 forgets it, and its decoder sees the tokens that follow
        for block in model.decoder.block:
            block.layer[0].SelfAttention.is_causal = True
    if kind in T5_KINDS and not options.get("tie_word_embeddings", True):
        # transformers ties them at first, and lets a file untie them
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" in name and stem not in ("Bart", "MBart"):
                continue  # these follow from a formula
            mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            weight.copy_(mean + 0.3 * torch.randn(weight.shape, generator=generator))
            if name.endswith("Attention.q.weight"):
                weight *= config.d_kv**-0.5  # T5 does not scale scores
    return model


@torch.no_grad()
def favour(model: transformers.PreTrainedModel, token: int, nats: float) -> None:
    """Raise the logits of a token."""
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[:, token] += nats
    elif hasattr(model, "encoder"):  # T5's norms have no bias
        model.lm_head.weight[token] *= nats
    else:  # every state that the last norm gives has its bias in it
        decoder = model.model.decoder
        norm = getattr(decoder, "layer_norm", None) or decoder.layers[-1].final_layer_norm
        output = getattr(decoder, "output_projection", None) or model.get_output_embeddings()
        output.weight[token] += nats * norm.bias / (norm.bias @ norm.bias)


def favour_eos(model: transformers.PreTrainedModel, nats: float) -> None:
    """Raise the logits of EOS, so that hypotheses end at many lengths."""
    favour(model, model.config.eos_token_id, nats)


def save_tiny_model(
    directory: Path, kind: str, seed: int = 0, **changes
) -> transformers.PreTrainedModel:
    """Save a tiny model as `save_pretrained` does and return the original."""
    model = tiny_model(kind, seed, **changes)
    model.save_pretrained(directory)
    return model
