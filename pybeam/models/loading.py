"""`load_model`: a directory becomes a built-in model, several become an `Ensemble`."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pybeam.arguments import ArgumentError, names_checked
from pybeam.backends.memory import on_host, weights_together
from pybeam.backends.packing import INT4, INTEGERS
from pybeam.models.checkpoint import Checkpoint, quantised_dtype
from pybeam.models.linear import ACTIVATIONS
from pybeam.models.onnx import DECODER, ENCODER
from pybeam.models.settings import read_settings
from pybeam.models.transformer.assembly import Assembly
from pybeam.models.transformer.built_in import BuiltIn
from pybeam.models.transformer.config import (
    ATTENTIONAL_LSTM,
    FAMILIES,
    TransformerConfig,
    read_config,
)
from pybeam.models.transformer.model import Transformer
from pybeam.text.json_files import folder_config
from pybeam.text.model_files import blaming

if TYPE_CHECKING:
    from pybeam.models.ensemble import Ensemble
    from pybeam.models.onnx.model import OnnxModel
    from pybeam.models.onnx.rnn import OnnxRnn
    from pybeam.models.rnn import Rnn
    from pybeam.models.transformer.causal import CausalTransformer

    Build = Callable[
        [Checkpoint, torch.device, torch.dtype | None], Transformer | CausalTransformer | Rnn
    ]

log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "int4": INT4,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


@names_checked
@on_host()
@weights_together()
def load_model(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    cache_dtype: str | torch.dtype = "auto",
    check_finite: bool = True,
    eos_id: int | Sequence[int] | None = None,
) -> Transformer | CausalTransformer | OnnxModel | Rnn | OnnxRnn | Ensemble:
    """Load a transformer or an attentional LSTM from a directory, or an exported one.

    The directory needs `config.json` and `model.safetensors` (or shards with `model.safetensors.index.json`).
    Start and EOS ids come from `generation_config.json` if it has them. So do the model's `settings`: what is
    never generated (`bad_words_ids`, `suppress_tokens`, `begin_suppress_tokens`), what is forced
    (`forced_bos_token_id`, `forced_eos_token_id`), `min_length`, `no_repeat_ngram_size`, `repetition_penalty`
    and `exponential_decay_length_penalty`. A `pybeam.Decoder` adds them to its algorithm, as `generate` of
    transformers does, unless the algorithm says otherwise; see `pybeam.models.Settings`.
    ``model.without("min_length")`` is the model without one of them. The algorithm has
    all that belongs to a search, such as `num_beams`, `length_penalty`, `early_stopping`, `max_length` and
    `do_sample`, which are not read here. Architectures:

    - text: M2M100 and NLLB (`m2m_100`), mBART (`mbart`), BART (`bart`), Pegasus (`pegasus`), Marian and
      OPUS-MT (`marian`), FSMT (`fsmt`), T5, Flan-T5, MADLAD and ByT5 (`t5`), mT5 (`mt5`), UMT5 (`umt5`);
    - speech, a `SpeechTransformer`: Speech2Text (`speech_to_text`), Whisper (`whisper`);
    - speech, a `pybeam.models.ConformerTransformer`: FireRedASR-AED (`fireredasr`), as
      `pybeam convert fireredasr` writes it;
    - decoder-only, a `pybeam.models.CausalTransformer`: Qwen 2 and 3 and Qwen3-MoE (`qwen2`, `qwen3`,
      `qwen3_moe`), Llama (`llama`), Mistral (`mistral`), Mixtral (`mixtral`), Phi and Phi-3 (`phi`, `phi3`),
      Gemma 1 to 3 (`gemma`, `gemma2`, `gemma3_text`), GPT-2 (`gpt2`), GPT-NeoX and Pythia (`gpt_neox`),
      OPT (`opt`), Bloom (`bloom`), Falcon (`falcon`), and of models that see images, too, the one for text:
      Gemma 3 (`gemma3`), LLaVA (`llava`, `llava_next`), Mistral 3 (`mistral3`);
    - `attentional_lstm`, see `pybeam.models.Rnn`.

    A folder of CTranslate2 (`model.bin` of version 2 or later, with vocabularies) is read as it is, if its
    layers compute what those of one of these do: a Translator's, a Generator's or Whisper's. Start, EOS and
    `suppress_ids` are those of its `config.json`, which CTranslate2 reads alone, too. Its int8 weights are
    taken over on a CPU with "auto" and "int8"; those of int16 become floats.

    So is a folder of Marian (`decoder.yml` that names `model.npz` and vocabularies).

    Sinusoidal positions follow from a formula unless the file holds `embed_positions.weights`. ONNX Runtime
    runs a directory with `decoder.onnx` (`pybeam.export.export_onnx`), on a CPU, in float32.

    Args:
        path: the directory, or a list of them for an `Ensemble`. Members must have the same vocabularies, as
            far as their tokenizer files say. A list of one directory gives that model.
        device: "auto" is CUDA if there is a GPU and the weights are not integers.
        dtype: dtype of the weights: "auto", "float32", "bfloat16", "float16", "int8", "int4",
            "float8_e4m3fn", or the `torch.dtype` of that name. "auto" is float32 on a CPU and the file's
            dtype on a GPU, and for what `pybeam.quantize` has written the only one that it has. On a CPU with
            the C++ extension and AVX2, only matrices and token tables have this dtype: activations, logits
            (`model.dtype`) and all sums are float32. bfloat16 also rounds the inputs of every matrix product,
            and is twice as fast where the CPU multiplies pairs of bfloat16 (`pybeam info`). float32 weights
            that float16 or bfloat16 holds exactly are kept in that, so "auto" is the fastest dtype that keeps
            float32's scores. int8 quantises the weights while they are read, a scale per output, and on a
            CPU the inputs of every matrix product, a scale per row, beside which decoders alone keep more
            bits of its largest ones (docs/reference/int8.md). On a GPU inputs and all else are bfloat16. So
            are they beside float8_e4m3fn, on GPUs from compute capability 8.9 on, where inputs of many rows
            are rounded, too; on a CPU it is slow, and shows the quality of the results. int4 is int8 with 4
            bits for the weights of layers, and a scale for each 32 of them. Elsewhere the whole model
            computes in this dtype.
        cache_dtype: dtype of the keys and values that decoders of transformers keep: "auto", "float32",
            "bfloat16", or the `torch.dtype` of that name. On a CPU bfloat16 rounds them once, which halves
            their memory. "auto" does so beside integers and bfloat16, and else keeps that of activations.
        check_finite: whether weights that are NaN or infinite, or become so in `dtype`, are refused, with
            the names of file and tensor. It costs next to nothing, but reads ONNX graphs once more. Only a
            bias of logits may have -inf. With False, the sources that meet such a weight fail alone; integers
            are checked all the same.
        eos_id: the token that ends a hypothesis, or up to 8 of them, in place of those that the files name.

    Raises:
        FileNotFoundError: the directory does not exist.
        TypeError: `path` is no path, or `check_finite` no bool.
        ImportError: the directory holds ONNX graphs, and onnxruntime is not installed.
        ValueError: a file, field or tensor is missing, wrong, not finite or not supported, the model has no
            cache of that dtype, or the models do not make an ensemble.
    """
    if isinstance(path, (str, os.PathLike)):
        path = [path]
    if not isinstance(path, Sequence):
        raise TypeError(f"`path` must be a directory or a list of them, but is {path!r}")
    directories = [Path(one) for one in path]
    wanted = chosen_dtype("dtype", dtype, DTYPES)
    kept = chosen_dtype("cache_dtype", cache_dtype, ("float32", "bfloat16"))
    is_for_cpus = wanted in INTEGERS or any(
        (directory / DECODER).exists() or quantised_dtype(directory) for directory in directories
    )
    if not isinstance(check_finite, bool):
        raise TypeError(f"`check_finite` must be True or False, but is {check_finite!r}")
    target = working_device("cpu" if device == "auto" and is_for_cpus else device)
    if not directories:
        raise ValueError("`path` must be a directory or a list of at least one, but is empty")
    if len(directories) == 1:
        return _load(directories[0], target, wanted, kept, check_finite, eos_id)
    from pybeam.models.ensemble import Ensemble, check_vocabularies

    check_vocabularies(directories)
    members = [_load(one, target, wanted, kept, check_finite, eos_id) for one in directories]
    try:
        return Ensemble(members)
    except ValueError as error:
        names = ", ".join(f"member {i} is {directory}" for i, directory in enumerate(directories))
        raise ValueError(f"{error} ({names})") from error


def _load(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    cache_dtype: torch.dtype | None,
    check_finite: bool,
    eos_id: int | Sequence[int] | None,
) -> Transformer | CausalTransformer | OnnxModel | Rnn | OnnxRnn:
    if not (directory / "config.json").exists():
        from pybeam.models.foreign import refuse_foreign

        refuse_foreign(directory)
    model: Transformer | CausalTransformer | OnnxModel | Rnn | OnnxRnn
    if (directory / DECODER).exists():
        model = _load_onnx(directory, device, dtype, check_finite, eos_id)
    else:
        model, _ = load_checkpoint(directory, device, dtype, check_finite, eos_id)
    if cache_dtype is None:
        return model
    if not isinstance(model, BuiltIn):
        problem = (
            f"must be 'auto' for {directory}, but is {cache_dtype}; only built-in transformers have such a "
            "cache, not ONNX graphs and not an LSTM"
        )
        raise ArgumentError("cache_dtype", problem)
    return model.with_cache(cache_dtype)


def load_checkpoint(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    check_finite: bool = True,
    eos_id: int | Sequence[int] | None = None,
) -> tuple[Transformer | CausalTransformer | Rnn, Checkpoint]:
    """Return the model of a directory, and the checkpoint, which knows what was taken from it.

    Raises:
        FileNotFoundError, ValueError: as `load_model`.
    """
    model: Transformer | CausalTransformer | Rnn
    with blaming(directory):
        load = None
        if _model_type(directory) is None:
            from pybeam.models.foreign import loader_of

            load = loader_of(directory)
        if load is not None:
            model, checkpoint = load(directory, device, dtype, check_finite, eos_id)
        else:
            build = _architecture(directory, eos_id)
            checkpoint = Checkpoint(directory, check_finite)
            model = build(checkpoint, device, dtype)
            model.settings = read_settings(directory)
        checkpoint.close()
    taken = [checkpoint.stored[name] for name in checkpoint.taken]
    # two weights of int4 are a byte
    num = sum(math.prod(one.shape) * (1 + (one.dtype == torch.uint8)) for one in taken)
    model.num_parameters = num
    log.info("loaded %r from %s: %s parameters, %r", model, directory, f"{num:,}", model.settings)
    return model, checkpoint


def check_config(directory: Path, eos_id: int | Sequence[int] | None = None) -> None:
    """Raise ValueError unless `load_model` builds the network that a directory's `config.json` describes."""
    with blaming(directory):
        _architecture(directory, eos_id)


