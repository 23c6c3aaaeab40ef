"""The arrays of `model.npz` under the names by which an assembly asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pybeam.models.checkpoint import Checkpoint
from pybeam.models.padded import PaddedTensor
from pybeam.models.tensor_files import StoredTensor

# token tables and output layers: a row of zeros behind them is what hypotheses start from
TABLES = {
    "Wemb": "shared.weight",
    "decoder_Wemb": "decoder.embed_tokens.weight",
    "decoder_ff_logit_out_Wt": "lm_head.weight",
}
OTHERS = {
    "encoder_Wemb": "encoder.embed_tokens.weight",
    "decoder_ff_logit_out_b": "lm_head.bias",
}
ATTENTIONS = {"self": "self_attn", "context": "encoder_attn"}
PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}


class MarianCheckpoint(Checkpoint):
    """Named tensors of `model.npz`.

    Args:
        directory: the folder.
        arrays: what the file holds.
        num_layers: of each stack, by its name.
        is_pre_norm: whether norms stand before sublayers.
        is_checked: see `Checkpoint`.
    """

    def __init__(
        self,
        directory: Path,
        arrays: Mapping[str, StoredTensor],
        num_layers: Mapping[str, int],
        *,
        is_pre_norm: bool,
        is_checked: bool = True,
    ) -> None:
        self.directory, self.is_checked, self.quantised = directory, is_checked, None
        self.matrices, self.transposed, self.taken = {}, set(), set()
        self.stored, self.raw, self._prefix = {}, {}, ""
        names = TABLES | OTHERS
        for stack, num in num_layers.items():
            names |= dict(names_of(stack, num, "_pre" if is_pre_norm else ""))
        for raw, array in arrays.items():
            name, shape = names.get(raw, raw), array.shape
            if raw in TABLES and len(shape) == 2:
                array = PaddedTensor(
                    array.path, array.dtype, (shape[0] + 1, shape[1]), array.begin, 1
                )
            elif len(shape) == 2 and shape[0] == 1:
                # Marian's vectors have two dimensions
                array = replace(array, shape=shape[1:])
            self.stored[name], self.raw[name] = array, raw


def names_of(stack: str, num_layers: int, pre: str) -> Iterator[tuple[str, str]]:
    """Yield Marian's name and ours of all tensors of a stack. `pre` ends the names of norms in layers."""
    yield from _norm(f"{stack}_emb", f"{stack}.layernorm_embedding", "_pre")
    yield from _norm(f"{stack}_top", f"{stack}.layer_norm")
    for i in range(num_layers):
        raw, own = f"{stack}_l{i + 1}_", f"{stack}.layers.{i}."
        for part, name in ATTENTIONS.items():
            yield from _norm(f"{raw}{part}_Wo", f"{own}{name}_layer_norm", pre)
            for letter, projection in PROJECTIONS.items():
                yield from _linear(f"{raw}{part}_", letter, f"{own}{name}.{projection}")
        # of a decoder with SSRU
        yield f"{raw}rnn_W", f"{own}rnn.candidate.weight"
        yield from _linear(f"{raw}rnn_", "f", f"{own}rnn.forget")
        yield from _norm(f"{raw}rnn{'' if pre else '_ffn'}", f"{own}self_attn_layer_norm", pre)
        yield from _norm(f"{raw}ffn_ffn", f"{own}final_layer_norm", pre)
        for number in "12":
            yield from _linear(f"{raw}ffn_", number, f"{own}fc{number}")


def _linear(raw: str, end: str, name: str) -> Iterator[tuple[str, str]]:
    yield f"{raw}W{end}", f"{name}.weight"
    yield f"{raw}b{end}", f"{name}.bias"


def _norm(raw: str, name: str, pre: str = "") -> Iterator[tuple[str, str]]:
    yield f"{raw}_ln_scale{pre}", f"{name}.weight"
    yield f"{raw}_ln_bias{pre}", f"{name}.bias"
