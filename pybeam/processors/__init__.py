"""Processors change the logits of a step before candidates are selected::

    pybeam.fixed_beam(5, processors=[temperature(1.25), no_repeat_ngram(3)])

Any processors go together, with every algorithm and schedule. They are applied in the given order, to all
rows at once. The tokens of hypotheses come from the token tree. Held (ended) hypotheses have no row and are
left alone. The tokens of `Request.prefix` are forced, whatever a processor does. `min_length` bans EOS after
all processors. A row whose tokens are all forbidden ends there. If all rows of a beam do, it stops as
"empty_beam". A processor whose arithmetic would round in half precision gets float32.

Stages. A processor of stage "logits" acts before the log-softmax: probability that it takes from one token
goes to the others. A processor of stage "log_probs" acts behind it, and scores add up its results as they
are. If both make sense, ``stage=`` chooses. The choice changes scores, and so beams. In greedy search, where
only the order within a row counts, bans give the same tokens in both stages.

==============  ================================================================================
CTranslate2     "logits" for everything; its biased prefix mixes probabilities, as ours
transformers    "log_probs" for everything in beam search, "logits" in greedy search
fairseq         temperature on "logits", all else on "log_probs"
OpenNMT-py      "log_probs" for everything
FireRedASR      softmax smoothing on "logits", EOS penalty on "log_probs"
==============  ================================================================================

With ``counts_start=True`` a processor also counts what a hypothesis starts from, as transformers does: the
start token, or the whole prompt of a decoder-only model. By default it does not.

Three related features are elsewhere: `Request.prefix` (a forced prefix), the `min_length` of an algorithm,
which bans EOS without normalising, and the length penalties of `pybeam.scoring`. Whole searches of other
systems are in `pybeam.compat`.

A request may use other numbers or ids: ``Request(source, processors=[temperature(0.8)])`` replaces the
algorithm's processor of the same class. "Per request" below says what may differ. Functions of your own take
(logits [R, V] float32, rows) and return logits. See `from_function` and `Processor`, and
`pybeam.models.base.Rows` for what they can read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pybeam.processors.allowed import allowed_sequences as allowed_sequences
    from pybeam.processors.allowed import allowed_tokens as allowed_tokens
    from pybeam.processors.bans import no_repeat_ngram as no_repeat_ngram
    from pybeam.processors.bans import no_unk as no_unk
    from pybeam.processors.bans import suppress_sequences as suppress_sequences
    from pybeam.processors.bans import suppress_tokens as suppress_tokens
    from pybeam.processors.bans import suppress_tokens_at_start as suppress_tokens_at_start
    from pybeam.processors.base import Processor as Processor
    from pybeam.processors.biases import sequence_bias as sequence_bias
    from pybeam.processors.constraints import constraint as constraint
    from pybeam.processors.counts import count_penalty as count_penalty
    from pybeam.processors.ends import eos_growth as eos_growth
    from pybeam.processors.ends import first_token as first_token
    from pybeam.processors.ends import force_eos as force_eos
    from pybeam.processors.ends import min_length as min_length
    from pybeam.processors.functions import from_function as from_function
    from pybeam.processors.grammars import grammar as grammar
    from pybeam.processors.grammars import json_schema as json_schema
    from pybeam.processors.language_models import language_model as language_model
    from pybeam.processors.languages import lexicon as lexicon
    from pybeam.processors.languages import regex as regex
    from pybeam.processors.penalties import biased_prefix as biased_prefix
    from pybeam.processors.penalties import eos_penalty as eos_penalty
    from pybeam.processors.penalties import repetition_penalty as repetition_penalty
    from pybeam.processors.penalties import temperature as temperature
    from pybeam.processors.penalties import token_penalty as token_penalty
    from pybeam.processors.phrases import must_contain as must_contain
    from pybeam.processors.sampling import gumbel as gumbel
    from pybeam.processors.sampling import sample as sample
    from pybeam.processors.sources import encoder_no_repeat_ngram as encoder_no_repeat_ngram
    from pybeam.processors.sources import encoder_repetition_penalty as encoder_repetition_penalty
    from pybeam.processors.truncation import min_p as min_p
    from pybeam.processors.truncation import top_k as top_k
    from pybeam.processors.truncation import top_p as top_p

# the names of each module below this package
_NAMES = {
    "allowed": "allowed_sequences allowed_tokens",
    "bans": "no_repeat_ngram no_unk suppress_sequences suppress_tokens suppress_tokens_at_start",
    "base": "Processor",
    "biases": "sequence_bias",
    "constraints": "constraint",
    "counts": "count_penalty",
    "ends": "eos_growth first_token force_eos min_length",
    "functions": "from_function",
    "grammars": "grammar json_schema",
    "language_models": "language_model",
    "languages": "lexicon regex",
    "penalties": "biased_prefix eos_penalty repetition_penalty temperature token_penalty",
    "phrases": "must_contain",
    "sampling": "gumbel sample",
    "sources": "encoder_no_repeat_ngram encoder_repetition_penalty",
    "truncation": "min_p top_k top_p",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pybeam.processors' has no attribute {name!r}")
    value = getattr(import_module(f"pybeam.processors.{_HOMES[name]}"), name)
    globals()[name] = value  # the next time Python finds it without asking here
    return value
