"""Ensembles: the mean of the members' probabilities, computed by hand beside the search."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pybeam
from benchmarks.networks import perturb
from pybeam.backends import load as load_backend
from pybeam.backends import torch_layers
from pybeam.cli import main
from pybeam.engine.cuda_graphs import StepGraphs
from pybeam.engine.workspace import Workspace
from pybeam.models import Ensemble, FunctionModel, Session, load_model
from pybeam.models.ensemble import EnsembleSession
from support.device_loop import REQUESTS, assert_alike, run, torch_beams
from support.graph_memory import Replays
from support.laws import ALGORITHMS, decoded, essence
from support.paths import MODEL as EXAMPLE
from support.search_models import BOS, EOS, random_model
from support.session_driver import straight_line
from support.tiny_models import save_tiny_model, tiny_model

KINDS = ("m2m_100", "bart", "m2m_100-untied")


def mean_log_prob(logits: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([own.double().softmax(-1) for own in logits]).mean(0).log()


def functions(num: int, **options) -> list[FunctionModel]:
    return [random_model(seed, eos_bonus=0.5, **options) for seed in range(num)]


def averaged(members: list[FunctionModel]) -> FunctionModel:
    """One function that is the mean of several."""

    def fn(*rows):
        return mean_log_prob([member.fn(*rows) for member in members]).float()

    return FunctionModel(fn, members[0].vocab_size, BOS, EOS)


@pytest.fixture(scope="module")
def originals():
    return [tiny_model(kind, seed) for seed, kind in enumerate(KINDS)]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    paths = []
    for seed, kind in enumerate(KINDS):
        paths.append(tmp_path_factory.mktemp(kind))
        save_tiny_model(paths[-1], kind, seed)
    return paths


@pytest.fixture(scope="module")
def transformers(directories):
    return load_model(directories)


def assert_near(results, expected):
    """The same hypotheses; scores differ by rounding."""
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.error is None
        assert [h.tokens for h in ours.hypotheses] == [h.tokens for h in theirs.hypotheses]
        scores = [h.score for h in theirs.hypotheses]
        assert [h.score for h in ours.hypotheses] == pytest.approx(scores, abs=2e-5)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_functions_are_averaged(backend, name):
    members = functions(3)
    results = decoded(Ensemble(members), ALGORITHMS[name], pybeam.Fifo(5), backend)
    assert_near(results, decoded(averaged(members), ALGORITHMS[name], pybeam.Fifo(5), backend))


@pytest.mark.thinned(most=1)
def test_members_that_forbid_tokens(backend):
    """A token is possible if any member allows it; a member that allows nothing has no say."""
    members = functions(2, minus_inf=0.4)
    silent = FunctionModel(
        lambda prefixes, *_: torch.full((len(prefixes), 7), -torch.inf), 7, BOS, EOS
    )
    algorithm = ALGORITHMS["fixed"]
    expected = decoded(averaged(members), algorithm, pybeam.Fifo(5), backend)
    for model in (Ensemble(members), Ensemble([*members, silent])):
        assert_near(decoded(model, algorithm, pybeam.Fifo(5), backend), expected)


@pytest.mark.slow
def test_transformers_are_averaged(transformers, originals, backend):
    """Beside the originals of other code, whose probabilities are averaged here."""

    @torch.inference_mode()
    def fn(prefixes, lengths, source_ids):
        logits = []
        for prefix, length, source in zip(prefixes, lengths, source_ids, strict=True):
            ids = dict(
                input_ids=torch.tensor([REQUESTS[source]]), decoder_input_ids=prefix[None, :length]
            )
            logits.append(mean_log_prob([model(**ids).logits[0, -1] for model in originals]))
        return torch.stack(logits).float()

    by_hand = FunctionModel(fn, 45, bos_id=2, eos_id=2)
    algorithm = pybeam.variable_beam(4, threshold=2.0, max_candidates=3, n_best=4, max_length=8)
    requests = REQUESTS[:3]
    expected = pybeam.Decoder(by_hand, algorithm, backend=backend).decode(requests)
    assert_near(pybeam.Decoder(transformers, algorithm, backend=backend).decode(requests), expected)


def test_members_of_any_kind(transformers, backend):
    """A function beside transformers: every member sees the whole hypothesis."""
    extra = FunctionModel(
        lambda prefixes, lengths, ids: torch.sin(
            (prefixes.clamp(min=0).sum(1) * 7 + ids)[:, None] * torch.arange(1, 46.0)
        ),
        45,
        bos_id=2,
        eos_id=2,
    )
    members = [*transformers.members, extra]
    prefix = [2, 9, 14, 3, 30]
    logits = straight_line(Ensemble(members), backend, [7, 8, 9, 2], prefix, index=3)
    expected = [straight_line(member, backend, [7, 8, 9, 2], prefix, 3) for member in members]
    torch.testing.assert_close(logits.double(), mean_log_prob(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["fixed", "variable"])
def test_one_member_is_that_member(transformers, name):
    member = transformers.members[0]
    expected = pybeam.Decoder(member, ALGORITHMS[name]).decode(REQUESTS)
    alone = pybeam.Decoder(Ensemble([member]), ALGORITHMS[name]).decode(REQUESTS)
    assert essence(alone) == essence(expected)
    twice = pybeam.Decoder(Ensemble([member, member]), ALGORITHMS[name]).decode(REQUESTS)
    assert_near(twice, expected)


def test_a_list_of_one_is_that_model(directories):
    model = load_model(directories[:1])
    assert repr(model) == repr(load_model(str(directories[0])))


def test_an_ensemble_within_an_ensemble(transformers, backend):
    """The mean of means: (a + (b + c) / 2) / 2."""
    a, b, c = transformers.members
    nested = Ensemble([a, Ensemble([b, c])])
    flat = Ensemble([a, a, b, c])
    logits = [straight_line(m, backend, [5, 6, 2], [2, 8, 9]) for m in (nested, flat)]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-5)


def test_what_the_engine_knows(transformers):
    limited = FunctionModel(lambda *_: None, 45, 2, 2)
    assert (transformers.vocab_size, transformers.start_id, transformers.eos_id) == (45, 2, 2)
    assert transformers.max_positions == 32
    assert Ensemble([limited]).max_positions is None
    limited.max_positions = 20
    assert Ensemble([limited, *transformers.members]).max_positions == 20
    assert transformers.can_capture and not Ensemble([*transformers.members, limited]).can_capture
    assert repr(transformers).startswith("Ensemble(Transformer(m2m_100, ")
    sessions = [m.session(load_backend("reference")) for m in (transformers, *transformers.members)]
    whole, *parts = [session.max_bytes(16, 9) for session in sessions]
    assert whole == sum(parts) > 0
    whole, *parts = [len(session.buffers()) for session in sessions]
    assert whole == sum(parts) > 0


class Listener(Session):
    """A session that writes down what it is told."""

    def __init__(self) -> None:
        self.calls = []

    def reserve(self, *arguments) -> None:
        self.calls.append(("reserve", arguments))

    def encode(self, *arguments) -> None:
        self.calls.append(("encode", arguments))

    def step(self, rows) -> torch.Tensor:
        self.calls.append(("step", rows))
        return torch.zeros(1, 3)

    def release(self, slots) -> None:
        self.calls.append(("release", slots))

    def advance(self, *arguments) -> None:
        self.calls.append(("advance", arguments))


def test_every_member_hears_everything():
    members = [Listener(), Listener()]
    session = EnsembleSession(members, load_backend("reference"))
    session.reserve(3, 4, 5)
    session.encode([("a", "x"), ("b", "y")], [0, 1], [7, 8])
    rows = SimpleNamespace(wanted=None)
    session.step(rows)
    session.advance("source", "target")
    session.release([7])
    for member, sources in zip(members, [("a", "b"), ("x", "y")], strict=True):
        assert member.calls == [
            ("reserve", (3, 4, 5)),
            ("encode", (sources, [0, 1], [7, 8])),
            ("step", rows),
            ("advance", ("source", "target")),
            ("release", [7]),
        ]


def test_a_member_with_nan_fails_its_request_alone(backend):
    members = functions(3)
    fn = members[1].fn

    def broken(prefixes, lengths, source_ids):
        logits = fn(prefixes, lengths, source_ids).clone()
        logits[(source_ids == 2) & (lengths == 3), 4] = torch.nan
        return logits

    algorithm = pybeam.fixed_beam(3, min_length=4, max_length=9)
    requests = [[1]] * 5
    expected = decoded(Ensemble(members), algorithm, pybeam.Fifo(5), backend, requests)
    members[1] = FunctionModel(broken, 7, BOS, EOS)
    results = decoded(Ensemble(members), algorithm, pybeam.Fifo(5), backend, requests)
    assert "NaN or +inf logits for request 2" in str(results[2].error)
    del results[2], expected[2]
    assert essence(results) == essence(expected)


def test_a_source_that_a_member_cannot_take(transformers):
    narrow = FunctionModel(lambda prefixes, *_: torch.zeros(len(prefixes), 45), 45, 2, 2)
    narrow.check = lambda source: (_ for _ in ()).throw(TypeError("no such source"))
    decoder = pybeam.Decoder(Ensemble([*transformers.members, narrow]), pybeam.greedy())
    result = decoder.decode([[5, 6]], on_error="return")[0]
    assert isinstance(result.error, TypeError)
    assert str(result.error) == "member 3 of the ensemble: no such source"
    decoder = pybeam.Decoder(transformers, pybeam.greedy())
    result = decoder.decode([[5, 60]], on_error="return")[0]
    assert isinstance(result.error, ValueError)
    assert "member 0 of the ensemble: ids of `source` must be 0 to 44" in str(result.error)


@pytest.mark.slow
@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("name", ["fixed", "variable"])
def test_a_step_never_waits(transformers, guard, name, has_kernel):
    backend, algorithm = torch_beams(), ALGORITHMS[name]
    if not has_kernel:
        backend.mixture = torch_layers.mixture
    workspace = Workspace(transformers, algorithm, backend)
    results, stats = run(workspace, pybeam.Streaming(5), reads_late=True)
    assert not any(result.error for result in results)
    assert guard.steps == stats.steps > 0


@pytest.mark.slow
def test_captured_steps_give_the_same_results(transformers, graph_memory, monkeypatch):
    algorithm = ALGORITHMS["variable"]
    plain = Workspace(transformers, algorithm, torch_beams())
    expected, _ = run(plain, pybeam.Fifo(5))
    workspace = Workspace(transformers, algorithm, torch_beams())
    capture = Replays(workspace)
    workspace.graphs = StepGraphs(capture)
    results, _ = run(workspace, pybeam.Fifo(5), reads_late=True)
    assert_alike(results, expected)
    assert capture.num_replays > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(vocab_size=8), "`vocab_size` of all members must be that of member 0, 7, .* 1 is 8"),
        (dict(bos_id=3), "`start_id` of all members must be that of member 0, 0, .* 1 is 3"),
        (
            dict(eos_id=2),
            r"`eos_ids` of all members must be that of member 0, \(1,\), .* 1 is \(2,\)",
        ),
    ],
)
def test_members_must_agree(changes, message):
    settings = dict(vocab_size=7, bos_id=BOS, eos_id=EOS)
    members = [FunctionModel(lambda *_: None, **s) for s in (settings, settings | changes)]
    with pytest.raises(ValueError, match=message):
        Ensemble(members)


def test_members_must_be_models():
    with pytest.raises(ValueError, match="`members` must be at least one model"):
        Ensemble([])
    with pytest.raises(TypeError, match="member 1 is 'bart'"):
        Ensemble([random_model(0), "bart"])
    with pytest.raises(ValueError, match="`path` must be a directory or a list of at least one"):
        load_model([])


def with_pieces(directory: Path, pieces: dict[str, int]) -> Path:
    """The same model with FSMT's vocabulary files, which are the simplest."""
    for name in ("vocab-src.json", "vocab-tgt.json"):
        (directory / name).write_text(json.dumps(pieces))
    return directory


