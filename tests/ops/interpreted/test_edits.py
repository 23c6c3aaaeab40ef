"""Processors that change few logits, in one launch, beside the processors one after another."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from pybeam import backends, processors
from pybeam.backends import defaults
from pybeam.processors.chain import ProcessorChain
from pybeam.speech import whisper_timestamps
from pybeam.speech.whisper.requests import RecordLogProbs, TokenLogProbs
from pybeam.triton_kernels.logits import edits
from support.processor_rows import EOS, START, processed, random_histories, rows_of

VOCAB_SIZE = 30
PREFIX_LENGTHS = [0, 2, 1, 0, 0, 3]
# sums of biases are exact
BIASES = {
    (6,): 0.5,
    (2, 6): -2.0,
    (2, 2, 6): 4.0,
    (3,): 1.0,
    (START, 2): 8.0,
    (3, 4): -1.5,
    (9, 4, 7): 2.0,
}
ALL = (
    processors.suppress_tokens([4, 9, 4]),
    processors.repetition_penalty(1.7),
    processors.no_repeat_ngram(2),
    processors.suppress_sequences([[7], [3, 5], [2, 2, 6], [EOS]], spares_eos=True),
    processors.suppress_tokens_at_start([11, 12], skips=1),
    processors.min_length(3),
    processors.no_repeat_ngram(3, counts_start=True, stage="log_probs"),
    processors.repetition_penalty(0.6, counts_start=True, stage="log_probs"),
    processors.eos_penalty(0.5),
    processors.token_penalty(8, -2.5),
    processors.min_length(6, counts_prefix=True, stage="log_probs"),
    processors.suppress_sequences([[START, 13]], counts_start=True, stage="log_probs"),
    processors.first_token(17),
    processors.force_eos(is_scored=False),
    processors.count_penalty(0.7, -0.4),
    processors.count_penalty(presence=1.5, stage="log_probs"),
    processors.sequence_bias(BIASES),
    processors.sequence_bias(BIASES, counts_start=True, stage="log_probs"),
)
CHAINS = {type(p).__name__ + str(i): (p,) for i, p in enumerate(ALL)} | {
    "all": ALL[:14],
    "with counts": (ALL[16], ALL[14], ALL[2], ALL[17], ALL[15]),
    "scored end": (processors.force_eos(), processors.eos_penalty(2.0)),
    "one gram": (processors.no_repeat_ngram(1), processors.temperature(1.5), ALL[0]),
}


def histories(seed: int = 1) -> list[list[int]]:
    found = random_histories(random.Random(seed), VOCAB_SIZE)
    found[1:3] = [[START, 2, 2, 5, 2, 2], [START, *[3, 4, 3, 4, 3]]]
    return [
        line if len(line) > n else [*line, *[5] * n]
        for line, n in zip(found, PREFIX_LENGTHS, strict=True)
    ]


def logits_of(num_rows: int) -> torch.Tensor:
    torch.manual_seed(5)
    logits = 3 * torch.randn(num_rows, VOCAB_SIZE)
    logits[0, 4], logits[1, 9], logits[2, 3], logits[3, 2] = -torch.inf, torch.nan, 0.0, -0.0
    return logits


@pytest.fixture(autouse=True)
def log_softmax_of_torch(monkeypatch):
    """The rounding of another one would show in every bit."""
    monkeypatch.setattr(backends.load("triton"), "log_softmax", defaults.log_softmax)


@pytest.fixture(params=[2, 256])
def block(request, monkeypatch):
    """Histories of several blocks, and of one."""
    monkeypatch.setattr(edits, "BLOCKS", (request.param,))


def same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(actual.nan_to_num(nan=9e9), expected.nan_to_num(nan=9e9))


@pytest.mark.parametrize("name", CHAINS)
def test_as_one_after_another(name, block, monkeypatch):
    rows = histories()
    given = CHAINS[name], logits_of(len(rows)), rows, PREFIX_LENGTHS
    expected = processed(*given)
    prompts = [torch.tensor(p) for p in ([START, 5, 2, 2], [3, 4], [2], [7, 7], [9], [13, 5])]
    with_prompts = processed(*given, prompts=prompts)
    monkeypatch.setattr("support.processor_rows.BACKEND", "triton")
    assert same(processed(*given), expected)
    assert same(processed(*given, prompts=prompts), with_prompts)


def test_numbers_of_requests(monkeypatch):
    def own(i: int) -> tuple:
        return (
            processors.suppress_tokens(range(2 * i, 3 * i)),
            processors.suppress_sequences([[j, j + 1] for j in range(i)]),
            processors.repetition_penalty(1.0 + i),
            processors.count_penalty(0.5 * (i % 3), 0.25 * (i % 2)),
            processors.sequence_bias({(j, j + 1): 0.5 * j for j in range(i)} | {(3 + i,): 1.0}),
        )

    rows = histories()
    given = own(1), logits_of(len(rows)), rows, PREFIX_LENGTHS
    requests = [own(i) for i in range(len(rows))]
    expected = processed(*given, requests=requests)
    monkeypatch.setattr("support.processor_rows.BACKEND", "triton")
    assert same(processed(*given, requests=requests), expected)


@pytest.mark.parametrize("stage", ["logits", "log_probs"])
def test_marks(stage, block, monkeypatch):
    """In all states of a segment, within a prefix and behind it; other requests begin with given tokens."""
    rows = [[START, *own] for own in ([], [21], [21, 4], [21, 4, 24], [21, 24, 24], [22, 5], [25])]
    lengths = [0, 0, 0, 0, 0, 2, 3]
    chain = (ALL[0], whisper_timestamps(20, max_initial=3, stage=stage))
    requests = [(ALL[0], dataclasses.replace(chain[1], is_begun=i % 2 > 0)) for i in range(7)]
    for favour in (-3, 0, 3):
        logits = logits_of(len(rows))
        logits[:, 21:] += favour
        given = chain, logits, rows, lengths
        monkeypatch.setattr("support.processor_rows.BACKEND", "reference")
        expected = processed(*given), processed(*given, requests=requests)
        monkeypatch.setattr("support.processor_rows.BACKEND", "triton")
        assert same(processed(*given), expected[0])
        assert same(processed(*given, requests=requests), expected[1])


def test_records(block, monkeypatch):
    rows, lengths = [[START], [START, 4], [START, 4, 6], [START, 9]], [0, 1, 2, 2]
    records = []
    for backend in ("reference", "triton"):
        monkeypatch.setattr("support.processor_rows.BACKEND", backend)
        record = RecordLogProbs(TokenLogProbs(6, 3, torch.device("cpu")), (5, 2, 9))
        requests = [(dataclasses.replace(record, back=i % 2, line=i + 1),) for i in range(4)]
        logits = logits_of(4).nan_to_num(nan=1.0)
        assert same(processed([record], logits, rows, lengths, requests=requests), logits)
        records.append(record.token_log_probs.values)
    torch.testing.assert_close(*records, rtol=1e-6, atol=1e-6)
    assert (records[0].sum(1) < 0).tolist() == [False, True, True, True, True, False, False]


@pytest.mark.parametrize("block", [2], indirect=True)
def test_a_biased_prefix(block, monkeypatch):
    rows = [[START], [START, 4], [START, 4, 6], [START, 4, 6, 8], [START, 9, 4], [START, 4, 7]]
    lengths = [0, 0, 0, 0, 1, 0]
    chain = (ALL[0], processors.biased_prefix(0.3, [4, 6, 8]), ALL[9])
    logits = logits_of(len(rows))
    expected = processed(chain, logits, rows, lengths)
    monkeypatch.setattr("support.processor_rows.BACKEND", "triton")
    actual = processed(chain, logits, rows, lengths)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    # rows that do not follow the prefix are as they were
    assert same(actual[3:4], expected[3:4]) and same(actual[5:], expected[5:])


def test_several_eos():
    chain = (processors.min_length(1, stage="log_probs"), ALL[8], processors.force_eos())
    results = []
    for name in ("reference", "triton"):
        rows = rows_of([[START], [START, *[4] * 7], [START, 4]], backend=name)
        rows = dataclasses.replace(rows, eos_ids=(EOS, 5, 9))
        own = ProcessorChain(chain, torch.device("cpu"), backends.load(name))
        own.reserve(*rows.tree.token.shape)
        own.open([1, 2, 3], [chain] * 3)
        results.append(own(logits_of(4), rows)[:3])
    assert same(*results)


def test_one_launch_a_stage(monkeypatch):
    launches = []
    backend = backends.load("triton")
    monkeypatch.setattr(
        backend, "edit_logits", lambda logits, lines, *_: launches.append(len(lines))
    )
    rows = rows_of([[START, 4]], backend="triton")
    both = sorted(ALL, key=lambda one: one.stage == "log_probs")
    chain = ProcessorChain(both, torch.device("cpu"), backend)
    chain.reserve(*rows.tree.token.shape)
    chain.open([1], [tuple(both)])
    chain(torch.randn(2, VOCAB_SIZE), rows)
    assert launches == [8, 10]


def test_a_class_of_others_does_as_it_says():
    @dataclasses.dataclass(frozen=True)
    class Louder(type(ALL[8])):
        def __call__(self, logits, rows, data):
            return logits + 1.0

    rows = rows_of([[START, 4]], backend="triton")
    chain = ProcessorChain([Louder(0.5)], torch.device("cpu"), backends.load("triton"))
    chain.reserve(*rows.tree.token.shape)
    chain.open([1], [(Louder(0.5),)])
    assert chain(torch.zeros(2, 4), rows)[0].tolist() == pytest.approx([1 - 1.386294] * 4)
