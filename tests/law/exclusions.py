"""Combinations that are no case, as data, each with its reason.

Where the library refuses a combination, `message` is what it says, and a test asks it. Where there is no
call that could be made, or the call means nothing by definition, `message` is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from law import axes

FUNCTIONS = ("function", "function, two EOS", "function, settings")
NO_WEIGHTS = (*FUNCTIONS, "wrapped-bart", "wrapped-mistral", "wrapped-mamba")
CAUSAL = tuple(name for name in axes.MODELS if name.startswith("causal-"))
SOUND = ("Speech2Text", "Whisper", "FireRedASR")
NO_ATTENTION = (*NO_WEIGHTS, "rnn", "marian-ssru", *CAUSAL, "onnx")
ROUNDED = ("bfloat16", "int8", "int4", "float8_e4m3fn")
NO_GUESSES = ("rnn", "marian-ssru", "wrapped-mamba")
NOT_GUESSING = tuple(name for name in axes.ALGORITHMS if name not in axes.GUESSING)
PERTURBS = ("gumbel",)
UNCHANGED = tuple(name for name in axes.PROCESSORS if name not in axes.CHANGES)
BY_STEP = ("fixed_beam, width by step",)
# searches that have one width in all steps
ONE_WIDTH = ("shrinking_beam", "huang_beam", "stochastic_beam", "opennmt", *axes.GUESSING)
REWARDED = ("optimal_beam", "huang_beam")
LONGEST_ITEM = "the tokens of the longest item and EOS"
GRAMMARS = ("grammar", "json_schema")
ITEMS = ("allowed_items", "allowed_items, renormalised", "allowed_items, behind others")
SCORED_BY_THEMSELVES = ("ctranslate2", "fairseq", "opennmt")


@dataclass(frozen=True)
class Exclusion:
    """Values of some axes that do not go together.

    Args:
        reason: why.
        message: a regular expression that the library's error matches; None: there is no such call.
        values: by axis: those that are left out together, each with each.
    """

    reason: str
    message: str | None
    values: Mapping[str, tuple[str, ...]]

    def holds(self, values: Mapping[str, str]) -> bool:
        """Whether a case has one of the values of every axis that is named."""
        return all(values[axis] in some for axis, some in self.values.items())


def _leave_out(reason: str, message: str | None = None, **values: tuple[str, ...]) -> Exclusion:
    return Exclusion(reason, message, values)


EXCLUSIONS = (
    # what a value means
    _leave_out(
        "a function, a wrapped network and a graph have the weights that they were made with",
        model=(*NO_WEIGHTS, "onnx"),
        weights=ROUNDED,
    ),
    _leave_out(
        "only an algorithm that guesses has guesses", prefix=("guessed",), algorithm=NOT_GUESSING
    ),
    _leave_out(
        "a call of `decode`, `score` or a worker returns when all is done, so nobody can cancel in it",
        entry=("decode", "score"),
        event=("cancel", "interrupted"),
    ),
    _leave_out(
        "the time of a worker's lines is never over",
        entry=("Worker",),
        event=("interrupted",),
    ),
    _leave_out(
        "partial results come from a stream or a service",
        output=("partials",),
        entry=("decode", "score", "Worker"),
    ),
    _leave_out(
        "alternatives have a method of their own, which stands for `decode`",
        output=("alternatives",),
        entry=tuple(name for name in axes.ENTRIES if name != "decode"),
    ),
    _leave_out(
        "these processors have nothing that a request may change",
        override=("processors",),
        processor=UNCHANGED,
    ),
    _leave_out(
        "the reference computes these as float32, and slowly; test_reference_backend.py compares them",
        backend=("reference",),
        weights=ROUNDED,
    ),
    _leave_out(
        "the reference only selects there, as it does for a function, or its members are on the axis",
        backend=("reference",),
        model=("ensemble", "wrapped-bart", "wrapped-mistral", "wrapped-mamba", "onnx"),
    ),
    # what the library refuses
    _leave_out(
        "this model has no attention",
        "attention needs a model that has it",
        output=("alignment",),
        model=NO_ATTENTION,
    ),
    _leave_out(
        "a step of this model cannot score guesses behind one another",
        "cannot score guesses behind one another",
        algorithm=axes.GUESSING,
        model=NO_GUESSES,
    ),
    _leave_out(
        "a guess is right if it is the most probable token",
        "takes the most probable token",
        algorithm=axes.GUESSING,
        processor=PERTURBS,
    ),
    _leave_out(
        "guesses are of one hypothesis",
        "follows one hypothesis to its end",
        algorithm=axes.GUESSING,
        override=("width",),
    ),
    _leave_out(
        "these searches have one width",
        "`width` must be an int in this search",
        algorithm=ONE_WIDTH,
        override=("width by step",),
    ),
    _leave_out(
        "samples are of a beam of one width",
        "`width` must be an int in this search",
        processor=PERTURBS,
        override=("width by step",),
    ),
    _leave_out(
        "samples are of a beam of one width",
        "`width` must be an int in this search",
        processor=PERTURBS,
        algorithm=BY_STEP,
    ),
    _leave_out(
        "what samples and what avoids other groups must both be the last",
        "must have .* last",
        processor=PERTURBS,
        algorithm=("stochastic_beam", *axes.GROUPS),
    ),
    _leave_out(
        "a request changes the one processor of its class",
        "of class Sample it has 2",
        processor=("sample",),
        algorithm=("sample",),
        override=("processors",),
    ),
    _leave_out(
        "a reward is of generated tokens",
        "`reward` must be 0 where a prefix counts in the length",
        algorithm=REWARDED,
        prefix=("counted",),
    ),
    _leave_out(
        "its rule of EOS behind a prefix is of one EOS",
        "`leading_eos` of `prefix` needs one EOS",
        algorithm=("ctranslate2",),
        model=("function, two EOS", *CAUSAL),
    ),
    _leave_out(
        "partial results are of one beam",
        "`partial` needs one beam per request",
        algorithm=axes.GROUPS,
        output=("partials",),
        entry=("stream",),
    ),
    _leave_out(
        "alternatives are ranked by probabilities",
        "which .* changes; take another algorithm",
        algorithm=("stochastic_beam", *axes.GROUPS),
        output=("alternatives",),
    ),
    _leave_out(
        "alternatives are ranked by probabilities",
        "which .* changes; take another algorithm",
        processor=PERTURBS,
        output=("alternatives",),
    ),
    _leave_out(
        "alternatives are of a beam of all next tokens",
        "needs a beam of all next tokens",
        algorithm=axes.GUESSING,
        output=("alternatives",),
    ),
    _leave_out(
        "an alternative lengthens the prefix, which must not change its score",
        "prefixes count for nothing",
        output=("alternatives",),
        prefix=("scored", "counted"),
    ),
    _leave_out(
        "an alternative lengthens the prefix, which must not change its score",
        "prefixes count for nothing",
        output=("alternatives",),
        algorithm=SCORED_BY_THEMSELVES,
    ),
    _leave_out(
        "behind an alternative, as behind every prefix, what is allowed begins anew",
        "what is allowed begins anew",
        output=("alternatives",),
        processor=(
            "allowed_sequences",
            "constraint",
            "must_contain",
            "regex",
            "lexicon",
            *ITEMS,
            *GRAMMARS,
            "language_model",
            "several, with state",
        ),
    ),
    _leave_out(
        "behind an alternative a rule begins anew",
        "what is allowed begins anew",
        output=("alternatives",),
        algorithm=tuple(axes.RULED),
    ),
    _leave_out(
        "a shortlist is of the tokens of a source",
        "needs sources of token ids",
        processor=("allowed_translations",),
        model=SOUND,
    ),
    _leave_out(
        "a list has one EOS beside its tokens",
        "needs a model with one EOS",
        processor=("allowed_translations",),
        model=("function, two EOS", *CAUSAL),
    ),
    _leave_out(
        "items do not fit in what the prefix leaves",
        LONGEST_ITEM,
        prefix=("counted",),
        override=("lengths",),
        processor=ITEMS,
    ),
    _leave_out(
        "items do not fit in what the prefix leaves",
        LONGEST_ITEM,
        algorithm=("ctranslate2", "fairseq"),
        prefix=("free", "scored"),
        override=("lengths",),
        processor=ITEMS,
    ),
)
