"""Laws of `backend="reference"`: plain torch computes everything, and finds what the kernels find."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import pybeam
from pybeam.models import FunctionModel, load_model
from pybeam.models.linear import can_pack
from support.built_in_models import saved
from support.front_ends import VOCAB, hashed, onnx_model, sources, wrapped
from support.speech_models import random_features, save_tiny_speech_model
from support.tiny_models import save_tiny_model
from support.tiny_rnn import save_tiny_rnn

# relu, swish, gelu, tanh-gelu; relative positions; the two gates of a front; a Conformer; an LSTM; a mixture;
# all that stands in cells
KINDS = (
    "m2m_100",
    "marian",
    "bart",
    "bart-gelu_new",
    "t5",
    "flan-t5",
    "Speech2Text",
    "Whisper",
    "FireRedASR",
    "rnn",
    "causal-qwen3",
    "causal-gemma3",
    "causal-falcon",
    "causal-mixtral",
    "ensemble",
    "function",
    "onnx",
    "wrapped-mistral",
    "wrapped-t5",
    "wrapped-gemma",
)


class OurOperators(TorchDispatchMode):
    """Notes which operators and programs of the extension are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def note_programs(self, patch: pytest.MonkeyPatch) -> None:
        """Programs are objects that are called without torch's dispatcher."""
        native = pybeam.backends.load("native")
        for name in ("beam_program", "layer_program"):
            patch.setattr(native, name, self._noting(name, getattr(native, name)))

    def _noting(self, name: str, make):
        def noted(*args):
            self.names.add(name)
            return make(*args)

        return noted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "pybeam":
            self.names.add(func.name())
        return func(*args, **kwargs or {})


def made(kind: str, tmp_path_factory, dtype: torch.dtype | str = "auto"):
    if kind == "function":
        return FunctionModel(hashed, VOCAB, bos_id=0, eos_id=1)
    if kind == "onnx":
        return onnx_model(tmp_path_factory, torch.device("cpu"))
    if kind.startswith("wrapped"):
        return wrapped(kind.removeprefix("wrapped-"), torch.device("cpu"))
    directories = []
    for seed, own in enumerate(("m2m_100", "bart") if kind == "ensemble" else [kind]):
        directories.append(tmp_path_factory.mktemp(own))
        if own.startswith("causal"):
            saved(own, directories[-1])
        elif own == "rnn":
            save_tiny_rnn(directories[-1], seed)
        elif own == "FireRedASR":
            directories[-1:] = saved(own, directories[-1])
        elif own in ("Speech2Text", "Whisper"):
            save_tiny_speech_model(directories[-1], seed, 2.0, kind=own)
        else:
            save_tiny_model(directories[-1], own, seed)
    return load_model(directories, device="cpu", dtype=dtype)


def decoded(model, backend: str) -> tuple[list[pybeam.Result], set[str]]:
    """Results, with attention where the model has it, and the operators that were called for them."""
    algorithm = pybeam.fixed_beam(3, n_best=2, max_length=6)
    requests = (
        random_features(3, num_features=model.config.sound.num_features)
        if model.takes_features
        else sources(3)
    )
    with OurOperators() as called, pytest.MonkeyPatch.context() as patch:
        called.note_programs(patch)
        decoder = pybeam.Decoder(model, algorithm, backend=backend, alignment=model.has_attention)
        return decoder.decode(requests), called.names


def assert_agree(model, atol: float) -> None:
    if "native" not in pybeam.backends.available():
        pytest.skip("the extension is not built")
    results, called = decoded(model, "reference")
    assert not called
    expected, called = decoded(model, "native")
    assert called
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.error is None and theirs.error is None
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, abs=atol)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_no_operator_is_called_and_results_agree(kind, tmp_path_factory):
    assert_agree(made(kind, tmp_path_factory), 1e-5)


# an activation beside a border between two bfloat16 numbers is rounded to either, by its last bit
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 2e-3), (torch.float16, 1e-5)])
@pytest.mark.parametrize("kind", ["marian", "Speech2Text", "rnn"])
def test_packed_weights_of_16_bits_agree(kind, dtype, atol, tmp_path_factory):
    if not can_pack(torch.device("cpu"), dtype):
        pytest.skip("weights are not packed on this CPU")
    assert_agree(made(kind, tmp_path_factory, dtype), atol)
