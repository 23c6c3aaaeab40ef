"""A model of any size that computes what the example model computes.

python -m benchmarks.tools.widen --output DIR [--width 1024] [--ffn 4096] [--vocabulary 42000] ...

The example model is too small to show what decoding costs at the size people use, and a model with
random weights of that size prunes like none that was trained. So the example model is made larger
without changing what it computes; the defaults are the size of a WMT19 transformer-big. Four steps,
each of which keeps every output, up to rounding:

  width        Hidden states repeat c times: (x, x, ..., x). Layer norms see the same mean and
               variance; a linear layer W becomes W / c repeated c x c times; heads repeat c times at
               the same head size; embeddings repeat, divided by sqrt(c) where the model multiplies
               them by sqrt(d). Sinusoidal positions of the larger width are other numbers, so
               the small model's table is repeated and stored with the weights.
  ffn          Inner units repeat r times; the second matrix is divided by r.
  layers       Extra layers are copies of the model's own whose output projections are zero: pre-norm
               residuals let them pass. They compute what real layers do.
  vocabulary   Extra tokens, whose logit does not depend on the input and lies far below those of all
               other tokens. The output table gets a copy of its own for that, and one of the hidden
               states that repeat becomes a constant, which only the extra tokens read.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from benchmarks.corpus import MODEL
from pybeam.models import load_model, loading
from pybeam.models.transformer.config import TransformerConfig
from pybeam.models.transformer.positions import sinusoidal_table
from pybeam.text.json_files import read_json

Weights = dict[str, Tensor]

# files hold floats; `pybeam quantize` makes integers of them
DTYPES = {name: dtype for name, dtype in loading.DTYPES.items() if dtype.is_floating_point}
STACKS = ("encoder", "decoder")
SHARED, ENCODER, DECODER = ("shared.weight", *(f"{stack}.embed_tokens.weight" for stack in STACKS))
PREFIX = "model."
OUTPUT = "lm_head.weight"
FILES = (".json", ".model", ".spm")  # what lies beside the weights and belongs to the model
NORM = f"{PREFIX}decoder.layer_norm"
# nats between the logits of added tokens and the lowest of the others; where half of that is left by
# rounding, exp(-20) times any vocabulary is nothing beside a probability
MARGIN = 40.0


def widen(
    source: Path,
    target: Path,
    *,
    width: int = 1024,
    ffn: int = 4096,
    encoder_layers: int = 6,
    decoder_layers: int = 6,
    vocabulary: int = 42000,
    dtype: str = "float32",
) -> None:
    """Write a larger model with the outputs of the one in `source`.

    For every input the first V logits are those of the model with V tokens, and
    sum_{v >= V} exp(logit_v) < 1e-8 (vocabulary / V) sum_{v < V} exp(logit_v).

    Args:
        source: a Hugging Face directory with an M2M100 model (d, f, layers, V).
        target: a new or empty directory, for `config.json`, `model.safetensors`, the tokenizer.
        width: hidden size, a multiple c d; the number of heads grows c times.
        ffn: size of the feed-forward layers, a multiple of f.
        encoder_layers, decoder_layers: not fewer than the model has.
        vocabulary: not smaller than V, and V where `width` is d. Tokenizers never produce the added
            tokens.
        dtype: of the weights: "float32", "bfloat16" or "float16".

    Raises:
        FileNotFoundError: there is no `source`.
        ValueError: it is no M2M100 model, a size does not fit it, or `target` is in use.
    """
    source, target = Path(source), Path(target)
    config = _accepted(source, target, dtype)
    _check_sizes(config, width, ffn, encoder_layers, decoder_layers, vocabulary)
    copies = width // config.hidden_size
    scale = copies**0.5 if config.embedding_scale != 1 else 1.0
    weights = _read(source, config)
    _add_layers(weights, "encoder", config.num_encoder_layers, encoder_layers)
    _add_layers(weights, "decoder", config.num_decoder_layers, decoder_layers)
    added = vocabulary - config.vocab_size
    _add_tokens(weights, added)
    for name in tqdm(list(weights), desc="widening", unit="tensor", disable=None, leave=False):
        wide = _repeated(name, weights.pop(name), copies, ffn, scale)
        weights[name if name == OUTPUT else PREFIX + name] = wide.to(DTYPES[dtype])
    if added:
        _add_outputs(weights, added, config.hidden_size)
    changes = {
        "d_model": width,
        "encoder_layers": encoder_layers,
        "decoder_layers": decoder_layers,
        "encoder_attention_heads": config.num_encoder_heads * copies,
        "decoder_attention_heads": config.num_decoder_heads * copies,
        "encoder_ffn_dim": ffn,
        "decoder_ffn_dim": ffn,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "dtype": dtype,
    }
    _write(source, target, weights, changes)


def _accepted(source: Path, target: Path, dtype: str) -> TransformerConfig:
    """The config of the model in `source`, where that can be widened."""
    # it refuses directories that are incomplete or hold something else
    config = load_model(source, device="cpu").config
    if config.model_type != "m2m_100":
        raise ValueError(
            f"{source} must hold an m2m_100 model, but it is {config.model_type!r}; "
            "give one of that layout, such as the example model"
        )
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` must be one of {', '.join(DTYPES)}, but is {dtype!r}")
    if target.exists() and any(target.iterdir()):
        raise ValueError(
            f"`target` must be a new or empty directory, but {target} has files; name another"
        )
    return config


def _check_sizes(
    config: TransformerConfig,
    width: int,
    ffn: int,
    encoder_layers: int,
    decoder_layers: int,
    vocabulary: int,
) -> None:
    for name, value, of in (
        ("width", width, config.hidden_size),
        ("ffn", ffn, config.encoder_inner_size),
        ("ffn", ffn, config.decoder_inner_size),
    ):
        if value < of or value % of:
            raise ValueError(
                f"`{name}` must be a multiple of the model's {of}, but is {value}; "
                f"the next one is {of * max(1, -(-value // of))}"
            )
    for name, value, least in (
        ("encoder_layers", encoder_layers, config.num_encoder_layers),
        ("decoder_layers", decoder_layers, config.num_decoder_layers),
        ("vocabulary", vocabulary, config.vocab_size),
    ):
        if value < least:
            raise ValueError(f"`{name}` must be at least the model's {least}, but is {value}")
    if vocabulary > config.vocab_size and width == config.hidden_size:
        raise ValueError(
            f"`vocabulary` must be the model's {config.vocab_size} where `width` is the model's {width}, "
            f"but is {vocabulary}; give a `width` of {2 * width} or more"
        )


def _read(source: Path, config: TransformerConfig) -> Weights:
    """The weights in float32, names without prefix, with all tables of tokens and of positions."""
    raw: Weights = {}
    for path in sorted(source.glob("*.safetensors")):
        raw |= {name.removeprefix(PREFIX): w.float() for name, w in load_file(path).items()}

    def first(*names: str) -> Tensor | None:
        return next((raw[name] for name in names if name in raw), None)

    parts = re.compile(r"(encoder|decoder)\.(layers|layer_norm)\.")
    weights = {name: weight for name, weight in raw.items() if parts.match(name)}
    weights[ENCODER] = first(ENCODER, SHARED, DECODER, OUTPUT)
    weights[DECODER] = first(DECODER, SHARED, OUTPUT, ENCODER)
    weights[OUTPUT] = first(OUTPUT, DECODER, SHARED, ENCODER)
    # of untied models no library reads it, but transformers misses it
    weights[SHARED] = weights[ENCODER]
    for stack in STACKS:
        name = f"{stack}.embed_positions.weight"
        stored = first(name, f"{name}s")
        weights[f"{name}s"] = sinusoidal_table(config) if stored is None else stored
    return weights


def _add_layers(weights: Weights, stack: str, present: int, wanted: int) -> None:
    """Layers after the last one that add zero to the hidden state."""
    for i in range(present, wanted):
        old, new = f"{stack}.layers.{i % present}.", f"{stack}.layers.{i}."
        for name in [name for name in weights if name.startswith(old)]:
            ends_branch = "out_proj" in name or "fc2" in name
            weight = weights[name]
            weights[name.replace(old, new)] = torch.zeros_like(weight) if ends_branch else weight


def _add_tokens(weights: Weights, number: int) -> None:
    """Rows of the token tables that look like the others."""
    generator = torch.Generator()
    for name in (SHARED, ENCODER, DECODER):
        table = weights[name]  # [V, d]
        # equal tables stay equal, and are kept once
        generator.manual_seed(0)
        rows = table.std() * torch.randn(number, table.shape[1], generator=generator)
        weights[name] = torch.cat((table, rows))


def _add_outputs(weights: Weights, number: int, d: int) -> None:
    """Rows of the wide output table that never win.

    The output reads h = g z + b, where z is normalised: sum_i z_i = 0 and |z|^2 <= c d. The last h is made
    the constant 1, and its first copy, at d - 1, is read in its place. So a row that is zero before the
    last column has the same logit for every input, whatever the weights are rounded to. No input takes
    the logit of any row w below w b - |w g - mean(w g)| sqrt(c d).
    """
    output = weights[OUTPUT]  # [V, c d]
    gain, bias = weights[f"{NORM}.weight"], weights[f"{NORM}.bias"]
    gain[-1], bias[-1] = 0, 1
    output[:, d - 1] += output[:, -1]
    output[:, -1] = 0
    scaled = output.double() * gain.double()
    reach = (scaled - scaled.mean(1, keepdim=True)).norm(dim=1) * output.shape[1] ** 0.5
    lowest = (output.double() @ bias.double() - reach).min()
    generator = torch.Generator().manual_seed(0)
    rows = output.new_zeros(number, output.shape[1])
    rows[:, -1] = lowest - MARGIN * (1 + 0.25 * torch.rand(number, generator=generator))
    weights[OUTPUT] = torch.cat((output, rows))


def _write(source: Path, target: Path, weights: Weights, changes: dict) -> None:
    """The weights, the config with these changes, and the other files of the model."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix in FILES and path.name != "model.safetensors.index.json":
            shutil.copy(path, target)
    config = read_json(source / "config.json") | changes
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def _repeated(name: str, weight: Tensor, copies: int, ffn: int, scale: float) -> Tensor:
    """A tensor of the small model as the wide one has it; inputs that repeat n times share 1 / n."""
    if ".embed_positions." in name:
        return weight.tile(1, copies)
    if name in (SHARED, ENCODER, DECODER):
        return weight.tile(1, copies) / scale
    rows = ffn // weight.shape[0] if ".fc1." in name else 1 if name == OUTPUT else copies
    if weight.ndim == 1:
        return weight.tile(rows)
    columns = ffn // weight.shape[1] if ".fc2." in name else copies
    return weight.tile(rows, columns) / columns


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=MODEL, help="default: the example model")
    parser.add_argument("--output", type=Path, required=True, help="a new or empty directory")
    parser.add_argument("--width", type=int, default=1024, help="hidden size; heads grow with it")
    parser.add_argument("--ffn", type=int, default=4096, help="size of the feed-forward layers")
    parser.add_argument("--encoder-layers", type=int, default=6)
    parser.add_argument("--decoder-layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=42000, help="number of tokens")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    options = vars(parser.parse_args())
    source, output = options.pop("source"), options.pop("output")
    try:
        widen(source, output, **options)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    size = (output / "model.safetensors").stat().st_size
    print(f"{output} holds {size / 1e9:.2f} GB; look into it with pybeam profile --model {output}")


if __name__ == "__main__":
    main()
