"""`Translator` of CTranslate2's Python package, over `pybeam.Decoder`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pybeam import processors
from pybeam.compat.ctranslate2.decoding import Call, Callback, SearchPool, placed
from pybeam.compat.ctranslate2.files import FileTranslator
from pybeam.compat.ctranslate2.iteration import iterated, streamed
from pybeam.compat.ctranslate2.options import SearchOptions
from pybeam.compat.ctranslate2.results import (
    GenerationStepResult,
    ScoringResult,
    TranslationResult,
)
from pybeam.compat.ctranslate2.vocabulary_map import VocabularyMap, only
from pybeam.processors.base import Processor
from pybeam.request import Hypothesis, Request

Tokens = Sequence[str]
Prefixes = Sequence[Tokens | None] | None


class Translator(FileTranslator, SearchPool):
    """A model with an encoder that translates tokens.

    The folder is one of CTranslate2, or one of transformers that `pybeam.load_model` reads. Results are those
    of `pybeam.compat.ctranslate2.beam_search`. What CTranslate2 has and pybeam has not raises
    NotImplementedError by its name.

    Args:
        model_path: the folder.
        device: "cpu", "cuda" or "auto".
        device_index: the GPU; there is one.
        compute_type: "default" is that of the folder's weights; "int16" is computed in float32.
        inter_threads: batches that are decoded at a time.
        intra_threads: threads of a batch, for the whole process; 0: as they are.
        max_queued_batches, flash_attention: have no meaning here.
        tensor_parallel: must be False.
        files: contents of the folder's files by name, in place of the folder.

    Raises:
        RuntimeError: the folder is missing, or holds no model with an encoder.
        ValueError, TypeError: an argument or a file is not sound.
    """

    has_encoder = True

    @property
    def num_translators(self) -> int:
        """How many batches are translated at a time."""
        return self.num_replicas

    # the parameters are those of the system that this stands in for
    def translate_batch(
        self,
        source: Sequence[Tokens],
        target_prefix: Prefixes = None,
        *,
        max_batch_size: int = 0,
        batch_type: str = "examples",
        asynchronous: bool = False,
        beam_size: int = 2,
        patience: float = 1,
        num_hypotheses: int = 1,
        length_penalty: float = 1,
        coverage_penalty: float = 0,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        disable_unk: bool = False,
        suppress_sequences: Sequence[Tokens] | None = None,
        end_token: str | Sequence[str] | Sequence[int] | None = None,
        return_end_token: bool = False,
        prefix_bias_beta: float = 0,
        max_input_length: int = 1024,
        max_decoding_length: int = 256,
        min_decoding_length: int = 1,
        use_vmap: bool = False,
        return_scores: bool = False,
        return_logits_vocab: bool = False,
        return_attention: bool = False,
        return_alternatives: bool = False,
        min_alternative_expansion_prob: float = 0,
        sampling_topk: int = 1,
        sampling_topp: float = 1,
        sampling_temperature: float = 1,
        replace_unknowns: bool = False,
        callback: Callback | None = None,
    ) -> Any:
        """Translate batches of tokens.

        Args:
            source: tokens of each example.
            target_prefix: tokens that outputs begin with, or nothing, for each example.
            max_batch_size, batch_type: how many "examples" or "tokens" are decoded at once; 0: all.
            asynchronous: whether to return at once what the results will be asked of.
            beam_size, patience, num_hypotheses, length_penalty, repetition_penalty, no_repeat_ngram_size,
                disable_unk, suppress_sequences: see `beam_search`; a beam of 1 is greedy search.
            end_token, return_end_token: the tokens that end in place of EOS, and whether they are returned.
            prefix_bias_beta: makes the prefix likely instead of forcing it.
            coverage_penalty: see `pybeam.scoring.power`.
            max_input_length, max_decoding_length, min_decoding_length: tokens at which a source is cut, and
                of outputs.
            use_vmap: whether the tokens of `vmap.txt` alone are generated, if the folder has that file.
            return_scores, return_logits_vocab, return_attention: what results have beside tokens.
            return_alternatives, min_alternative_expansion_prob: see `pybeam.Decoder.alternatives`.
            sampling_topk, sampling_topp, sampling_temperature: how tokens are drawn; a `sampling_topk` of 1
                draws none, and 0 draws from all.
            replace_unknowns: whether unknown words become the source tokens that are attended to most.
            callback: is told each token of greedy search, and returns whether the example shall end there.

        Returns:
            A list of `TranslationResult`, or with `asynchronous` one of objects with `result` and `done`.

        Raises:
            ValueError: an option is out of range, or a token is not known.
            NotImplementedError: tokens are to be drawn within a beam, or logits or attention are wanted
                beside a callback.
        """
        options = SearchOptions.of(
            locals(), max_length=max_decoding_length, min_length=min_decoding_length
        )
        prefixes = [None] * len(source) if target_prefix is None else target_prefix
        given = [(one, prefix or []) for one, prefix in zip(source, prefixes, strict=True)]

        def run(batch: list[int]) -> list[TranslationResult]:
            call = Call(
                options,
                self._end_ids(end_token),
                placed(callback, batch),
                has_scores=return_scores,
                has_attention=return_attention,
                has_logits=return_logits_vocab,
                has_end=return_end_token,
                replaces_unknowns=replace_unknowns,
                processors=self._restriction([given[i] for i in batch]) if use_vmap else (),
            )
            return self._translated(call, [given[i] for i in batch], max_input_length)

        lengths = [len(one) for one in source]
        return self._run(run, lengths, max_batch_size, batch_type, asynchronous)

    def _translated(
        self, call: Call, given: Sequence[tuple[Tokens, Tokens]], longest: int
    ) -> list[TranslationResult]:
        call.options.check(call.callback is not None)
        places = [i for i, pair in enumerate(given) if not self._vocabulary.is_empty(pair[0])]
        full = [given[i] for i in places]
        call = replace(call, callback=placed(call.callback, places))
        beta = call.options.prefix_bias_beta
        requests = [self._request(tokens, prefix, longest, beta) for tokens, prefix in full]
        found = self._decode(call, requests) if requests else []
        logits = self._all_logits(call, requests, found)
        results = iter(
            self._result(call, pair[0], *one)
            for pair, one in zip(full, zip(found, logits, strict=True), strict=True)
        )
        return [
            self._of_nothing(call, *pair) if self._vocabulary.is_empty(pair[0]) else next(results)
            for pair in given
        ]

    def _restriction(self, given: Sequence[tuple[Tokens, Tokens]]) -> tuple[Processor, ...]:
        """Return a processor that leaves a batch the tokens of `vmap.txt`; nothing without that file."""
        known = VocabularyMap.load(self._directory, self._vocabulary)
        if known is None:
            return ()
        prefixes = (self._vocabulary.target(prefix) for _, prefix in given)
        candidates = known.candidates(tokens for tokens, _ in given).union(*prefixes)
        return (only(candidates, self._ready.vocab_size),)

    def _request(self, tokens: Tokens, prefix: Tokens, longest: int, beta: float) -> Request:
        ids, start = self._vocabulary.target(prefix), None
        if self._vocabulary.needs_start:
            if not ids:
                raise ValueError("One input has no decoder start token")
            start, *ids = ids
        source = self._vocabulary.source(tokens, longest)
        if beta and ids:
            favoured = [processors.biased_prefix(beta, ids)]
            return Request(source, prefix=[], start=start, processors=favoured)
        return Request(source, prefix=ids, start=start)

    def _result(
        self, call: Call, source: Tokens, found: Sequence[Hypothesis], logits: Any
    ) -> TranslationResult:
        tokens, attention = [], []
        for one in found:
            own = self._vocabulary.tokens(one.tokens)
            if one.attention is not None:
                vectors = self._vocabulary.own_attention(one.attention.tolist(), len(source))
                attention.append(vectors)
                if call.replaces_unknowns:
                    own = self._replaced(own, vectors, source)
            if call.has_end and one.eos_id is not None:
                own += self._vocabulary.tokens([one.eos_id])
            tokens.append(own)
        scores = [one.final_score for one in found] if call.has_scores else []
        return TranslationResult(tokens, scores, attention if call.has_attention else [], logits)

    def _replaced(
        self, tokens: list[str], attention: Sequence[list[float]], source: Tokens
    ) -> list[str]:
        """Return tokens with that of the source which is attended to most in the place of unknown ones."""
        unknown = self._vocabulary.unk_token
        return [
            source[max(range(len(vector)), key=vector.__getitem__)] if token == unknown else token
            for token, vector in zip(tokens, attention, strict=True)
        ]

    def _of_nothing(self, call: Call, source: Tokens, prefix: Tokens) -> TranslationResult:
        """Return the result for a source that says nothing, which is the prefix."""
        num = call.options.num_hypotheses
        own = list(prefix)[int(self._vocabulary.needs_start) :][: call.options.max_length]
        tokens = self._vocabulary.tokens(self._vocabulary.target(own))
        attention = [[0.0] * len(source) for _ in tokens]
        return TranslationResult(
            [tokens] * num,
            [0.0] * num if call.has_scores else [],
            [attention] * num if call.has_attention else [],
        )

    def translate_iterable(
        self,
        source: Iterable[Tokens],
        target_prefix: Iterable[Tokens] | None = None,
        max_batch_size: int = 32,
        batch_type: str = "examples",
        **kwargs: Any,
    ) -> Iterator[TranslationResult]:
        """Yield the translations of an iterable, in its order.

        Args:
            source, target_prefix, max_batch_size, batch_type, kwargs: as of `translate_batch`.

        Raises:
            ValueError: one iterable is longer than the other.
        """
        given = [source] if target_prefix is None else [source, target_prefix]
        return iterated(self.translate_batch, given, max_batch_size, batch_type, kwargs)

    def generate_tokens(
        self,
        source: Tokens,
        target_prefix: Tokens | None = None,
        *,
        return_log_prob: bool = False,
        **options: Any,
    ) -> Iterator[GenerationStepResult]:
        """Yield the tokens of greedy search or of a sample as they come.

        Args:
            source, target_prefix, options: as of `translate_batch`, of one example.
            return_log_prob: whether the tokens have their log-probabilities.
        """
        prefix = None if target_prefix is None else [target_prefix]
        yield from streamed(
            self.translate_batch,
            [source],
            prefix,
            beam_size=1,
            return_scores=return_log_prob,
            **options,
        )

    def score_batch(
        self,
        source: Sequence[Tokens],
        target: Sequence[Tokens],
        *,
        max_batch_size: int = 0,
        batch_type: str = "examples",
        max_input_length: int = 1024,
        offset: int = 0,
        asynchronous: bool = False,
    ) -> Any:
        """Return the log-probabilities of given tokens and of EOS behind them.

        Args:
            source, target: tokens of each example.
            max_batch_size, batch_type, asynchronous: as of `translate_batch`.
            max_input_length: tokens at which both are cut.
            offset: how many of the first tokens are left out of the result.

        Returns:
            A list of `ScoringResult`, or with `asynchronous` of objects with `result` and `done`.
        """
        given = list(zip(source, target, strict=True))

        def run(batch: list[int]) -> list[ScoringResult]:
            return self._scored([given[i] for i in batch], max_input_length, offset)

        lengths = [len(one) for one in source]
        return self._run(run, lengths, max_batch_size, batch_type, asynchronous)

    def _scored(
        self, given: Sequence[tuple[Tokens, Tokens]], longest: int, offset: int
    ) -> list[ScoringResult]:
        requests, targets = [], []
        for tokens, target in given:
            request = self._request(
                tokens, target[:1] if self._vocabulary.needs_start else [], longest, 0
            )
            ids = self._vocabulary.target(target)[int(self._vocabulary.needs_start) :]
            requests.append(request)
            # with EOS there are `longest`
            targets.append([*(ids[: longest - 1] if longest else ids), self._ready.eos_id])
        full = [i for i, request in enumerate(requests) if len(request.source)]
        scores = (
            self._score([requests[i] for i in full], [targets[i] for i in full]) if full else []
        )
        by_place = dict(zip(full, scores, strict=True))
        results = []
        for i, ids in enumerate(targets):
            tokens = self._vocabulary.tokens(ids)
            log_probs = by_place.get(i, [0.0] * len(tokens))
            results.append(ScoringResult(tokens[offset:], log_probs[offset:]))
        return results

    def score_iterable(
        self,
        source: Iterable[Tokens],
        target: Iterable[Tokens],
        max_batch_size: int = 64,
        batch_type: str = "examples",
        **kwargs: Any,
    ) -> Iterator[ScoringResult]:
        """Yield the log-probabilities of iterables, in their order.

        Args:
            source, target, max_batch_size, batch_type, kwargs: as of `score_batch`.
        """
        return iterated(self.score_batch, [source, target], max_batch_size, batch_type, kwargs)
