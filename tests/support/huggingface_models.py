"""Tiny random models of transformers that pybeam wraps, with nothing left at its default."""

import torch
import transformers

from support.tiny_models import SHAPES

VOCAB = 45
EOS = 2
HIDDEN = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=3)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2)
IDS = dict(vocab_size=VOCAB, pad_token_id=1, eos_token_id=EOS, bos_token_id=0)
SEQ2SEQ = {name: size for name, size in SHAPES.items() if name != "max_position_embeddings"}
START = dict(IDS, decoder_start_token_id=2)
# configs of Pegasus and T5 have no BOS
NO_BOS = {name: value for name, value in START.items() if name != "bos_token_id"}
T5 = dict(d_model=24, d_kv=8, d_ff=40, num_layers=2, num_decoder_layers=2, num_heads=4)

# name -> class stem, class of the model, options of its config
KINDS = {
    "nllb": ("M2M100", "M2M100ForConditionalGeneration", dict(START, **SEQ2SEQ)),
    "mbart": ("MBart", "MBartForConditionalGeneration", dict(START, **SEQ2SEQ)),
    "bart": ("Bart", "BartForConditionalGeneration", dict(START, **SEQ2SEQ)),
    "pegasus": ("Pegasus", "PegasusForConditionalGeneration", dict(NO_BOS, **SEQ2SEQ)),
    "blenderbot": (
        "Blenderbot",
        "BlenderbotForConditionalGeneration",
        dict(START, **SEQ2SEQ),
    ),
    "marian": (
        "Marian",
        "MarianMTModel",
        dict(START, **SEQ2SEQ, decoder_vocab_size=VOCAB, activation_function="swish"),
    ),
    "whisper": (
        "Whisper",
        "WhisperForConditionalGeneration",
        dict(
            START,
            **SEQ2SEQ,
            num_mel_bins=6,
            max_source_positions=12,
            max_target_positions=64,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
    ),
    "t5": ("T5", "T5ForConditionalGeneration", NO_BOS | T5 | dict(decoder_start_token_id=1)),
    "gpt2": ("GPT2", "GPT2LMHeadModel", dict(IDS, n_embd=32, n_layer=3, n_head=4, n_positions=64)),
    "llama": ("Llama", "LlamaForCausalLM", dict(IDS, **HIDDEN, **HEADS)),
    "qwen": ("Qwen3", "Qwen3ForCausalLM", dict(IDS, **HIDDEN, **HEADS, head_dim=8)),
    "mistral": ("Mistral", "MistralForCausalLM", dict(IDS, **HIDDEN, **HEADS, sliding_window=6)),
    "gemma": (
        "Gemma2",
        "Gemma2ForCausalLM",
        dict(
            IDS,
            **HIDDEN,
            **HEADS,
            head_dim=8,
            query_pre_attn_scalar=2,
            sliding_window=6,
            attn_logit_softcapping=1.5,
            attn_implementation="eager",  # in transformers 5.17 the default leaves the soft cap out
        ),
    ),
    "gptoss": (
        "GptOss",
        "GptOssForCausalLM",
        dict(
            IDS,
            **HIDDEN,
            **HEADS,
            head_dim=8,
            sliding_window=6,
            num_local_experts=3,
            num_experts_per_tok=2,
            rope_parameters=dict(rope_type="default", rope_theta=150.0),
        ),
    ),
    "mamba": (
        "Mamba",
        "MambaForCausalLM",
        dict(IDS, hidden_size=32, num_hidden_layers=2, state_size=4, intermediate_size=48),
    ),
    "bloom": ("Bloom", "BloomForCausalLM", dict(IDS, hidden_size=32, n_layer=2, n_head=4)),
}
DENSE = ("mamba", "bloom")


def limits(kind: str) -> dict[str, int]:
    """Return the bound of positions by the name that most configs give it; Whisper's has two others."""
    has_none = ("t5", "gpt2", "mamba", "bloom", "whisper")
    return {} if kind in has_none else dict(max_position_embeddings=64)


def tiny_network(kind: str, seed: int = 0) -> transformers.PreTrainedModel:
    """Make a model in eval mode, with random biases and norms, whose EOS comes at many lengths."""
    stem, name, options = KINDS[kind]
    config = getattr(transformers, f"{stem}Config")(**limits(kind), **options)
    torch.manual_seed(seed)
    network = getattr(transformers, name)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "embed_positions" in name and kind in ("marian", "pegasus", "whisper"):
                continue  # these follow from a formula
            if kind == "mamba" and ("A_log" in name or "dt_proj" in name):
                continue
            mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            deviation = 2.0 if name.endswith("sinks") else 0.25
            weight.copy_(mean + deviation * torch.randn(weight.shape, generator=generator))
        # EOS is far up or far down, so it is often chosen
        network.get_output_embeddings().weight[EOS] *= {"gpt2": -3.0, "mamba": 6.0}.get(kind, 2.0)
    # BART's config forces EOS at the end, and some hold other defaults
    network.generation_config = transformers.GenerationConfig(
        **{name: options.get(name) for name in ("eos_token_id", "pad_token_id", "bos_token_id")},
        decoder_start_token_id=options.get("decoder_start_token_id"),
    )
    return network
