"""The attentional LSTM: its logits are torch's, results do not depend on schedules, steps never wait."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import pybeam
from pybeam.engine.cuda_graphs import StepGraphs
from pybeam.engine.workspace import Workspace
from pybeam.models import Rnn, load_model
from support.device_loop import assert_alike, run, torch_beams
from support.front_ends import sources
from support.graph_memory import Replays
from support.session_driver import straight_line
from support.tiny_rnn import CONFIG, SIZES, VOCAB, save_tiny_rnn

pytestmark = pytest.mark.usefixtures("inference_mode")

VARIABLE = pybeam.variable_beam(5, 2.0, 3, n_best=5, max_length=15)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rnn")
    save_tiny_rnn(directory, seed=3)
    return load_model(directory)


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_torchs_modules(tmp_path, backend, device, num_layers, dtype):
    """Step by step, beside one teacher-forced pass."""
    is_reversed = num_layers == 1
    network = save_tiny_rnn(tmp_path, num_layers=num_layers, reverses_source=is_reversed)
    model = load_model(tmp_path, device=device, dtype=dtype)
    assert isinstance(model, Rnn)
    prefix = [0, 5, 44, 7, 7, 1, 30]
    for source in sources(3):
        ours = straight_line(model, backend, source, prefix)  # [T, V]
        read = torch.tensor([source[::-1] if is_reversed else source])
        theirs = network(read, torch.tensor([len(source)]), torch.tensor([prefix]))[0]
        scale = float(theirs.abs().max())
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=tolerance * scale)


def test_found_hypotheses_have_the_score_of_one_pass(model, tmp_path):
    network = save_tiny_rnn(tmp_path, seed=3)
    requests = sources(5, seed=2)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(4, n_best=4, max_length=15))
    for source, result in zip(requests, decoder.decode(requests), strict=True):
        for found in result.hypotheses:
            target = [*found.tokens, model.eos_id] if found.ended else found.tokens
            read = torch.tensor([source[::-1]]), torch.tensor([len(source)])
            logits = network(*read, torch.tensor([[model.start_id, *target[:-1]]]))[0]
            score = torch.log_softmax(logits, 1)[range(len(target)), target].sum().item()
            assert found.score == pytest.approx(score, abs=1e-4)


@pytest.mark.slow
def test_a_step_never_waits_and_may_be_captured(model, guard, graph_memory, monkeypatch):
    requests = sources(8)
    plain = Workspace(model, VARIABLE, torch_beams())
    expected, _ = run(plain, pybeam.Fifo(5), requests)
    workspace = Workspace(model, VARIABLE, torch_beams())
    capture = Replays(workspace)
    workspace.graphs = StepGraphs(capture)
    for schedule in (pybeam.Fifo(5), pybeam.Fifo(3, row_budget=80)):
        guard.steps = guard.reads = 0
        results, stats = run(workspace, schedule, requests, reads_late=True)
        assert_alike(results, expected)
        assert guard.steps == stats.steps
    assert capture.num_replays > capture.num_captures > 0
    assert model.can_capture


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "`hidden_size` in .* must be a positive integer, but is 0"),
        ({"hidden_size": 32}, "`encoder.lstm.bias_ih_l0` in .* must be .128., but is .96."),
        ({"num_layers": 1}, "`.*_l1` in .* is not part of this model"),
        ({"reverses_source": 1}, "`reverses_source` in .* must be true or false, but is 1"),
        (
            {"eos_token_id": VOCAB},
            "`eos_token_id` of .* must be one token id or up to 8 below `vocab_size` = 45",
        ),
        ({"decoder_start_token_id": None}, "`decoder_start_token_id` in .* but is None"),
        ({"model_type": "lstm"}, "`model_type` in .* must be one of attentional_lstm, bart"),
    ],
)
def test_a_config_that_is_wrong_says_so(tmp_path, change, message):
    save_tiny_rnn(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **SIZES, **change}))
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


def test_a_tensor_that_is_missing_and_a_source_that_is_wrong(tmp_path, model):
    save_tiny_rnn(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["attention.bias"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"`model\.attention\.bias` is missing"):
        load_model(tmp_path)
    with pytest.raises(ValueError, match="ids of `source` must be 0 to 36, but one is 37"):
        model.check([3, 37])
    assert repr(model) == "Rnn(2+2 layers, H=24, V=45, torch.float32, cpu)"