def test_vocabularies_must_agree(directories, tmp_path):
    one, two, three = (
        Path(shutil.copytree(directories[0], tmp_path / name)) for name in ("one", "two", "three")
    )
    with_pieces(one, {"the": 5, "of": 6})
    assert load_model([one, two, one])  # the second has no tokenizer's files
    with_pieces(three, {"of": 6, "the": 5})
    assert load_model([one, two, three])
    (three / "vocab-tgt.json").write_text(json.dumps({"the": 6, "of": 5}))
    with pytest.raises(ValueError, match=r"one target vocabulary, but 'of' is 6 in .*one and 5 in"):
        load_model([one, two, three])
    with_pieces(three, {"the": 5, "of": 6, "and": 7})
    with pytest.raises(
        ValueError, match=r"source vocabulary, but 'and' is no token in .*one and 7"
    ):
        load_model([one, two, three])


def test_members_of_other_ids_are_named(directories, tmp_path):
    save_tiny_model(tmp_path, "marian")
    with pytest.raises(ValueError, match=r"`start_id` .* member 0, 2, .* is 36; .*member 1 is "):
        load_model([directories[0], tmp_path])


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory):
    """The example model with noise in its weights."""
    path = tmp_path_factory.mktemp("perturbed") / "model"
    perturb(EXAMPLE, path, noise=0.05, seed=1)
    return path


