"""Compare the hypotheses of `search.onnx` with those of the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import pybeam
from pybeam.search.algorithms import Algorithm


def load_graph(directory: Path):
    """The search of an exported model, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(directory / "search.onnx", options)


def hypotheses(
    search, sources, width: int, max_length: int, length_penalty: float, behind=0, **more
):
    """Run search.onnx: tokens, score and final score of each hypothesis of each source.

    Sources are ids or features. `behind` pads the shorter ones. `more` are other inputs: numbers, or lists of
    prefixes.
    """
    name = search.get_inputs()[0].name
    tensors = [torch.as_tensor(source) for source in sources]
    padded = pad_sequence(tensors, batch_first=True, padding_value=behind)
    inputs = {
        name: padded.numpy(),
        f"{name.removesuffix('s')}_length": np.array([len(source) for source in sources]),
        "width": np.array(width),
        "max_length": np.array(max_length),
        "length_penalty": np.array(length_penalty, dtype=np.float32),
    }
    for other, given in more.items():
        if isinstance(given, list):
            lines = [torch.tensor(line, dtype=torch.int64) for line in given]
            given = pad_sequence(lines, batch_first=True, padding_value=-1).numpy()
        is_float = isinstance(given, float)
        inputs[other] = np.asarray(given, dtype=np.float32 if is_float else np.int64)
    tokens, lengths, *scores = search.run(None, inputs)
    outside = np.arange(tokens.shape[2]) >= lengths[:, :, None]
    assert ((tokens == -1) == outside).all()
    found = []
    for b in range(len(sources)):
        num = int((scores[0][b] > -np.inf).sum())
        assert (scores[0][b, :num] > -np.inf).all() and (scores[1][b, num:] == -np.inf).all()
        found.append(
            [
                (tokens[b, k, : lengths[b, k]].tolist(), scores[0][b, k], scores[1][b, k])
                for k in range(num)
            ]
        )
    return found


def assert_finds_the_same(
    search, model, sources, width, max_length, length_penalty, behind=0
) -> list:
    """Check that both find the same with a fixed beam that returns all of its hypotheses."""
    algorithm = pybeam.fixed_beam(
        width, n_best=width, max_length=max_length, scoring=pybeam.scoring.power(length_penalty)
    )
    expected = pybeam.Decoder(model, algorithm).decode(sources)
    found = hypotheses(search, sources, width, max_length, length_penalty, behind)
    assert_agree(found, expected)
    return expected


def numbers_of(algorithm: Algorithm, model) -> tuple[int, int, float]:
    """The inputs that every graph must be given, for this algorithm."""
    most = algorithm.max_length
    most = most if isinstance(most, int) else min(256, model.max_positions)
    return algorithm.width, most, float(algorithm.scoring.alpha)


def assert_agree(found, expected) -> None:
    """Check that both are the same tokens with scores within 1e-4, or others of the same score."""
    for ours, result in zip(found, expected, strict=True):
        assert result.error is None
        assert len(ours) == len(result.hypotheses)
        for (tokens, score, final_score), other in zip(ours, result.hypotheses, strict=True):
            assert final_score == pytest.approx(other.final_score, abs=1e-4)
            near = [h for h in result.hypotheses if abs(h.final_score - final_score) < 1e-4]
            same = [h for h in near if list(h.tokens) == tokens]
            assert same and score == pytest.approx(same[0].score, abs=1e-4)
