"""The options of `translate_batch` and `generate_batch`, checked as CTranslate2 does, and their search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pybeam import processors
from pybeam.compat.ctranslate2.recipe import beam_search, processors_of
from pybeam.compat.ctranslate2.vocabulary import Vocabulary
from pybeam.limits import FREE, PrefixRule
from pybeam.processors.base import Processor
from pybeam.scoring import power
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import greedy

# behind a prefix of greedy search every EOS ends
COUNTED = PrefixRule(in_length=True, in_limits=True)


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, under the names of `translate_batch`."""

    beam_size: int
    patience: float
    num_hypotheses: int
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    disable_unk: bool
    suppress_sequences: Any
    max_length: int
    min_length: int
    sampling_topk: int
    sampling_topp: float
    sampling_temperature: float
    return_alternatives: bool
    min_alternative_expansion_prob: float
    coverage_penalty: float = 0
    prefix_bias_beta: float = 0

    @classmethod
    def of(cls, given: Mapping[str, Any], **changes: Any) -> SearchOptions:
        """Return the options among the arguments of a call, with some changes."""
        names = {one.name for one in dataclasses.fields(cls)} & given.keys()
        return cls(**{name: given[name] for name in names} | changes)

    def check(self, has_callback: bool) -> None:
        """Raise ValueError for what CTranslate2 refuses, and NotImplementedError for what is not there."""
        most = math.floor(self.beam_size * self.patience + 0.5)
        draws = self.beam_size == 1 and self.samples
        problems = {
            "The beam size must be > 0": self.beam_size < 1,
            "The patience factor must be > 0": self.patience <= 0,
            "The number of hypotheses must be > 0": self.num_hypotheses < 1,
            "The number of hypotheses cannot be greater than beam_size * patience": (
                self.num_hypotheses > most and not self.return_alternatives and not draws
            ),
            "The minimum decoding length is greater than the maximum decoding length": (
                self.min_length > self.max_length
            ),
            "The maximum decoding length must be > 0": self.max_length < 1,
            "The repetition penalty must be > 0": self.repetition_penalty <= 0,
            "The beta value in biased decoding must be < 1": self.prefix_bias_beta >= 1,
            "Biased decoding is not compatible with the return_alternatives mode": (
                self.prefix_bias_beta > 0 and self.return_alternatives
            ),
            "The minimum alternative expansion probability must be between 0 and 1": (
                not 0 <= self.min_alternative_expansion_prob <= 1
            ),
            "The callback function is not compatible with beam_size > 1 or prefix_bias_beta > 0": (
                has_callback and (self.beam_size != 1 or self.prefix_bias_beta > 0)
            ),
            "The sampling_topp parameter must be between 0 and 1": not 0 < self.sampling_topp <= 1,
        }
        for problem, is_there in problems.items():
            if is_there:
                raise ValueError(problem)
        if self.samples and (self.beam_size > 1 or self.return_alternatives):
            raise NotImplementedError(
                "`sampling_topk` with a beam draws new noise in every step, and pybeam does not; take "
                "`beam_size=1`, or pybeam.stochastic_beam"
            )

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn."""
        return self.sampling_topk != 1 and self.sampling_temperature != 0

    def sampler(self, seed: int) -> Processor:
        """Return what draws tokens."""
        return processors.sample(
            self.sampling_temperature, seed, top_k=self.sampling_topk, top_p=self.sampling_topp
        )

    def algorithm(self, vocabulary: Vocabulary) -> Algorithm:
        """Return the search."""
        suppressed = [
            vocabulary.target(one, allows_unknown=False) for one in self.suppress_sequences or ()
        ]
        unk_id = vocabulary.unk_id if self.disable_unk else None
        if self.beam_size > 1 and not self.return_alternatives:
            found = beam_search(
                self.beam_size,
                patience=self.patience,
                num_hypotheses=self.num_hypotheses,
                length_penalty=self.length_penalty,
                repetition_penalty=self.repetition_penalty,
                no_repeat_ngram_size=self.no_repeat_ngram_size,
                disable_unk=unk_id is not None,
                unk_id=unk_id,
                suppress_sequences=suppressed,
                prefix_bias_beta=self.prefix_bias_beta,
                max_decoding_length=self.max_length,
                min_decoding_length=self.min_length,
            )
            return self._covering(found)
        chain = processors_of(
            repetition_penalty=self.repetition_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            disabled=unk_id,
            suppress_sequences=suppressed,
            least=self.min_length,
        )
        if self.prefix_bias_beta:
            chain.append(processors.biased_prefix(self.prefix_bias_beta))
        if self.samples:
            chain.append(self.sampler(0))
        rule = FREE if self.prefix_bias_beta or self.return_alternatives else COUNTED
        common: dict[str, Any] = dict(
            max_length=self.max_length,
            scoring=power(self.length_penalty),
            processors=tuple(chain),
            prefix=rule,
        )
        if self.beam_size > 1:
            return dataclasses.replace(
                beam_search(
                    self.beam_size, patience=self.patience, length_penalty=self.length_penalty
                ),
                **common,
            )
        return self._covering(greedy(**common))

    def _covering(self, found: Algorithm) -> Algorithm:
        if not self.coverage_penalty:
            return found
        scoring = power(self.length_penalty, coverage=self.coverage_penalty)
        return dataclasses.replace(found, scoring=scoring)
