"""A folder of Marian becomes a built-in model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pybeam import arguments
from pybeam.models import settings
from pybeam.models.marian.archive import stored_arrays
from pybeam.models.marian.checkpoint import MarianCheckpoint
from pybeam.models.tensor_files import StoredTensor
from pybeam.models.transformer.assembly import BART
from pybeam.models.transformer.config import Family, TransformerConfig
from pybeam.models.transformer.facts import NormFacts, StackFacts
from pybeam.models.transformer.given import COMPUTED_POSITIONS, GivenAssembly
from pybeam.models.transformer.model import Transformer
from pybeam.models.transformer.ssru import SsruAssembly
from pybeam.text.json_files import LARGEST, MAX_LAYERS
from pybeam.text.marian import EOS, UNKNOWN, Words, read_words
from pybeam.text.yaml_files import Settings

# pybeam has no GELU that is made of a sigmoid
ACTIVATIONS = {"relu": "relu", "swish": "silu"}
EPSILON = 1e-6
# settings of what is computed, of which pybeam has the first alone
CHOICES = {
    "type": ("transformer",),
    "transformer-attention-mask": ("default",),
    "transformer-ffn-depth": ("2",),
    **dict.fromkeys(
        (
            "transformer-disable-position-embeddings",
            "transformer-no-affine",
            "transformer-no-bias",
            "transformer-no-projection",
            "transformer-pool",
            "transformer-train-position-embeddings",
            "transformer-train-positions",
            "ulr",
        ),
        ("false",),
    ),
}
CHOICES_OF_SSRU = {
    "dec-cell": ("ssru",),
    "layer-normalization": ("false",),
    "transformer-rnn-projection": ("false",),
}


def load_marian(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    check_finite: bool = True,
    eos_id: int | Sequence[int] | None = None,
) -> tuple[Transformer, MarianCheckpoint]:
    """Return the model of a folder, and the checkpoint, which knows what was taken from it.

    Raises:
        ValueError: a file is missing or not sound, or layers compute what pybeam does not.
    """
    words = read_words(directory)
    arrays, trained = stored_arrays(words.model)
    for name, choices in CHOICES.items():
        trained.choice(name, choices)
    if trained.texts("transformer-tied-layers"):
        raise ValueError(
            f"decoder layers in {words.model} must have weights of their own, but `transformer-tied-layers` "
            "is given"
        )
    is_recurrent = trained.choice("transformer-decoder-autoreg", ("self-attention", "rnn")) == "rnn"
    if is_recurrent:
        for name, choices in CHOICES_OF_SSRU.items():
            trained.choice(name, choices)
    family = _family(trained)
    facts = {stack: _facts(trained, stack, family, arrays) for stack in ("encoder", "decoder")}
    checkpoint = MarianCheckpoint(
        directory,
        arrays,
        {stack: own.num_layers for stack, own in facts.items()},
        is_pre_norm=family.is_pre_norm,
        is_checked=check_finite,
    )
    config = _config(words, family, facts, checkpoint, eos_id)
    build = SsruAssembly if is_recurrent else GivenAssembly
    model = build(config, checkpoint, device, dtype, facts, starts_from_zero=True).model()
    model.settings = _settings(words)
    return model, checkpoint


def _family(trained: Settings) -> Family:
    """Return where norms stand."""
    before, behind, top, of_embeddings = (
        # dropout says nothing about a model that is trained
        trained.text(f"transformer-{name}", default).replace("d", "")
        for name, default in (
            ("preprocess", ""),
            ("postprocess", "dan"),
            ("postprocess-top", ""),
            ("postprocess-emb", "d"),
        )
    )
    if (before, behind) not in (("", "an"), ("n", "a")):
        raise ValueError(
            "`transformer-preprocess` and `transformer-postprocess` must be '' and 'dan', or 'n' and 'da', "
            f"but are {before!r} and {behind!r} without dropout"
        )
    if {top, of_embeddings} - {"", "n"}:
        raise ValueError(
            "`transformer-postprocess-top` and `transformer-postprocess-emb` must be '' or 'n', but are "
            f"{top!r} and {of_embeddings!r} without dropout"
        )
    return Family(
        is_pre_norm=before == "n",
        has_embedding_norm=of_embeddings == "n",
        has_final_norm=top == "n",
        positions="stored",
    )


def _facts(
    trained: Settings, stack: str, family: Family, arrays: Mapping[str, StoredTensor]
) -> StackFacts:
    d, heads = trained.size("dim-emb", LARGEST), trained.size("transformer-heads", LARGEST)
    if d % heads:
        raise ValueError(
            f"`dim-emb` must be a multiple of `transformer-heads`, but they are {d} and {heads}"
        )
    activation = trained.choice("transformer-ffn-activation", tuple(ACTIVATIONS))
    # a decoder may have others than the settings of both stacks say
    inner = arrays.get(f"{stack}_l1_ffn_W1")
    if inner is None or len(inner.shape) != 2:
        raise ValueError(f"`{stack}_l1_ffn_W1` must be a matrix; does Marian's model have layers?")
    return StackFacts(
        names=BART,
        norm=NormFacts(EPSILON),
        num_layers=trained.size(f"{stack[:3]}-depth", MAX_LAYERS),
        hidden_size=d,
        inner_size=inner.shape[1],
        num_heads=heads,
        num_key_heads=heads,
        head_size=d // heads,
        activation=ACTIVATIONS[activation],
        prefix=f"{stack}.",
        is_pre_norm=family.is_pre_norm,
        has_cross=stack == "decoder",
        is_transposed=True,
    )


def _config(
    words: Words,
    family: Family,
    facts: dict[str, StackFacts],
    checkpoint: MarianCheckpoint,
    eos_id: int | Sequence[int] | None,
) -> TransformerConfig:
    source_size, vocab_size = (
        _num_rows(checkpoint, f"{stack}.embed_tokens.weight") for stack in facts
    )
    for ids, size in ((words.source_ids, source_size), (words.target_ids, vocab_size - 1)):
        if max(ids.values(), default=0) >= size:
            raise ValueError(
                f"the vocabularies that {words.path} names must have ids below {size}, the number of tokens "
                f"in {words.model}, but have {max(ids.values())}; do the files belong to one model?"
            )
    first, *others = _eos_ids(words, eos_id, vocab_size)
    encoder, decoder = facts["encoder"], facts["decoder"]
    return TransformerConfig(
        path=words.model,
        model_type="marian",
        family=family,
        source_vocab_size=source_size,
        vocab_size=vocab_size,
        hidden_size=decoder.hidden_size,
        num_encoder_layers=encoder.num_layers,
        num_decoder_layers=decoder.num_layers,
        num_encoder_heads=encoder.num_heads,
        num_decoder_heads=decoder.num_heads,
        encoder_inner_size=encoder.inner_size,
        decoder_inner_size=decoder.inner_size,
        max_positions=COMPUTED_POSITIONS,
        max_source_positions=COMPUTED_POSITIONS,
        activation=decoder.activation,
        embedding_scale=float(decoder.hidden_size) ** 0.5,
        ties_embeddings=True,
        pad_id=vocab_size - 1,
        start_id=vocab_size - 1,
        eos_id=first,
        other_eos_ids=tuple(others),
        norm_epsilon=EPSILON,
    )


def _num_rows(checkpoint: MarianCheckpoint, name: str) -> int:
    name = checkpoint.first([name, "shared.weight"])
    if name not in checkpoint or len(checkpoint.stored[name].shape) != 2:
        raise ValueError(f"the model must have a token table {name!r} of two dimensions")
    return checkpoint.num_rows(name)


def _eos_ids(words: Words, eos_id: int | Sequence[int] | None, vocab_size: int) -> tuple[int, ...]:
    given = words.target_ids.get(EOS) if eos_id is None else eos_id
    try:
        return arguments.eos_ids(given, vocab_size - 1)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{words.vocabularies[1]} must have the token {EOS!r}; give the ids to use as `eos_id` of "
            "`load_model`"
        ) from error


def _settings(words: Words) -> settings.Settings:
    """Return what Marian never generates."""
    unknown = words.target_ids.get(UNKNOWN)
    banned = () if unknown is None or words.settings.flag("allow-unk") else (unknown,)
    return settings.Settings(suppress_tokens=banned, path=words.path)
