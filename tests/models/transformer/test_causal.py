"""Decoder-only models give the logits, and the searches, of transformers."""

import random

import pytest
import torch

import pybeam
from pybeam.compat import huggingface
from pybeam.models import CausalTransformer
from pybeam.models.loading import load_checkpoint
from support.session_driver import straight_line

transformers = pytest.importorskip("transformers")

from support.causal_models import (  # noqa: E402
    EOS,
    KINDS,
    MAX_POSITIONS,
    OTHER_EOS,
    OTHER_KINDS,
    VOCAB,
    save_tiny_causal,
    teacher_forced,
)

pytestmark = pytest.mark.usefixtures("inference_mode")

ROPES = {
    "default": dict(rope_type="default", rope_theta=77.0),
    "linear": dict(rope_type="linear", factor=2.5),
    "dynamic": dict(rope_type="dynamic", factor=2.0),
    "yarn": dict(
        rope_type="yarn",
        factor=4.0,
        rope_theta=150.0,
        original_max_position_embeddings=16,
        beta_fast=8.0,
        beta_slow=0.5,
    ),
    "yarn, mscale": dict(
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=16,
        mscale=0.7,
        mscale_all_dim=0.3,
        truncate=False,
    ),
    "longrope": dict(
        rope_type="longrope",
        factor=4.0,
        original_max_position_embeddings=16,
        short_factor=[1.0 + i / 8 for i in range(8)],
        long_factor=[2.0 + i / 3 for i in range(8)],
    ),
}


def ids(num: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(num)]


@pytest.fixture(scope="module", params=[*KINDS, *OTHER_KINDS])
def saved(request, tmp_path_factory):
    """A network, the directory that holds it, and the model that is loaded from there."""
    directory = tmp_path_factory.mktemp(request.param)
    network = save_tiny_causal(directory, request.param)
    return network, directory, pybeam.load_model(directory, device="cpu")


def assert_same_logits(model, backend, network, prompt, output, tolerance=1e-5):
    found = straight_line(model, backend, prompt, [model.start_id, *output])
    expected = teacher_forced(network, prompt, output)
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.thinned(most=6)
def test_logits_are_those_of_transformers(saved, backend):
    network, _, model = saved
    assert isinstance(model, CausalTransformer)
    assert model.eos_ids == (EOS, OTHER_EOS)
    for num in (1, 2, 17, 40):
        assert_same_logits(model, backend, network, ids(num, num), ids(9, num + 50))


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("rope", ROPES)
def test_every_scaling_of_rotary_embeddings(tmp_path, rope):
    network = save_tiny_causal(tmp_path, "mistral", rope_parameters=ROPES[rope])
    model = pybeam.load_model(tmp_path, device="cpu")
    # a longer prompt is a long input, and the others stay short
    for num, more in ((5, 8), (16, 1), (17, 9), (30, 9)):
        assert_same_logits(model, "reference", network, ids(num), ids(more - 1, 3))
        if rope == "longrope":
            limit = 16 if num <= 16 else MAX_POSITIONS
            assert model.room(model.check(ids(num))) == limit - num + 1


def in_float64(network):
    """The same network in float64. Its norms would compute in float32."""
    for module in network.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _norm_of(module, type(module).__name__.startswith("Gemma"))
    return network.double()


def _norm_of(module, is_gemma):
    def forward(x):
        epsilon = module.eps if is_gemma else module.variance_epsilon
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
        return y * (is_gemma + module.weight)

    return forward


# transformers' routers round to float32
@pytest.mark.thinned(most=4)
@pytest.mark.parametrize(
    "kind", [kind for kind in (*KINDS, *OTHER_KINDS) if kind not in ("mixtral", "qwen3_moe")]
)
def test_logits_in_float64(tmp_path, kind, monkeypatch):
    """No dtype of `load_model`, but the layers are right beyond the rounding of float32."""
    # Gemma 2 asks for float32 here
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: x.softmax(dim))
    network = in_float64(save_tiny_causal(tmp_path, kind))
    model, _ = load_checkpoint(tmp_path, torch.device("cpu"), torch.float64)
    assert model.dtype == torch.float64
    assert_same_logits(model, "reference", network, ids(19), ids(9, 1), tolerance=1e-9)


def generated(network, prompts, **options):
    """Return the tokens that `generate` puts behind each prompt, without EOS and padding."""
    found = []
    for prompt in prompts:
        out = network.generate(
            input_ids=torch.tensor([prompt]),
            # the prompt may hold the padding token
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            **options,
        )
        for line in out.tolist():
            tokens = line[len(prompt) :]
            ends = [i for i, token in enumerate(tokens) if token in (EOS, OTHER_EOS)]
            found.append(tokens[: ends[0]] if ends else tokens)
    return found


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("num_beams", [1, 5])
def test_searches_are_those_of_transformers(saved, backend, num_beams):
    network, _, model = saved
    prompts = [ids(num, num) for num in (1, 7, 20, 33)]
    expected = generated(
        network, prompts, num_beams=num_beams, num_return_sequences=num_beams, max_new_tokens=12
    )
    algorithm = huggingface.beam_search(
        num_beams, num_return_sequences=num_beams, max_new_tokens=12
    )
    results = pybeam.Decoder(model, algorithm, backend=backend).decode(prompts)
    found = [list(one.tokens) for result in results for one in result.hypotheses]
    assert found == expected


def test_prompts_must_be_fit(saved):
    _, _, model = saved
    [empty] = pybeam.Decoder(model, pybeam.greedy()).decode([[]])
    assert (empty.stop_reason, empty.hypotheses[0].tokens) == ("empty_source", [])
    limit = model.max_positions
    # Bloom names none
    assert limit == (1 << 15 if model.config.model_type == "bloom" else MAX_POSITIONS)
    with pytest.raises(ValueError, match=f"at most {limit} ids"):
        model.check([3] * (limit + 1))
    with pytest.raises(ValueError, match="0 to 44"):
        model.check([VOCAB])
    assert model.room(model.check([3] * limit)) == 1