@pytest.mark.slow
def test_the_command_line_takes_several_models(perturbed, tmp_path, capfd):
    lines = ["Y dijo Dios: Sea la luz; y fué la luz.", "Jehová es mi pastor; nada me faltará."]
    (tmp_path / "in").write_text("\n".join(lines))
    model, tokenizer = load_model([EXAMPLE, perturbed]), pybeam.load_tokenizer(EXAMPLE)
    algorithm = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))  # the command line's
    decoder = pybeam.Decoder(model, algorithm)
    best = [r.hypotheses[0] for r in decoder.decode([tokenizer.encode(line) for line in lines])]
    single = pybeam.Decoder(load_model(EXAMPLE), algorithm)
    alone = single.decode([tokenizer.encode(line) for line in lines])
    assert best[0].score != pytest.approx(alone[0].hypotheses[0].score, abs=1e-3)
    options = ["--input", str(tmp_path / "in"), "--scores", "--quiet"]
    assert main(["translate", "--model", str(EXAMPLE), "--model", str(perturbed), *options]) == 0
    expected = [f"{h.final_score:.4f}\t{tokenizer.decode(h.tokens)}" for h in best]
    assert capfd.readouterr().out.splitlines() == expected
    missing = str(tmp_path / "none")
    assert main(["translate", "--model", str(EXAMPLE), "--model", missing, *options]) == 1
    assert "none" in capfd.readouterr().err
