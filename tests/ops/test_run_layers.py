"""The operator `run_layers` refuses wrong arguments; `tests/models/test_fused.py` holds what it computes."""

from __future__ import annotations

import pytest
import torch

from support.layer_arguments import CELLS, HEADS, NONE, VOCAB, D, ints, layer_arguments

native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


def test_right_arguments():
    given = layer_arguments()
    native.run_layers(*given.values())
    assert given["out"].isfinite().all() and given["out"].abs().sum() > 0
    assert (given["own_pool"][0, 1:3] != 0).all() and (given["own_pool"][0, [0, 3, 4]] == 0).all()


def test_no_row():
    given = layer_arguments() | dict(out=torch.zeros(0, VOCAB), x=torch.zeros(0, D), cell=ints())
    given["own_cells"] = [ints(0, 0), *given["own_cells"][1:5], ints()]
    given["cross_cells"] = [ints(0, 0), *given["cross_cells"][1:]]
    native.run_layers(*given.values())


def changed(name: str, index: int, value: torch.Tensor):
    def change(given: dict) -> None:
        given[name] = list(given[name])
        given[name][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda g: g.update(x=torch.randn(2, D).double()), ValueError, "`x` must be Float"),
        (lambda g: g.update(out=torch.zeros(3, VOCAB)), ValueError, r"`out` must be \[2, 70\]"),
        (lambda g: g.update(out=torch.zeros(2, 200)), ValueError, r"`weight` must be \[4, 8, 64\]"),
        (lambda g: g.update(num_heads=3), ValueError, "`num_heads` must divide 8, but is 3"),
        (
            lambda g: g.update(weights=g["weights"][:-1]),
            ValueError,
            "`weights` has too few tensors",
        ),
        (lambda g: g["weights"].append(NONE), ValueError, "`weights` has too many tensors"),
        (lambda g: g.update(activation=6), ValueError, "`activation` must be 0 to 5"),
        (lambda g: g.update(inner_size=0), ValueError, "must be positive"),
        (lambda g: g.update(cell=None), ValueError, "`own_pool` and `cell` go together"),
        (lambda g: g.update(cell=ints(1, CELLS)), RuntimeError, "`cell` must be from 0 to 4"),
        (lambda g: g.update(cell=ints(1, -2)), RuntimeError, "`cell` must be from 0 to 4"),
        (lambda g: g.update(own_cells=[]), ValueError, "cells must be 4 or 6 tensors, but are 0"),
        (changed("weights", 0, torch.ones(D + 1)), ValueError, "`weight of a norm` must be"),
        (changed("weights", 2, NONE), ValueError, r"`out` must be \[2, 8\] without an output"),
        (changed("weights", 7, NONE), ValueError, "`weights` lacks a matrix of layer 0"),
        (changed("weights", 5, NONE), ValueError, "`weights` lacks a norm of layer 0"),
        (changed("weights", 18, NONE), ValueError, "`weights` lacks a matrix of layer 0"),
        (changed("weights", 8, torch.ones(3 * D)), ValueError, "`scale` must be given for int8"),
        (changed("own_cells", 0, ints(0, 3)), RuntimeError, "`offset` must be from 0 to 2"),
        (changed("own_cells", 1, ints(2)), RuntimeError, "`slot` must be from 0 to 1"),
        (changed("own_cells", 3, ints(0, 3)), RuntimeError, "`num_cells` must be from 0 to 2"),
        (changed("own_cells", 5, ints(0, 64)), RuntimeError, "`entry` must be from 0 to 63"),
        (
            changed("cross_cells", 2, ints(0, 0, 1, CELLS).view(2, 2)),
            RuntimeError,
            "`cell` is not in the pool",
        ),
        (
            lambda g: g.update(cross_pool=torch.randn(1, CELLS, 2, HEADS, 3)),
            ValueError,
            "`cross_pool` must be",
        ),
    ],
)
def test_wrong_arguments(change, error, message):
    given = layer_arguments()
    change(given)
    with pytest.raises(error, match=message):
        native.run_layers(*given.values())
