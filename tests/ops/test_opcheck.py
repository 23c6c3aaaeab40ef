"""Every native operator keeps its schema's promises: mutation, aliasing, shapes without data."""

from __future__ import annotations

import math

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.backends.arrays import tree_survivors
from pybeam.kvcache.token_tree import TokenTree
from support.cuda_code import own_operators


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture(autouse=True, scope="module")
def native():
    pytest.importorskip("pybeam.ctc.native", exc_type=ImportError)
    return pytest.importorskip("pybeam.ops.fakes", exc_type=ImportError)


def open_tree() -> TokenTree:
    tree = TokenTree(backends.load("native"), torch.device("cpu"))
    tree.reserve(3, 2, 5)
    tree.reserve_pages(4)
    tree.open(ints([0, 2]), start_id=1)
    return tree


def select_arguments() -> tuple:
    per_beam = dict(
        max_candidates=ints([2, 3]),
        margin=torch.ones(2),
        local_margin=torch.ones(2),
        best_finished=torch.zeros(2),
        forced=ints([-1, -1]),
        ban_eos=torch.tensor([True, False]),
    )
    is_ended = torch.tensor([False, True, False])
    return (
        torch.randn(2, 9),
        torch.zeros(3),
        ints([0, 2, 3]),
        ints([2, 2]),
        is_ended,
        *per_beam.values(),
        [1, 4],
        2,
        4,
        False,
    )


def attention_arguments() -> tuple:
    pool = torch.randn(2, 8, 2, 16)
    return (
        torch.randn(3, 2, 16),
        pool[0],
        pool[1],
        ints([0, 3]),
        ints([0]),
        ints([[3, 1, 0]]),
        ints([3]),
        torch.tensor([[[1], [-1], [7]]]),
        ints([0, 1, 2]),
        0.25,
        ints([4, 4, 5]),
        torch.arange(8).int(),
        torch.randn(2, 3),
        1,
        4,
        2.0,
    )


def as_lists(arguments: list) -> tuple:
    return tuple(list(one) if isinstance(one, tuple) else one for one in arguments)


def append_arguments() -> tuple:
    tree, state = open_tree(), []
    tree.backend = type("Recorder", (), {"tree_append": lambda *args: state.extend(args)})
    tree.append(ints([0]), tree_survivors(ints([[5]]), ints([[0]]), torch.zeros(1, 1)), 9)
    return as_lists(state)


def release_arguments() -> tuple:
    tree, state = open_tree(), []
    tree.backend = type("Recorder", (), {"tree_release": lambda *args: state.extend(args)})
    tree.release(ints([2]))
    return as_lists(state)


def prefix_arguments() -> tuple:
    """Arguments of two rows: one begins, and one goes on from where it began."""
    log_probs = torch.randn(1, 3, 5).log_softmax(2)
    sources = [log_probs, ints([3]), torch.tensor([0.5]), log_probs.exp()]
    rows = [ints(one) for one in ([0, 0], [0, 1], [-1, 0], [4, 2], [-1, -1])]
    return torch.randn(2, 5), torch.zeros(2, 4, 2).double(), sources, rows, [4], 0, 0


def catalogue_arrays() -> list[torch.Tensor]:
    catalogue = pybeam.Catalogue.build([[3], [2, 4]])
    return [*catalogue.tensors, catalogue.everything.words[None]]


