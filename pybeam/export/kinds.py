"""Choose the graphs that a model is exported to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from pybeam.arguments import ArgumentError
from pybeam.export.builder import Recorded
from pybeam.export.rnn import record_rnn_decoder, record_rnn_encoder
from pybeam.export.rules import check_algorithm
from pybeam.export.search import record_search
from pybeam.export.transformer import record_decoder, record_encoder
from pybeam.models.conformer.model import ConformerTransformer
from pybeam.models.ensemble import Ensemble
from pybeam.models.onnx import DECODER, ENCODER, SEARCH
from pybeam.models.onnx.model import OnnxModel, OnnxSpeechModel
from pybeam.models.onnx.rnn import OnnxRnn
from pybeam.models.rnn import Rnn
from pybeam.models.transformer.model import Transformer
from pybeam.models.transformer.speech import SpeechTransformer
from pybeam.search.algorithms import Algorithm

Recorders = dict[str, Callable[..., Recorded]]
TRANSFORMER: Recorders = {
    ENCODER: record_encoder,
    DECODER: record_decoder,
    SEARCH: record_search,
}
RECORDERS: dict[type[object], Recorders] = {
    Transformer: TRANSFORMER,
    SpeechTransformer: TRANSFORMER,
    ConformerTransformer: TRANSFORMER,
    Rnn: {ENCODER: record_rnn_encoder, DECODER: record_rnn_decoder},
}
REMEDIES: dict[type[object], str] = {
    Ensemble: "export its members one by one",
    **dict.fromkeys((OnnxModel, OnnxSpeechModel, OnnxRnn), "it is exported already"),
}
OTHER_REMEDY = "decode it with pybeam.Decoder, which takes models of every kind as they are"


def recorders(model: object, algorithm: Algorithm | None = None) -> Recorders:
    """The functions that write the graph of each file; a whole search follows `algorithm`.

    Raises:
        TypeError, ValueError: the model cannot be exported, or the algorithm with it.
    """
    found = RECORDERS.get(type(model))
    if found is None or not isinstance(model, Transformer | Rnn):
        raise TypeError(
            "`model` must be a built-in transformer with an encoder, or an LSTM, as pybeam.load_model "
            f"returns, but is {type(model).__name__}; {REMEDIES.get(type(model), OTHER_REMEDY)}"
        )
    if isinstance(model, Transformer) and model.config.relative is not None:
        raise ValueError(
            f"`model` must have positions of its own, but is {model.config.model_type}, whose positions are "
            "relative, and they are not exported; decode it with pybeam.load_model and pybeam.Decoder"
        )
    if model.weight_dtype != torch.float32:
        raise ValueError(
            f"weights of `model` must be torch.float32, but are {model.weight_dtype}; load it with "
            "dtype='float32'"
        )
    if isinstance(model, Transformer) and model.cache_dtype != torch.float32:
        raise ValueError(
            f"the cache of `model` must be torch.float32, but is {model.cache_dtype}; load it "
            "with cache_dtype='float32'"
        )
    if algorithm is None:
        return found
    check_algorithm(algorithm)
    if SEARCH not in found:
        raise ArgumentError(
            "algorithm", "must be left out for an LSTM, which has no search.onnx, but is given"
        )
    return found | {SEARCH: partial(record_search, algorithm=algorithm)}
