"""Choose among outputs that a search or a sampler has found.

best = pybeam.reranking.minimum_bayes_risk(texts).index
results = pybeam.reranking.rerank(results, [scores], weights=(1.0, 0.5))
"""

from pybeam.reranking.chrf import chrf
from pybeam.reranking.mbr import (
    Choice,
    minimum_bayes_risk,
    pairwise,
    probability_weights,
    sample_weights,
)
from pybeam.reranking.rerank import forward_scores, rerank, reverse_scores

__all__ = [
    "Choice",
    "chrf",
    "forward_scores",
    "minimum_bayes_risk",
    "pairwise",
    "probability_weights",
    "rerank",
    "reverse_scores",
    "sample_weights",
]
