"""When tokens are said: beside transformers and CTranslate2 on the same features, and beside plain loops."""

import json

import ctranslate2
import numpy as np
import pytest
import torch
import transformers

import pybeam
from pybeam.models.transformer.attention import head_attention
from pybeam.speech.alignment import (
    POSITIONS_PER_SECOND,
    Aligner,
    AlignmentWindow,
    begin_positions,
    median_filter,
    warp,
)
from support.paths import MODEL
from support.speech_models import NUM_FEATURES, save_tiny_whisper

HEADS = [(0, 3), (1, 0), (1, 2)]
TOKENS = [7, 27, 0, 5, 5, 13, 27, 22, 1, 9, 17]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whisper")
    original = save_tiny_whisper(directory)
    path = directory / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alignment_heads": HEADS}))
    return directory, original


@pytest.fixture(scope="module")
def model(saved):
    return pybeam.load_model(saved[0])


def features(seed: int, num: int = 100) -> torch.Tensor:
    return torch.randn(num, NUM_FEATURES, generator=torch.Generator().manual_seed(seed))


def plain_warp(cost: np.ndarray) -> np.ndarray:
    """Dynamic time warping cell by cell, as openai-whisper and transformers write it."""
    num_tokens, num_positions = cost.shape
    total = np.full((num_tokens + 1, num_positions + 1), np.inf, np.float32)
    trace = np.full(total.shape, 2)
    total[0, 0] = 0
    for j in range(1, num_positions + 1):
        for i in range(1, num_tokens + 1):
            both, down, right = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            if both < down and both < right:
                least, trace[i, j] = both, 0
            elif down < both and down < right:
                least, trace[i, j] = down, 1
            else:
                least, trace[i, j] = right, 2
            total[i, j] = cost[i - 1, j - 1] + least
    trace[0, :], trace[:, 0] = 2, 1
    i, j, path = num_tokens, num_positions, []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = trace[i, j]
        i, j = i - (step != 2), j - (step != 1)
    begin = {}
    for token, position in reversed(path):
        begin.setdefault(token, position)
    return np.array([begin[i] for i in range(num_tokens)])


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 3), (12, 63), (63, 12), (30, 129)])
@pytest.mark.parametrize("has_ties", [False, True])
def test_warping_beside_a_plain_loop(shape, has_ties):
    rng = np.random.default_rng(sum(shape))
    for _ in range(5):
        cost = rng.standard_normal(shape)
        if has_ties:
            cost = np.round(cost)
        assert warp(cost).tolist() == plain_warp(cost).tolist()


@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("size", [1, 3, 4, 8, 129])
def test_medians_beside_sorting(width, size):
    x = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(size))
    half, found = width // 2, median_filter(x, width)
    if size <= half:
        assert torch.equal(found, x)
        return
    padded = torch.nn.functional.pad(x, (half, half), mode="reflect")
    assert torch.equal(found, padded.unfold(-1, width, 1).sort(-1).values[..., half])


@torch.inference_mode()
def test_attention_of_heads_and_logits_are_the_originals(saved, model):
    source, prefix = features(1, 100), [30, 33, 34]
    eager = transformers.WhisperForConditionalGeneration.from_pretrained(
        saved[0], attn_implementation="eager"
    ).eval()
    out = eager(
        source.t()[None],
        decoder_input_ids=torch.tensor([[model.start_id, *prefix, *TOKENS]]),
        output_attentions=True,
    )
    expected = torch.stack([out.cross_attentions[layer][0, head] for layer, head in HEADS])
    session = model.session(pybeam.backends.resolve("auto", model.device))
    state = session.encoder_states([source])
    weights, logits = head_attention(session, state, [*prefix, *TOKENS], HEADS)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(logits, out.logits[0], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(4))
def test_times_are_those_of_transformers(saved, model, seed):
    """`generate` takes the attention of the pass in which a token is read, and no time from the prompt."""
    source = features(seed)
    original = transformers.WhisperForConditionalGeneration.from_pretrained(
        saved[0], attn_implementation="eager"
    ).eval()
    out = original.generate(
        source.t()[None],
        language="de",
        task="transcribe",
        return_token_timestamps=True,
        return_dict_in_generate=True,
        num_beams=1,
        max_new_tokens=12,
    )
    tokens = out["sequences"][0].tolist()
    num_prompt = 4
    session = model.session(pybeam.backends.resolve("auto", model.device))
    state = session.encoder_states([source])
    weights, _ = head_attention(session, state, tokens[1:], HEADS)
    begin = begin_positions(weights[:, num_prompt : len(tokens) - 1])
    expected = out["token_timestamps"][0, num_prompt:-1]
    torch.testing.assert_close(torch.from_numpy(begin / POSITIONS_PER_SECOND).float(), expected)


