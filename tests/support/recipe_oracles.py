"""Beam search of fairseq, OpenNMT-py and FireRedASR in plain Python, one source at a time.

Written from their rules (as their own code has them) and not from ours. ``logits(tokens)`` gives the next
logits after these generated tokens, as a list; scores are Python's floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from support.processor_oracles import log_softmax
from support.search_models import EOS

INF = math.inf


@dataclass
class Row:
    tokens: list[int]  # generated ones, without EOS
    score: float
    ended: bool = False
    final: float = -INF


def best(candidates: list, count: int) -> list:
    """Sort by score. The sort is stable, so equal candidates stay in the order of rows and tokens."""
    return sorted(candidates, key=lambda c: -c[0])[:count]


def banned_by_ngrams(history: list[int], n: int) -> set[int]:
    context = history[len(history) - n + 1 :]
    ngrams = [history[i : i + n] for i in range(len(history) - n + 1)]
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == context}


def fairseq(
    logits,
    vocab_size: int,
    start: int,
    source_length: int,
    *,
    beam: int,
    nbest: int,
    max_len_a: float,
    max_len_b: int,
    min_len: int,
    normalize_scores: bool,
    lenpen: float,
    unkpen: float,
    temperature: float,
    no_repeat_ngram_size: int,
    tokens_to_suppress: list[int],
    pad_id: int,
    unk_id: int,
    prefix: list[int],
) -> list[Row]:
    max_len = int(max_len_a * source_length + max_len_b)
    rows, finalized = [Row([], 0.0)], []
    for step in range(max_len + 1):
        candidates = []
        for row in rows:
            lprobs = log_softmax([x / temperature for x in logits(row.tokens)])
            lprobs[pad_id] = -INF
            lprobs[unk_id] -= unkpen
            if step >= max_len:
                lprobs = [x if i == EOS else -INF for i, x in enumerate(lprobs)]
            if step < len(prefix) and step < max_len:
                lprobs = [x if i == prefix[step] else -INF for i, x in enumerate(lprobs)]
            else:
                if step < min_len:
                    lprobs[EOS] = -INF
                for token in tokens_to_suppress:
                    lprobs[token] = -INF
            if no_repeat_ngram_size:
                for token in banned_by_ngrams([start, *row.tokens], no_repeat_ngram_size):
                    lprobs[token] = -INF
            candidates += [(row.score + x, row, i) for i, x in enumerate(lprobs)]
        # candidates at -inf fill places in that system, but nothing goes on from them
        candidates = [c for c in best(candidates, 2 * beam) if c[0] > -INF]
        for score, row, token in candidates[:beam]:
            if token == EOS and len(finalized) < beam:
                final = score / (step + 1) ** lenpen if normalize_scores else score
                finalized.append(Row(row.tokens, score, True, final))
        if len(finalized) == beam:
            break
        going_on = [c for c in candidates if c[2] != EOS][:beam]
        rows = [Row([*row.tokens, token], score) for score, row, token in going_on]
    return sorted(finalized, key=lambda row: -row.final)[:nbest]


def opennmt(
    logits,
    vocab_size: int,
    start: int,
    source_length: int,
    *,
    beam_size: int,
    n_best: int,
    length_penalty: str,
    alpha: float,
    min_length: int,
    max_length: int,
    block_ngram_repeat: int,
    ban_unk_token: bool,
    unk_id: int,
    prefix: list[int],
) -> list[Row]:
    dead = -65504.0
    min_length, max_length = min_length + len(prefix), max_length + len(prefix)
    # that system fills all places from the first step on
    alive = [Row([], 0.0 if k == 0 else -INF) for k in range(beam_size)]
    hypotheses = []
    while True:
        length = 1 + len(alive[0].tokens)  # start token included
        penalty = dict(avg=length + 1, wu=(5 + length + 1) / 6, none=1)[length_penalty] ** alpha
        candidates = []
        for row in alive:
            lprobs = log_softmax(logits([t for t in row.tokens if t != EOS]))
            if length <= min_length:
                lprobs[EOS] = dead
            if ban_unk_token:
                lprobs[unk_id] = dead
            scores = [(row.score + x) / penalty for x in lprobs]
            if block_ngram_repeat and length >= block_ngram_repeat:
                for token in banned_by_ngrams([start, *row.tokens], block_ngram_repeat):
                    scores[token] = -1e20
            if length <= len(prefix):
                scores = [x - 1e6 * (i != prefix[length - 1]) for i, x in enumerate(scores)]
            candidates += [(x, row, i) for i, x in enumerate(scores)]
        chosen = best(candidates, beam_size)
        alive = [Row([*row.tokens, t], x * penalty, t == EOS, x) for x, row, t in chosen]
        for row in alive:
            is_cut = len(row.tokens) == max_length
            # a forbidden hypothesis that finishes is no output
            if (row.ended or is_cut) and row.score > dead / 2:
                tokens = row.tokens[:-1] if row.ended else row.tokens
                hypotheses.append(Row(tokens, row.score, row.ended, row.final))
        top_finished = alive[0].ended or len(alive[0].tokens) == max_length
        if top_finished and (len(hypotheses) >= n_best or len(alive[0].tokens) == max_length):
            return sorted(hypotheses, key=lambda row: -row.final)[:n_best]
        for row in alive:
            if row.ended:
                row.score = dead


def fireredasr(
    logits,
    vocab_size: int,
    start: int,
    source_length: int,
    *,
    beam_size: int,
    nbest: int,
    decode_max_len: int,
    softmax_smoothing: float,
    length_penalty: float,
    eos_penalty: float,
) -> list[Row]:
    beam = [Row([], 0.0 if k == 0 else -1e10) for k in range(beam_size)]
    for _ in range(decode_max_len or source_length):
        candidates = []
        for row in beam:
            if row.ended:
                candidates += [(row.score - 1e10 * (k > 0), row, EOS) for k in range(beam_size)]
                continue
            lprobs = log_softmax([x / softmax_smoothing for x in logits(row.tokens)])
            lprobs[EOS] *= eos_penalty
            top = best([(row.score + x, row, i) for i, x in enumerate(lprobs)], beam_size)
            candidates += top
        beam = [
            Row(row.tokens if t == EOS else [*row.tokens, t], score, t == EOS)
            for score, row, t in best(candidates, beam_size)
        ]
        if all(row.ended for row in beam):
            break
    for row in beam:
        # every token but EOS, start included
        length = 1 + len(row.tokens)
        row.final = row.score
        if length_penalty > 0:
            row.final /= ((5 + length) / 6) ** length_penalty
    found = [row for row in beam if row.score > -1e9]
    return sorted(found, key=lambda row: -row.final)[:nbest]