def _architecture(directory: Path, eos_id: int | Sequence[int] | None) -> Build:
    """Return who builds the network of a directory's config. Raises ValueError as `load_model`."""
    if _is_rnn(directory):
        from pybeam.models.rnn import RnnConfig, build_rnn

        return partial(build_rnn, RnnConfig.read(directory, eos_id))
    if _is_causal(directory):
        from pybeam.models.transformer.causal_assembly import CausalAssembly
        from pybeam.models.transformer.causal_config import read_config as read_causal_config

        causal = read_causal_config(directory, eos_id)
        return lambda *files: CausalAssembly(causal, *files).model()
    config = read_config(directory, eos_id)
    if config.activation not in ACTIVATIONS:
        name = "feed_forward_proj" if config.relative else "activation_function"
        raise ValueError(
            f"`{name}` in {config.path} must be one of {', '.join(ACTIVATIONS)}, "
            f"but is {config.activation!r}"
        )
    return lambda *files: _assembly_of(config)(config, *files).model()


def _assembly_of(config: TransformerConfig) -> type[Assembly]:
    """The class that puts such a transformer together."""
    if config.front is None:
        return Assembly
    from pybeam.models.conformer.assembly import ConformerAssembly
    from pybeam.models.conformer.config import ConformerConfig

    return ConformerAssembly if isinstance(config.front, ConformerConfig) else Assembly


