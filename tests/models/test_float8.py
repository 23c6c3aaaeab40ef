"""Weights in E4M3: the formula, what reaches torch's product on a GPU, and whole models."""

import pytest
import torch
import torch.nn.functional as F

import pybeam
from pybeam.models import float8
from pybeam.models.float8 import Float8Linear
from support.causal_models import save_tiny_causal
from support.laws import essence
from support.paths import MODEL
from support.tiny_models import save_tiny_model

E4M3 = torch.float8_e4m3fn


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def nearest(x):
    """E4M3 by its definition: three bits behind the first, exponents from -6 on, ties to even."""
    x = x.double()
    exponent = x.abs().clamp_min(2.0**-9).log2().floor().clamp_min(-6)
    step = 2.0 ** (exponent - 3)
    return (x / step).round() * step


def expected(weight, bias, x):
    w_scale = (weight.abs().amax(1) / 448).masked_fill_(~weight.any(1), 1)
    x_scale = (x.abs().amax(1) / 448).masked_fill_(~x.any(1), 1)
    p, q = nearest(x / x_scale[:, None]), nearest(weight / w_scale[:, None])
    return (p @ q.t()) * x_scale[:, None] * w_scale + bias


@pytest.mark.parametrize("shape", [(0, 16, 16), (1, 5, 16), (3, 40, 48), (7, 16, 256)])
def test_the_formula(shape):
    n, num_columns, depth = shape
    weight, bias, x = (
        numbers(num_columns, depth),
        numbers(num_columns, seed=2),
        numbers(n, depth, seed=3),
    )
    weight[0], x[1:2] = 0, 0
    linear, right = float8.linear(weight, bias), expected(weight, bias, x).float()
    torch.testing.assert_close(linear(x), right, rtol=1e-5, atol=1e-5)
    memory = torch.full((n + 2, num_columns), 7.0)
    out = linear(x, memory)
    assert torch.equal(out, linear(x)) and torch.equal(memory[:n], out)
    assert bool((memory[n:] == 7).all())
    torch.testing.assert_close(
        linear.add(x.new_ones(right.shape), x), right + 1, rtol=1e-5, atol=1e-5
    )
    assert bool((float8.linear(weight, bias, "relu")(x) == linear(x).relu()).all())
    if num_columns % 2 == 0:
        torch.testing.assert_close(linear.gated(x), F.glu(linear(x), 1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_no_number_harms_no_other(bad):
    linear, x = float8.linear(numbers(8, 16), None), numbers(3, 16)
    right = linear(x)
    x[1, 4] = bad
    found = linear(x)
    assert bool(found[1].isnan().all()) and torch.equal(found[[0, 2]], right[[0, 2]])


@pytest.mark.parametrize("num_columns", [16, 5, 33])
def test_the_product_of_a_gpu_gets_what_it_takes(monkeypatch, num_columns):
    """Column-major weights, sizes of 16, a scale for each row and column; columns that fill up are cut."""

    def scaled_mm(a, b, scale_a, recipe_a, scale_b, recipe_b, *, output_dtype):
        assert a.dtype == b.dtype == E4M3 and output_dtype == torch.bfloat16
        assert a.is_contiguous() and b.t().is_contiguous()
        assert b.shape[0] % 16 == 0 and b.shape[1] % 16 == 0
        assert recipe_a == recipe_b == F.ScalingType.RowWise
        assert scale_a.shape == (a.shape[0], 1) and scale_b.shape == (1, b.shape[1])
        assert scale_a.dtype == scale_b.dtype == torch.float32
        assert scale_a.is_contiguous() and scale_b.is_contiguous()
        return ((a.float() @ b.float()) * (scale_a * scale_b)).bfloat16()

    class OnGpu(torch.Tensor):
        """A tensor that says it is on a GPU."""

        is_cuda = True

    monkeypatch.setattr(F, "scaled_mm", scaled_mm)
    weight, bias = numbers(num_columns, 32), numbers(num_columns, seed=2).bfloat16()
    linear = Float8Linear(weight.as_subclass(OnGpu), bias)
    x = numbers(6, 32, seed=3).bfloat16()
    found = linear(x.as_subclass(OnGpu))
    assert found.dtype == torch.bfloat16 and found.shape == (6, num_columns)
    right = expected(weight, bias.float(), x.float()).float()
    torch.testing.assert_close(found.as_subclass(torch.Tensor).float(), right, rtol=2e-2, atol=2e-2)


def test_a_whole_translator():
    """Outputs differ from float32's, and hardly ever."""
    model = pybeam.load_model(MODEL, device="cpu", dtype="float8_e4m3fn")
    assert model.weight_dtype == E4M3 and model.dtype == torch.float32
    assert "float8_e4m3fn" in repr(model)
    exact = pybeam.load_model(MODEL, device="cpu", dtype=torch.float32)
    sources = [[31, 7, 250, 2], [9, 400, 2], [77, 12, 5, 81, 2]]
    search = pybeam.fixed_beam(3, max_length=8)
    for schedule in (None, pybeam.Fifo(1)):
        found, right = (
            pybeam.Decoder(one, search, schedule).decode(sources) for one in (model, exact)
        )
        for ours, theirs in zip(found, right, strict=True):
            assert ours.hypotheses[0].score == pytest.approx(theirs.hypotheses[0].score, rel=0.1)


# sizes of 16 and others; GELU and SiLU, of which torch computes the last numbers of a tensor otherwise
SIZES = dict(d_model=48, encoder_ffn_dim=40, decoder_ffn_dim=80)
MODELS = {
    "example": lambda folder: MODEL,
    "bart": lambda folder: save_tiny_model(folder, "bart", **SIZES) and folder,
    "flan-t5": lambda folder: save_tiny_model(folder, "flan-t5", d_model=32, d_ff=48) and folder,
    "qwen3": lambda folder: (
        save_tiny_causal(folder, "qwen3", hidden_size=48, intermediate_size=80) and folder
    ),
}


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", MODELS)
def test_results_do_not_depend_on_the_batch(name, tmp_path):
    """Alone as in a batch, to the last bit."""
    model = pybeam.load_model(MODELS[name](tmp_path), device="cpu", dtype="float8_e4m3fn")
    sources = [[7 + i, *range(5, 5 + 3 * i % 11), 9] for i in range(9)]
    search = pybeam.variable_beam(4, threshold=4.0, n_best=3, max_length=7)
    alone = essence(pybeam.Decoder(model, search, pybeam.Batch(1)).decode(sources))
    for schedule in (pybeam.Batch(9), pybeam.Streaming(3), pybeam.Fifo(5, row_budget=7)):
        assert essence(pybeam.Decoder(model, search, schedule).decode(sources)) == alone


def test_matrices_of_other_sizes_stay_as_they_are(tmp_path):
    """A decoder-only model whose heads are no multiple of 16 wide."""
    save_tiny_causal(tmp_path, "qwen3")
    model = pybeam.load_model(tmp_path, device="cpu", dtype="float8_e4m3fn")
    results = pybeam.Decoder(model, pybeam.greedy(max_length=4)).decode([[1, 2, 3], [4]])
    assert all(result.hypotheses for result in results)


@pytest.mark.slow
def test_older_gpus_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    problem = float8.device_problem(torch.device("cuda"))
    assert problem is not None and "8.9 or more, but cuda has 8.0" in problem
    assert float8.device_problem(torch.device("cpu")) is None