ARGUMENTS = {
    "select": select_arguments,
    "tree_attention": attention_arguments,
    "tree_append": append_arguments,
    "tree_release": release_arguments,
    "gather_rows": lambda: ([torch.randn(4, 3), torch.randn(4)], ints([0, 1]), ints([1, 0])),
    "scatter_rows": lambda: (torch.zeros(5, 3), ints([4, 0]), torch.randn(2, 3)),
    "automaton_walk": lambda: (
        catalogue_arrays(),
        ints([[-1, 0], [-1, 0]]),
        ints([[0, 0], [0, 0]]),
        *(ints(one) for one in ([0, 1], [0, 1], [3, 3], [0, 1], [0, 0], [0, 0], [9, 9])),
    ),
    "automaton_logits": lambda: (
        torch.randn(2, 5),
        [ints([3]), ints([0, 1, 1]), ints([[0], [0]]), torch.full((3, 6), -1, dtype=torch.int32)],
        ints([[-1, 0], [-1, 0]]),
        ints([[0, 0], [0, 0]]),
        *(ints(one) for one in ([0, 1], [0, 1], [3, 3], [0, 1], [0, 0], [0, 0], [9, 9])),
        [1],
    ),
    "automaton_places": lambda: (
        torch.randn(2, 5),
        [ints([3]), ints([0, 1, 1]), ints([[0], [0]]), torch.full((3, 6), -1, dtype=torch.int32)],
        [
            ints([[0, 0]]),
            ints([[0]]),
            *(ints(one) for one in ([0, 0], [0, 1], [0, 1], [0, 0], [0, 2], [0])),
            torch.randn(1, 2),
            *(ints(one) for one in ([0, 2], [2])),
        ],
        ints([[3, 4]]),
        ints([[0, 1]]),
        [1],
    ),
    "automaton_columns": lambda: (
        catalogue_arrays(),
        torch.randn(2, 5),
        ints([0, 2]),
        ints([0, 0]),
        1,
        True,
        2,
        1,
    ),
    "ctc_beam_search": lambda: (
        torch.randn(2, 3, 5).log_softmax(2),
        ints([3, 2]),
        0,
        4,
        2,
        5,
        math.inf,
    ),
    "ctc_align": lambda: (
        torch.randn(2, 3, 5).log_softmax(2),
        ints([3, 2]),
        ints([[1, 2], [4, -1]]),
        ints([2, 1]),
        0,
    ),
    "ctc_prefix_scores": prefix_arguments,
    "edit_logits": lambda: (
        torch.randn(2, 9),
        [2, -1, 0, 10, 0, 0, 4, 0, 0],
        [ints([[3, -1], [4, 5]]), ints([2, 2])],
        ints([[1], [1]]),
        ints([[7, 8], [7, -1]]),
        *(ints(one) for one in ([0, 1], [0, 0], [0, 0], [5, 5])),
        [1, 4],
    ),
    "log_softmax": lambda: (torch.randn(3, 70),),
    "fill_panels": lambda: (torch.zeros(2, 5, 64), torch.randn(128, 5)),
    "linear": lambda: (
        torch.zeros(3, 70),
        torch.randn(3, 8),
        torch.randn(2, 8, 64),
        None,
        torch.randn(70),
        1,
        False,
    ),
    "embed": lambda: (
        ints([3, 1]),
        ints([0, 1]),
        torch.randn(4, 8),
        None,
        4,
        torch.randn(2, 8),
        2.0,
    ),
    "rms_norm": lambda: (torch.randn(3, 70), torch.randn(70), 1e-6),
    "rotary": lambda: (torch.randn(2, 3, 8), ints([3, 1]), torch.randn(4, 4), torch.randn(4, 4)),
    "gated": lambda: (torch.randn(3, 70), 4),
    "soft_cap": lambda: (torch.randn(3, 70), 30.0),
    "prompt_attention": lambda: (
        torch.randn(2, 4, 8),
        torch.randn(6, 2, 8),
        torch.randn(6, 2, 8),
        ints([0, 2]),
        ints([0]),
        ints([[3, 1]]),
        ints([2]),
        ints([0, 1]),
        0.3,
        0,
        0.0,
        torch.randn(4, 5),
    ),
    "glu": lambda: (torch.randn(3, 70),),
    "lstm_cell": lambda: (torch.randn(3, 36), torch.randn(3, 9)),
    "layer_norm": lambda: (torch.randn(3, 70), torch.randn(70), torch.randn(70), 1e-5),
    "mixture": lambda: (torch.zeros(3, 70), [torch.randn(3, 70), torch.randn(3, 70)]),
    "backtrace": lambda: (ints([[7, 8]]), ints([[-1, 0]]), ints([0]), ints([1]), 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
def test_opcheck(name):
    torch.library.opcheck(getattr(torch.ops.pybeam, name).default, ARGUMENTS[name]())


def test_every_operator_is_checked():
    found = {
        name.split("::")[1]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("pybeam::")
    }
    settings = {
        "isa",
        "set_isa",
        "bfloat16_products",
        "set_bfloat16_products",
        "unwritten",
        "count_kernels",
    }
    # steps alone call those of an extension with CUDA
    with_cuda = own_operators()
    assert "select_peaked" in with_cuda
    assert found - with_cuda == {*ARGUMENTS, *settings}


def test_an_instruction_set_that_is_not_there():
    with pytest.raises(RuntimeError, match=r"must be generic, .* or \w+, but is"):
        torch.ops.pybeam.set_isa("sse9")


@pytest.mark.slow
def test_one_openmp_runtime():
    import subprocess
    import sys

    code = (
        "import torch, pybeam._C\n"
        "lines = open('/proc/self/maps').read().split()\n"
        "print(len({path for path in lines if 'libgomp' in path or 'libomp' in path}))"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"
