"""Every processor against its oracle in plain Python, and against the one of transformers."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest
import torch

from pybeam import processors
from pybeam.speech import whisper_timestamps
from support import processor_oracles as oracles
from support.asserts import assert_close
from support.processor_rows import MAX_LENGTH, START, processed, random_histories

V = 11
SEQUENCES = [[3], [4, 5], [5, 4, 3], [2, 2], [2, 2, 2], [7, 8, 9, 10, 6], [4, 4]]
ALLOWED = [[2], [2, 3], [2, 3, 4, 5], [5, 5, 5, 2], [6, 2], [2, 4]]

SOURCE = [3, 2, 5, 3, 4, 3, 2]
BIASES = [((3,), 1.5), ((4, 5), -2.0), ((5, 4, 3), 0.7), ((2, 2), -0.3), ((START, 6), 4.0)]

# name -> (processor, oracle and what it takes beyond the row)
CASES = {
    "temperature": (processors.temperature(1.7), (oracles.temperature, 1.7)),
    "eos_penalty": (processors.eos_penalty(0.6), (oracles.eos_penalty, 0.6)),
    "repetition_penalty": (
        processors.repetition_penalty(1.3),
        (oracles.repetition_penalty, 1.3),
    ),
    "repetition_penalty-start": (
        processors.repetition_penalty(0.7, counts_start=True, stage="log_probs"),
        (oracles.repetition_penalty, 0.7, True),
    ),
    "count_penalty": (processors.count_penalty(0.7, -0.4), (oracles.count_penalty, 0.7, -0.4)),
    "count_penalty-presence": (
        processors.count_penalty(presence=1.5, stage="log_probs"),
        (oracles.count_penalty, 0.0, 1.5),
    ),
    "no_count_penalty": (processors.count_penalty(), (oracles.count_penalty, 0.0, 0.0)),
    **{
        f"no_repeat_ngram-{n}-{start}": (
            processors.no_repeat_ngram(n, counts_start=start),
            (oracles.no_repeat_ngram, n, start),
        )
        for n in (1, 2, 3, 40)
        for start in (False, True)
    },
    "suppress_tokens": (
        processors.suppress_tokens([3, 10, 3], stage="log_probs"),
        (oracles.suppress_tokens, [3, 10]),
    ),
    "suppress_nothing": (processors.suppress_tokens([]), (oracles.suppress_tokens, [])),
    "no_unk": (processors.no_unk(4), (oracles.suppress_tokens, [4])),
    "suppress_tokens_at_start": (
        processors.suppress_tokens_at_start([1, 5]),
        (oracles.suppress_tokens_at_start, [1, 5]),
    ),
    "suppress_sequences": (
        processors.suppress_sequences([*SEQUENCES, [START, 6], [START, 4, 2]]),
        (oracles.suppress_sequences, [*SEQUENCES, [START, 6], [START, 4, 2]]),
    ),
    "suppress_tokens_at_start-skips": (
        processors.suppress_tokens_at_start([1, 5], skips=1),
        (oracles.suppress_tokens_at_start, [1, 5], 1),
    ),
    "suppress_sequences-start": (
        processors.suppress_sequences(
            [*SEQUENCES, [1], [START, 6], [START, 4, 2]], counts_start=True, spares_eos=True
        ),
        (oracles.suppress_sequences, [*SEQUENCES, [1], [START, 6], [START, 4, 2]], True, True),
    ),
    "sequence_bias": (
        processors.sequence_bias(dict(BIASES)),
        (oracles.sequence_bias, BIASES),
    ),
    "sequence_bias-start": (
        processors.sequence_bias(dict(BIASES), counts_start=True, stage="log_probs"),
        (oracles.sequence_bias, BIASES, True),
    ),
    "no_sequence_bias": (processors.sequence_bias(), (oracles.sequence_bias, [])),
    "encoder_repetition_penalty": (
        processors.encoder_repetition_penalty(1.3, [3, 0, 3, 7]),
        (oracles.encoder_repetition_penalty, 1.3, [3, 0, 7]),
    ),
    "encoder_repetition_penalty-none": (
        processors.encoder_repetition_penalty(1.3, stage="log_probs"),
        (oracles.encoder_repetition_penalty, 1.3, []),
    ),
    "encoder_no_repeat_ngram": (
        processors.encoder_no_repeat_ngram(2, [4, 3, 3, 2, 4, 3]),
        (oracles.encoder_no_repeat_ngram, 2, [4, 3, 3, 2, 4, 3]),
    ),
    "encoder_no_repeat_ngram-start": (
        processors.encoder_no_repeat_ngram(1, [START, 3], counts_start=True),
        (oracles.encoder_no_repeat_ngram, 1, [START, 3], True),
    ),
    "min_length": (processors.min_length(3), (oracles.min_length, 3)),
    "min_length-prefix": (
        processors.min_length(3, counts_prefix=True, stage="log_probs"),
        (oracles.min_length, 3, True),
    ),
    "first_token": (processors.first_token(4), (oracles.first_token, 4)),
    # token 0 may stand where arrays are padded
    "first_token-zero": (processors.first_token(0), (oracles.first_token, 0)),
    "token_penalty-zero": (processors.token_penalty(0, -0.7), (oracles.token_penalty, 0, -0.7)),
    "any_first_token": (processors.first_token(), (oracles.first_token, None)),
    "force_eos": (processors.force_eos(), (oracles.force_eos, True)),
    "force_eos-free": (processors.force_eos(is_scored=False), (oracles.force_eos, False)),
    "eos_growth": (processors.eos_growth(2, 1.3), (oracles.eos_growth, 2, 1.3)),
    "token_penalty": (processors.token_penalty(4, -0.7), (oracles.token_penalty, 4, -0.7)),
    "suppress_no_sequences": (
        processors.suppress_sequences([]),
        (oracles.suppress_sequences, []),
    ),
    "top_k": (processors.top_k(3), (oracles.top_k, 3)),
    "top_k-log_probs": (processors.top_k(1, stage="log_probs"), (oracles.top_k, 1)),
    "top_k-all": (processors.top_k(V + 1), (oracles.top_k, V + 1)),
    "top_p": (processors.top_p(0.75), (oracles.top_p, 0.75)),
    "top_p-log_probs": (processors.top_p(0, stage="log_probs"), (oracles.top_p, 0)),
    "min_p": (processors.min_p(0.125), (oracles.min_p, 0.125)),
    "min_p-best": (processors.min_p(1, stage="log_probs"), (oracles.min_p, 1)),
    "biased_prefix": (
        processors.biased_prefix(0.4, [2, 3, 4]),
        (oracles.biased_prefix, 0.4, [2, 3, 4]),
    ),
    "biased_prefix-zero": (
        processors.biased_prefix(0.4, [0, 2]),
        (oracles.biased_prefix, 0.4, [0, 2]),
    ),
    "allowed_sequences": (
        processors.allowed_sequences(ALLOWED),
        (oracles.allowed_sequences, ALLOWED),
    ),
    "whisper_timestamps": (
        whisper_timestamps(4),
        (oracles.whisper_timestamps, 4),
    ),
    "whisper_timestamps-initial": (
        whisper_timestamps(5, max_initial=2, stage="log_probs"),
        (oracles.whisper_timestamps, 5, 2),
    ),
}


def expected_of(case: tuple, stage: str, logits, histories, forced) -> torch.Tensor:
    oracle, *arguments = case
    lines = []
    for row, history, num_forced in zip(logits.tolist(), histories, forced, strict=True):
        row = oracles.log_softmax(row) if stage == "log_probs" else row
        lines.append(oracle(row, history, num_forced, *arguments))
    return torch.tensor(lines, dtype=logits.dtype)


@pytest.mark.thinned()
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 8), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_as_the_oracle(name, seeds, backend):
    processor, case = CASES[name]
    for seed in seeds:
        rng = random.Random(seed)
        # few tokens, so that there are repetitions
        histories = random_histories(rng, rng.choice([4, V]), 18)
        if name in ("biased_prefix", "allowed_sequences"):
            lines = [*ALLOWED, [2, 3, 4], [2, 3, 4, 6], [2, 9]]
            histories += [[START, *rng.choice(lines)][: rng.randint(1, 5)] for _ in range(6)]
        forced = [rng.choice([0, 0, 1, 4]) for _ in histories]
        torch.manual_seed(seed)
        logits = 3 * torch.randn(len(histories), V, dtype=dtype_of(backend))
        logits[torch.rand(logits.shape) < 0.1] = -math.inf
        actual = processed(
            [processor], logits, histories, forced, room=rng.choice([0, 9]), backend=backend
        )
        expected = expected_of(case, processor.stage, logits, histories, forced)
        assert_near(actual, expected)


def dtype_of(backend: str) -> torch.dtype:
    """Native kernels take float32 alone."""
    return torch.float64 if backend == "reference" else torch.float32


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    # parameters are float32 on the device
    near = 1e-6 if expected.dtype == torch.float64 else 3e-6
    torch.testing.assert_close(actual, expected, rtol=near, atol=near)


@pytest.mark.thinned()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_half_precision_is_computed_in_float32(name, dtype):
    processor, case = CASES[name]
    torch.manual_seed(0)
    histories = random_histories(random.Random(0), V)
    logits = (3 * torch.randn(len(histories), V)).to(dtype)
    actual = processed([processor], logits, histories)
    expected = expected_of(case, processor.stage, logits.float(), histories, [0] * len(histories))
    assert actual.dtype == torch.float32
    assert_close(actual, expected)


def transformers_processors() -> dict:
    """name -> (ours, theirs)"""
    import transformers as hf

    bad_words_ids = [*SEQUENCES, [1], [START, 6], [START, 4, 2]]
    settings = hf.GenerationConfig(no_timestamps_token_id=4, eos_token_id=1)
    bad_words = hf.NoBadWordsLogitsProcessor(bad_words_ids, eos_token_id=1)
    return {
        "temperature": (processors.temperature(1.7), hf.TemperatureLogitsWarper(1.7)),
        "repetition_penalty": (
            processors.repetition_penalty(1.3, counts_start=True),
            hf.RepetitionPenaltyLogitsProcessor(1.3),
        ),
        "no_repeat_ngram": (
            processors.no_repeat_ngram(2, counts_start=True),
            hf.NoRepeatNGramLogitsProcessor(2),
        ),
        "no_repeat_unigram": (
            processors.no_repeat_ngram(1, counts_start=True),
            hf.NoRepeatNGramLogitsProcessor(1),
        ),
        "suppress_tokens": (
            processors.suppress_tokens([3, 10]),
            hf.SuppressTokensLogitsProcessor([3, 10]),
        ),
        "suppress_tokens_at_start-skips": (
            processors.suppress_tokens_at_start([1, 5], skips=1),
            hf.SuppressTokensAtBeginLogitsProcessor([1, 5], begin_index=2),
        ),
        "suppress_tokens_at_start": (
            processors.suppress_tokens_at_start([1, 5]),
            hf.SuppressTokensAtBeginLogitsProcessor([1, 5], begin_index=1),
        ),
        "suppress_sequences": (
            processors.suppress_sequences(bad_words_ids, counts_start=True, spares_eos=True),
            bad_words,
        ),
        "top_k": (processors.top_k(3), hf.TopKLogitsWarper(3)),
        "top_p": (processors.top_p(0.75), hf.TopPLogitsWarper(0.75)),
        "min_p": (processors.min_p(0.125), hf.MinPLogitsWarper(0.125)),
        "sequence_bias": (
            processors.sequence_bias(BIASES, counts_start=True),
            hf.SequenceBiasLogitsProcessor(dict(BIASES)),
        ),
        "encoder_repetition_penalty": (
            processors.encoder_repetition_penalty(1.3, SOURCE),
            hf.EncoderRepetitionPenaltyLogitsProcessor(1.3, torch.tensor([SOURCE] * 8)),
        ),
        "encoder_no_repeat_ngram": (
            processors.encoder_no_repeat_ngram(2, SOURCE, counts_start=True),
            hf.EncoderNoRepeatNGramLogitsProcessor(2, torch.tensor([SOURCE] * 8)),
        ),
        "first_token": (processors.first_token(4), hf.ForcedBOSTokenLogitsProcessor(4)),
        "force_eos": (
            processors.force_eos(is_scored=False),
            hf.ForcedEOSTokenLogitsProcessor(MAX_LENGTH + 1, 1),
        ),
        "eos_growth": (
            processors.eos_growth(2, 1.3),
            hf.ExponentialDecayLengthPenalty((2, 1.3), 1, 1),
        ),
        "whisper_timestamps": (
            whisper_timestamps(4),
            hf.WhisperTimeStampLogitsProcessor(settings, begin_index=1),
        ),
        "allowed_sequences": (
            processors.allowed_sequences(ALLOWED),
            hf.PrefixConstrainedLogitsProcessor(
                lambda _, tokens: allowed_after(tokens.tolist()), num_beams=1
            ),
        ),
    }


def allowed_after(tokens: list[int]) -> list[int]:
    row = oracles.allowed_sequences([0.0] * V, tokens, 0, ALLOWED)
    return [i for i, value in enumerate(row) if value == 0.0]


@pytest.mark.parametrize("name", transformers_processors())
def test_as_transformers(name):
    ours, theirs = transformers_processors()[name]
    for length in (0, 1, 2, 3, 7, 12):
        rng = random.Random(length)
        histories = [[START, *(rng.randrange(2, 6) for _ in range(length))] for _ in range(8)]
        if name == "allowed_sequences":
            # theirs raises where nothing is allowed
            histories = [[START, *line[:length]] for line in ALLOWED if len(line) >= length]
        if not histories:
            continue
        torch.manual_seed(length)
        logits = 3 * torch.randn(len(histories), V)
        if ours.stage == "log_probs":
            logits = logits.log_softmax(1)
        expected = theirs(torch.tensor(histories), logits.clone())
        assert_close(processed([ours], logits, histories), expected)


def test_everything_at_once():
    """In the order given, stage by stage."""
    names = ["temperature", "no_repeat_ngram-2-False", "suppress_tokens_at_start"]
    names += ["suppress_tokens", "eos_penalty", "biased_prefix"]
    histories = random_histories(random.Random(3), V, 12)
    torch.manual_seed(3)
    logits = 3 * torch.randn(len(histories), V)
    actual = processed([CASES[name][0] for name in names], logits, histories)
    for r, (row, history) in enumerate(zip(logits.tolist(), histories, strict=True)):
        for name in names[:3]:
            oracle, *arguments = CASES[name][1]
            row = oracle(row, history, 0, *arguments)
        row = oracles.log_softmax(row)
        for name in names[3:]:
            oracle, *arguments = CASES[name][1]
            row = oracle(row, history, 0, *arguments)
        assert actual[r].tolist() == pytest.approx(row, abs=1e-5)


STARTS = [name for name in CASES if name.endswith(("-start", "-True"))]


@pytest.mark.parametrize("name", STARTS)
def test_prompts_count_as_a_start(name, backend):
    """The whole of it, in place of the start token that stands for its last."""
    processor, case = CASES[name]
    rng = random.Random(3)
    histories = random_histories(rng, 4, 30)
    # some ids are not in the vocabulary, as those that stand for images
    lines = [
        [rng.choice([2, 3, 3, 4, V, V + 1]) for _ in range(rng.randint(1, 9))] for _ in histories
    ]
    torch.manual_seed(3)
    logits = torch.randn(len(histories), V, dtype=dtype_of(backend))
    ids = [torch.tensor(line) for line in lines]
    prompts = [torch.where(own < V, own, -2 - own) for own in ids]
    actual = processed([processor], logits, histories, prompts=prompts, backend=backend)
    whole = [line + history[1:] for line, history in zip(lines, histories, strict=True)]
    assert_near(actual, expected_of(case, processor.stage, logits, whole, [0] * len(histories)))


def test_rows_without_any_token_stay_so():
    histories = [[START], [START, 4]]
    logits = torch.stack((torch.full((V,), -math.inf), torch.zeros(V)))
    everything = processors.suppress_tokens(range(V))
    others = (processors.top_k(2), processors.top_p(0.5), processors.min_p(0.5))
    for last in (processors.eos_penalty(0.5), processors.biased_prefix(0.0, [3]), *others):
        result = processed([everything, last], logits, histories)
        assert (result == -math.inf).all()


def test_a_large_trie():
    rng = random.Random(0)
    sequences = list(
        {tuple(rng.randrange(2, 90) for _ in range(rng.randint(1, 5))) for _ in range(4000)}
    )
    trie = processors.allowed_sequences(sequences)
    histories = [[START, *rng.choice(sequences)][: rng.randint(1, 6)] for _ in range(40)]
    logits = torch.randn(40, 90)
    expected = expected_of(
        (oracles.allowed_sequences, sequences), "logits", logits, histories, [0] * 40
    )
    assert_close(processed([trie], logits, histories), expected)


@pytest.mark.parametrize("counts_start", [False, True])
@pytest.mark.parametrize("spares_eos", [False, True])
def test_requests_have_their_own_sequences(backend, counts_start, spares_eos):
    rng = random.Random(3)
    histories = random_histories(rng, V)
    numbers = [0, 1, 40, 0, 300, 3]
    lists = [
        [[rng.randrange(V) for _ in range(rng.randint(1, 4))] for _ in range(n)] for n in numbers
    ]
    build = partial(processors.suppress_sequences, counts_start=counts_start, spares_eos=spares_eos)
    requests = [(build(lines),) for lines in lists]
    logits = torch.randn(len(histories), V, generator=torch.Generator().manual_seed(1))
    found = processed([build([])], logits, histories, requests=requests, backend=backend)
    for row, lines in enumerate(lists):
        oracle = oracles.suppress_sequences
        expected = oracle(logits[row].tolist(), histories[row], 0, lines, counts_start, spares_eos)
        assert found[row].tolist() == expected


def test_no_token_stands_before_the_first(backend):
    """A sequence that is longer than what was generated is not near its end, whatever it begins with."""
    ban = processors.suppress_sequences([[1, 7], [4, 8], [5, 4, 9]])
    histories = [[START], [START, 4], [START, 5, 4], [START, 4, 5]]
    found = processed([ban], torch.zeros(4, V), histories, backend=backend)
    assert [line.isinf().nonzero().flatten().tolist() for line in found] == [[], [8], [8, 9], []]
