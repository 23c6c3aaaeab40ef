"""`Generator` of CTranslate2's Python package, over `pybeam.Decoder`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pybeam.compat.ctranslate2.decoding import Call, Callback, SearchPool, placed, with_end
from pybeam.compat.ctranslate2.iteration import iterated, streamed
from pybeam.compat.ctranslate2.options import SearchOptions
from pybeam.compat.ctranslate2.results import (
    GenerationResult,
    GenerationStepResult,
    ScoringResult,
    StorageView,
)
from pybeam.request import Request
from pybeam.search.beams import greedy

Tokens = Sequence[str]


class Generator(SearchPool):
    """A model without an encoder that goes on from tokens.

    Args:
        model_path, device, device_index, compute_type, inter_threads, intra_threads, max_queued_batches,
            flash_attention, tensor_parallel, files: see `Translator`.

    Raises:
        RuntimeError, ValueError, TypeError: as `Translator`.
    """

    has_encoder = False

    @property
    def num_generators(self) -> int:
        """How many batches are decoded at a time."""
        return self.num_replicas

    # the parameters are those of the system that this stands in for
    def generate_batch(
        self,
        start_tokens: Sequence[Tokens],
        *,
        max_batch_size: int = 0,
        batch_type: str = "examples",
        asynchronous: bool = False,
        beam_size: int = 1,
        patience: float = 1,
        num_hypotheses: int = 1,
        length_penalty: float = 1,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        disable_unk: bool = False,
        suppress_sequences: Sequence[Tokens] | None = None,
        end_token: str | Sequence[str] | Sequence[int] | None = None,
        return_end_token: bool = False,
        max_length: int = 512,
        min_length: int = 0,
        static_prompt: Tokens | None = None,
        cache_static_prompt: bool = True,
        include_prompt_in_result: bool = True,
        return_scores: bool = False,
        return_logits_vocab: bool = False,
        return_alternatives: bool = False,
        min_alternative_expansion_prob: float = 0,
        sampling_topk: int = 1,
        sampling_topp: float = 1,
        sampling_temperature: float = 1,
        callback: Callback | None = None,
    ) -> Any:
        """Go on from batches of tokens.

        Args:
            start_tokens: a prompt for each example.
            max_batch_size, batch_type: how many "examples" or "tokens" are decoded at once; 0: all.
            asynchronous: whether to return at once what the results will be asked of.
            beam_size, patience, num_hypotheses, length_penalty, repetition_penalty, no_repeat_ngram_size,
                disable_unk, suppress_sequences: see `beam_search`; a beam of 1 is greedy search.
            end_token, return_end_token: the tokens that end in place of EOS, and whether they are returned.
            max_length, min_length: of outputs, the prompt included if it is returned.
            static_prompt: tokens before each prompt.
            cache_static_prompt: has no effect; prompts that begin alike always share what was computed.
            include_prompt_in_result: whether the prompt is returned; then it is forced, and counts.
            return_scores, return_logits_vocab: what results have beside tokens.
            return_alternatives, min_alternative_expansion_prob: see `pybeam.Decoder.alternatives`.
            sampling_topk, sampling_topp, sampling_temperature: how tokens are drawn; a `sampling_topk` of 1
                draws none, and 0 draws from all.
            callback: see `Translator.translate_batch`.

        Returns:
            A list of `GenerationResult`, or with `asynchronous` one of objects with `result` and `done`.

        Raises:
            ValueError, NotImplementedError: as `Translator.translate_batch`.
        """
        options = SearchOptions.of(locals())

        def run(batch: list[int]) -> list[GenerationResult]:
            call = Call(
                options,
                self._end_ids(end_token),
                placed(callback, batch),
                has_scores=return_scores,
                has_logits=return_logits_vocab,
                has_end=return_end_token,
            )
            before = self._vocabulary.target(static_prompt or ())
            given = [self._vocabulary.target(start_tokens[i]) for i in batch]
            return self._generated(call, before, given, include_prompt_in_result)

        lengths = [len(one) for one in start_tokens]
        return self._run(run, lengths, max_batch_size, batch_type, asynchronous)

    def _generated(
        self,
        call: Call,
        before: list[int],
        given: Sequence[list[int]],
        includes_prompt: bool,
    ) -> list[GenerationResult]:
        if not all(given):
            raise ValueError("One input has no decoder start token")
        ends = {*(call.end_ids or self._ready.eos_ids)}
        # a prompt that is returned is a prefix, which no EOS is in
        known = [
            1 if includes_prompt and not ends.intersection(ids[1:]) else len(ids) for ids in given
        ]
        requests = []
        for ids, num in zip(given, known, strict=True):
            source, most = [*before, *ids[:num]], call.options.max_length
            if includes_prompt:
                most -= num - 1
            room = self._ready.max_positions - len(source) + 1
            longest = max(1, min(most, room))
            requests.append(Request(source, prefix=ids[num:], max_length=longest))
        found = self._decode(call, requests)
        logits = self._all_logits(call, requests, found)
        results = []
        for ids, num, hypotheses, own in zip(given, known, found, logits, strict=True):
            # BOS is not returned
            is_bos = ids[0] == self._vocabulary.bos_id
            first = ids[int(is_bos) : num] if includes_prompt else []
            sequences = [
                [*first, *(with_end(one) if call.has_end else one.tokens)] for one in hypotheses
            ]
            scores = [one.final_score for one in hypotheses] if call.has_scores else []
            tokens = [self._vocabulary.tokens(sequence) for sequence in sequences]
            results.append(GenerationResult(tokens, sequences, scores, own))
        return results

    def generate_iterable(
        self,
        start_tokens: Iterable[Tokens],
        max_batch_size: int = 32,
        batch_type: str = "examples",
        **kwargs: Any,
    ) -> Iterator[GenerationResult]:
        """Yield the results for an iterable, in its order.

        Args:
            start_tokens, max_batch_size, batch_type, kwargs: as of `generate_batch`.
        """
        return iterated(self.generate_batch, [start_tokens], max_batch_size, batch_type, kwargs)

    def generate_tokens(
        self,
        prompt: Tokens | Sequence[Tokens],
        max_batch_size: int = 0,
        batch_type: str = "examples",
        *,
        return_log_prob: bool = False,
        **options: Any,
    ) -> Iterator[GenerationStepResult]:
        """Yield the tokens of greedy search or of a sample as they come.

        Args:
            prompt: tokens, or several lists of them.
            max_batch_size, batch_type, options: options of `generate_batch`.
            return_log_prob: whether the tokens have their log-probabilities.
        """
        prompts = [prompt] if prompt and isinstance(prompt[0], str) else prompt
        yield from streamed(
            self.generate_batch,
            prompts,
            max_batch_size=max_batch_size,
            batch_type=batch_type,
            beam_size=1,
            return_scores=return_log_prob,
            include_prompt_in_result=False,
            **options,
        )

    async def async_generate_tokens(
        self,
        prompt: Tokens | Sequence[Tokens],
        max_batch_size: int = 0,
        batch_type: str = "examples",
        **options: Any,
    ) -> AsyncIterator[GenerationStepResult]:
        """Yield the tokens as `generate_tokens` does, without holding up an event loop.

        Args:
            prompt, max_batch_size, batch_type, options: as of `generate_tokens`.
        """
        steps = self.generate_tokens(prompt, max_batch_size, batch_type, **options)
        try:
            while (step := await asyncio.to_thread(next, steps, None)) is not None:
                yield step
        finally:
            await asyncio.to_thread(getattr(steps, "close", lambda: None))

    def score_batch(
        self,
        tokens: Sequence[Tokens],
        *,
        max_batch_size: int = 0,
        batch_type: str = "examples",
        max_input_length: int = 1024,
        asynchronous: bool = False,
    ) -> Any:
        """Return the log-probabilities of all tokens but the first.

        Args:
            tokens: those of each example.
            max_batch_size, batch_type, asynchronous: as of `generate_batch`.
            max_input_length: tokens at which examples are cut; 0: nowhere.
        """

        def run(batch: list[int]) -> list[ScoringResult]:
            return self._scored([tokens[i] for i in batch], max_input_length)

        lengths = [len(one) for one in tokens]
        return self._run(run, lengths, max_batch_size, batch_type, asynchronous)

    def _scored(self, given: Sequence[Tokens], longest: int) -> list[ScoringResult]:
        ids = [self._vocabulary.target(one) for one in given]
        cut = [one[: longest + 1] if longest else one for one in ids]
        full = [i for i, one in enumerate(cut) if len(one) > 1]
        requests = [Request(cut[i][:1], prefix=[]) for i in full]
        scores = self._score(requests, [cut[i][1:] for i in full]) if full else []
        results = [ScoringResult([], []) for _ in given]
        for i, log_probs in zip(full, scores, strict=True):
            results[i] = ScoringResult(self._vocabulary.tokens(cut[i][1:]), log_probs)
        return results

    def score_iterable(
        self,
        tokens: Iterable[Tokens],
        max_batch_size: int = 64,
        batch_type: str = "examples",
        **kwargs: Any,
    ) -> Iterator[ScoringResult]:
        """Yield the log-probabilities of an iterable, in its order.

        Args:
            tokens, max_batch_size, batch_type, kwargs: as of `score_batch`.
        """
        return iterated(self.score_batch, [tokens], max_batch_size, batch_type, kwargs)

    def forward_batch(
        self, inputs: Any, lengths: Any = None, *, return_log_probs: bool = False
    ) -> StorageView:
        """Return the logits [B, T, V] behind every token of B sequences; those behind shorter ones are 0.

        Args:
            inputs: tokens, ids, or an array of ids [B, T] with `lengths` [B].
            lengths: of the sequences of an array.
            return_log_probs: whether to return log-probabilities instead.

        Raises:
            ValueError: a sequence is empty, or an array has no `lengths`.
        """
        sequences = self._ids_of(inputs, lengths)
        if not all(sequences):
            raise ValueError("`inputs` must be sequences of at least one token")
        requests = [Request(one[:1], prefix=[], target=one[1:]) for one in sequences]
        rows = self._rows(greedy(), requests, (self._unused(sequences),))
        longest = max(map(len, sequences))
        logits = torch.zeros(len(sequences), longest, self._ready.vocab_size)
        for i, own in enumerate(rows):
            logits[i, : len(own)] = torch.stack(own)
        return StorageView(logits.log_softmax(2) if return_log_probs else logits)

    def _ids_of(self, inputs: Any, lengths: Any) -> list[list[int]]:
        if isinstance(inputs, list | tuple):
            return [
                self._vocabulary.target(one) if one and isinstance(one[0], str) else list(one)
                for one in inputs
            ]
        if lengths is None:
            raise ValueError("lengths vector is required when passing a dense input")
        pairs = zip(np.asarray(inputs).tolist(), np.asarray(lengths).tolist(), strict=True)
        return [ids[:num] for ids, num in pairs]