@pytest.mark.parametrize("num_frames", [100, 61])
def test_times_and_probabilities_are_those_of_ctranslate2(saved, model, tmp_path, num_frames):
    converter = ctranslate2.converters.TransformersConverter(str(saved[0]))
    other = ctranslate2.models.Whisper(converter.convert(str(tmp_path / "ct2")))
    aligner = Aligner.load(model, saved[0])
    for seed in range(4):
        source = features(seed)
        view = ctranslate2.StorageView.from_array(source.t()[None].numpy().copy())
        [expected] = other.align(view, [29, 30, 33], [TOKENS], num_frames, median_filter_width=7)
        [found] = aligner.times([AlignmentWindow(source, [30, 33], TOKENS, num_frames // 2)])
        begin = {}
        for token, position in expected.alignments:
            begin.setdefault(token, position / POSITIONS_PER_SECOND)
        assert found.start == pytest.approx([begin[i] for i in range(len(TOKENS) + 1)])
        assert found.probability == pytest.approx(expected.text_token_probs, rel=1e-3, abs=1e-6)


def test_a_window_has_its_times_whatever_is_beside_it(saved, model):
    aligner = Aligner.load(model, saved[0])
    windows = [
        AlignmentWindow(features(1), [30, 33], TOKENS),
        AlignmentWindow(features(2, 31), [], TOKENS[:4], 10),
        AlignmentWindow(features(3), [31, 32], []),
        AlignmentWindow(features(4), [31, 32], [7], 1),
    ]
    together = aligner.times(windows)
    assert together == [aligner.times([window])[0] for window in windows]
    assert [len(found.start) for found in together] == [12, 5, 1, 2]
    for found in together:
        assert list(found.start) == sorted(found.start) and found.start[0] == 0
        assert all(0 < one < 1 for one in found.probability)


def test_backends_agree(saved, model):
    windows = [AlignmentWindow(features(1), [30, 33], TOKENS)]
    [found] = Aligner.load(model, saved[0]).times(windows)
    [expected] = Aligner.load(model, saved[0], backend="reference").times(windows)
    assert found.start == expected.start
    assert found.probability == pytest.approx(expected.probability, rel=1e-4)


def test_without_heads_the_upper_half_of_the_layers_is_taken(saved, model, tmp_path):
    windows = [AlignmentWindow(features(1), [30, 33], TOKENS)]
    upper = Aligner(model, 34, [(1, head) for head in range(4)])
    assert Aligner(model, 34).times(windows) == upper.times(windows)
    assert Aligner(model, 34, median_width=1).times(windows) != upper.times(windows)


def test_wrong_arguments_are_refused(saved, model, tmp_path):
    with pytest.raises(ValueError, match="`model` must be a Whisper model"):
        Aligner(pybeam.load_model(MODEL), 34)
    with pytest.raises(ValueError, match=r"`heads` must be pairs of a layer from 0 to 1.*\(2, 0\)"):
        Aligner(model, 34, [(2, 0)])
    with pytest.raises(ValueError, match="`heads` must hold at least one pair"):
        Aligner(model, 34, [])
    with pytest.raises(ValueError, match="`median_width` must be odd, but is 4"):
        Aligner(model, 34, median_width=4)
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "generation_config.json"
    path.write_text('{"no_timestamps_token_id": 34, "alignment_heads": [1, 2]}')
    with pytest.raises(ValueError, match=r"`alignment_heads` in .* must be pairs"):
        Aligner.load(model, tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_other_weights(saved, model, dtype):
    """Their probabilities differ a little, so that the path may, too."""
    windows = [
        AlignmentWindow(features(1), [30, 33], TOKENS),
        AlignmentWindow(features(2), [31, 32], TOKENS[:3]),
    ]
    rounded = pybeam.load_model(saved[0], dtype=dtype)
    found = Aligner.load(rounded, saved[0]).times(windows)
    expected = Aligner.load(model, saved[0]).times(windows)
    for ours, others in zip(found, expected, strict=True):
        assert ours.probability == pytest.approx(others.probability, abs=0.1)
        assert list(ours.start) == sorted(ours.start) and len(ours.start) == len(others.start)
