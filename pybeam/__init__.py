"""Beam search and its relatives, fast, with exact, documented semantics.

import pybeam
model = pybeam.load_model("examples/models/bible-es-en")
decoder = pybeam.Decoder(model, pybeam.variable_beam(width=50, threshold=1.5, max_candidates=5))
results = decoder.decode(requests)
"""

from pybeam import compat, drafts, limits, models, ops, processors, scoring, stopping
from pybeam.compat.generate import generate
from pybeam.decoder import DecodeError, Decoder
from pybeam.engine.request_queue import RequestQueue
from pybeam.engine.schedule import Batch, Fifo, Streaming
from pybeam.models.base import Alignment
from pybeam.models.loading import load_model
from pybeam.request import Hypothesis, Partial, Request, Result
from pybeam.search.beams import (
    fixed_beam,
    greedy,
    huang_beam,
    optimal_beam,
    shrinking_beam,
    variable_beam,
)
from pybeam.search.parallel import adaptive_jacobi, gauss_seidel_jacobi, hybrid_jacobi, jacobi
from pybeam.search.pruning import Pruning
from pybeam.search.several import diverse, stochastic_beam
from pybeam.text.tokenizer import load_tokenizer

__version__ = "0.1.0"

__all__ = [
    "Alignment",
    "Batch",
    "DecodeError",
    "Decoder",
    "Fifo",
    "Hypothesis",
    "Partial",
    "Pruning",
    "Request",
    "RequestQueue",
    "Result",
    "Streaming",
    "adaptive_jacobi",
    "compat",
    "diverse",
    "drafts",
    "fixed_beam",
    "gauss_seidel_jacobi",
    "generate",
    "greedy",
    "huang_beam",
    "hybrid_jacobi",
    "jacobi",
    "limits",
    "load_model",
    "load_tokenizer",
    "models",
    "ops",
    "optimal_beam",
    "processors",
    "scoring",
    "shrinking_beam",
    "stochastic_beam",
    "stopping",
    "variable_beam",
]