def _model_type(directory: Path) -> str | None:
    """Return what `config.json` calls the family of a directory's model; None: nothing."""
    path = directory / "config.json"
    found = folder_config(directory).get("model_type") if path.exists() else None
    return found if isinstance(found, str) else None


def _is_rnn(directory: Path) -> bool:
    """Whether this directory holds an `Rnn`."""
    return _model_type(directory) == ATTENTIONAL_LSTM


def _is_causal(directory: Path) -> bool:
    """Whether this directory holds a decoder-only transformer of a family that is known."""
    model_type = _model_type(directory)
    if model_type is None or model_type in FAMILIES:
        return False
    from pybeam.models.transformer.families import FAMILIES as CAUSAL_FAMILIES

    return model_type in CAUSAL_FAMILIES


def _load_onnx(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    check_finite: bool,
    eos_id: int | Sequence[int] | None,
) -> OnnxModel | OnnxRnn:
    if device.type != "cpu":
        problem = (
            f"must be 'cpu' for ONNX graphs such as those in {directory}, but is {device}; for a GPU load "
            "the model that they were exported from"
        )
        raise ArgumentError("device", problem)
    if dtype not in (None, torch.float32):
        problem = (
            f"must be 'auto' or 'float32' for ONNX graphs such as those in {directory}, but is {dtype}; "
            "for another load the model that they were exported from"
        )
        raise ArgumentError("dtype", problem)
    from pybeam.models.onnx.external import check_weights

    with blaming(directory):
        model: OnnxModel | OnnxRnn
        if _is_rnn(directory):
            from pybeam.models.onnx.rnn import OnnxRnn
            from pybeam.models.rnn import RnnConfig

            model = OnnxRnn(RnnConfig.read(directory, eos_id))
        else:
            from pybeam.models.onnx.model import OnnxModel, OnnxSpeechModel

            config = read_config(directory, eos_id)
            model = (OnnxModel if config.front is None else OnnxSpeechModel)(config)
        for name in (ENCODER, DECODER) if check_finite else ():
            check_weights(directory / name)
        model.settings = read_settings(directory)
    log.info("loaded %r from %s for ONNX Runtime, %r", model, directory, model.settings)
    return model


def working_device(device: str | torch.device) -> torch.device:
    """Return the device of that name. Raises ValueError if it does not work."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        problem = f"must be 'auto' or a device that works, but is {str(device)!r}: {error}"
        raise ArgumentError("device", problem) from error
    return device


def chosen_dtype(name: str, given: str | torch.dtype, choices: Iterable[str]) -> torch.dtype | None:
    if given == "auto":
        return None
    dtypes = {choice: DTYPES[choice] for choice in choices}
    wanted = dtypes.get(given) if isinstance(given, str) else given
    if wanted not in dtypes.values():
        problem = f"must be 'auto' or one of {', '.join(dtypes)}, but is {given!r}"
        raise ArgumentError(name, problem)
    return wanted
