"""The same weights in the systems pybeam is measured against."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from pybeam.models.checkpoint import Checkpoint

Translate = Callable[[list[list[int]]], list[list[int]]]

EOS = 2
GENERATE = "transformers.generate"
PEER = "CTranslate2"


def transformers_model(directory: Path, device: str = "cpu", dtype: str = "float32"):
    """The directory's model in transformers, with the position tables that it stores.

    transformers computes sinusoidal positions by their formula and ignores tables in the file.
    """
    from transformers import AutoModelForSeq2SeqLM

    wanted = getattr(torch, dtype)
    model = AutoModelForSeq2SeqLM.from_pretrained(directory, dtype=wanted).eval()
    checkpoint = Checkpoint(Path(directory))
    for stack in ("encoder", "decoder"):
        name = f"{stack}.embed_positions.weights"
        if name in checkpoint:
            module = model.get_submodule(f"model.{stack}.embed_positions")
            shape = checkpoint.num_rows(name), module.weights.shape[1]
            # CTranslate2's converter reads them here too
            module.weights = checkpoint.take(name, *shape).to(wanted)
    return model.to(device)


def transformers_beam(
    model,
    width: int,
    batch_size: int,
    max_length: int,
    min_length: int = 0,
    cache: str | None = None,
) -> Translate:
    """`generate(num_beams=width)` on padded batches of sorted sources; `cache` is its implementation."""
    options = {"cache_implementation": cache} if cache else {}

    @torch.inference_mode()
    def translate(sources: list[list[int]]) -> list[list[int]]:
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        outputs: list[list[int]] = [[] for _ in sources]
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            ids = torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(sources[i]) for i in batch], batch_first=True, padding_value=1
            ).to(model.device)
            generated = model.generate(
                input_ids=ids,
                attention_mask=(ids != 1).long(),
                num_beams=width,
                max_new_tokens=max_length,
                min_new_tokens=min_length or None,
                length_penalty=1.0,
                do_sample=False,
                **options,
            )
            for i, line in zip(batch, generated[:, 1:].tolist(), strict=True):
                outputs[i] = line[: line.index(EOS)] if EOS in line else [t for t in line if t != 1]
        return outputs

    return translate


def ctranslate2_translator(model, pieces: list[str], threads: int, compute_type: str = "float32"):
    """A CTranslate2 translator with the weights of an M2M100-layout transformers model."""
    with tempfile.TemporaryDirectory() as directory:
        ctranslate2_directory(model, pieces, Path(directory))
        return loaded_ctranslate2(Path(directory), threads, compute_type)


def ctranslate2_directory(model, pieces: list[str], directory: Path) -> None:
    """Write an M2M100-layout transformers model for CTranslate2, in float32.

    Its converter's own loader makes the specification; the vocabulary is the SentencePiece one, and
    made-up words where the model has more tokens.
    """
    from ctranslate2.converters.transformers import M2M100Loader

    spec = M2M100Loader().get_model_spec(model)
    more = range(len(pieces), model.config.vocab_size)
    pieces = [*pieces, *(f"<added {i}>" for i in more)]
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "</s>"
    spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=None)
    directory.mkdir(exist_ok=True)
    spec.save(str(directory))


def loaded_ctranslate2(directory: Path, threads: int, compute_type: str, side_by_side: int = 1):
    """What `ctranslate2_directory` has written, converted to this type.

    It translates so many batches side by side, which share the threads.
    """
    import ctranslate2

    return ctranslate2.Translator(
        str(directory),
        device="cpu",
        intra_threads=max(1, threads // side_by_side),
        inter_threads=side_by_side,
        compute_type=compute_type,
    )


def ctranslate2_beam(
    translator, pieces: list[str], width: int, batch_size: int, max_length: int
) -> Translate:
    """`translate_batch(beam_size=width)`; it sorts by length and batches by itself."""
    number = {piece: i for i, piece in enumerate(pieces)}

    def translate(sources: list[list[int]]) -> list[list[int]]:
        results = translator.translate_batch(
            [[pieces[t] for t in source] for source in sources],
            beam_size=width,
            length_penalty=1.0,
            max_batch_size=batch_size,
            max_decoding_length=max_length,
        )
        return [[number[piece] for piece in result.hypotheses[0]] for result in results]

    return translate
