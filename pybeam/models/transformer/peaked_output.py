"""The output layer of a decoder with the selection behind it, on a GPU, where nothing changes the logits.

The product leaves the largest logit of each group and what sums of exponentials need
(`triton_kernels/peaked_product.py`). `select` then reads these few numbers and the logits of some groups
(`csrc/cuda/select_peaked.cu`), and not all logits again.

It is off unless the environment has PYBEAM_PEAKED_OUTPUT=1. It is for an extension that was built with CUDA.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from torch import Tensor

from pybeam.backends.arrays import SelectInputs
from pybeam.contracts import SelectOptions, Survivors
from pybeam.models.linear import PlainLinear
from pybeam.models.transformer import cuda_operators
from pybeam.models.transformer.layers import Stack

VARIABLE = "PYBEAM_PEAKED_OUTPUT"
IS_ON = os.environ.get(VARIABLE) == "1"


class PeakedOutput:
    """The survivors of a decoder's rows, from the peaks of their logits.

    Args:
        runner: who sends rows through the stack.
        output: a layer that `takes_output` takes.
        layers: `LayersInOne`, which is asked first; None: there is none.
    """

    def __init__(self, runner: Any, output: PlainLinear, layers: Any) -> None:
        # the runner has this object, and a circle would keep a dead decoder's memory for Python's collector
        self._runner = weakref.proxy(runner)
        self._output, self._layers = output, layers

    def states(self, *given: Any) -> Tensor | None:
        """Return what `LayersInOne.states` does."""
        return None if self._layers is None else self._layers.states(*given)

    def logits(self, *given: Any) -> Tensor | None:
        """Return what `LayersInOne.logits` does."""
        return None if self._layers is None else self._layers.logits(*given)

    def chosen(
        self, inputs: Any, own: Any, cross: Any, given: SelectInputs, options: SelectOptions
    ) -> Survivors | None:
        """Return what `select` makes of `StackRunner.logits`; None: rows or rules are not for it."""
        seen, layers, weight = (inputs, own, cross), self._layers, self._output.weight
        if layers is not None and (found := layers.chosen(*seen, given, options)) is not None:
            return found
        num_rows = len(inputs[0]) if isinstance(inputs, tuple) else len(inputs)
        if num_rows == 0 or not cuda_operators.takes_choice(weight, options):
            return None
        from pybeam.triton_kernels.peaked_product import peaked_product

        peaked = peaked_product(self._runner.states(*seen), weight, self._output.bias)
        selected = cuda_operators.selected(given.score, given.offset, given.width, options)
        return Survivors(*cuda_operators.operator("select_peaked")(*peaked, *selected))


def with_peaks(runner: Any, stack: Stack, output: Any, layers: Any) -> Any:
    """Return `PeakedOutput`, or `layers` where it is off or the output layer is not for it.

    Args:
        runner: the `StackRunner` of the stack.
        stack: an encoder or a decoder.
        output: the layer that reads its states, or None.
        layers: `LayersInOne` or None.
    """
    if not IS_ON or not takes_output(stack, output):
        return layers
    has_operator = cuda_operators.has_operator("select_peaked", VARIABLE)
    return PeakedOutput(runner, output, layers) if has_operator else layers


def takes_output(stack: Stack, output: Any) -> bool:
    """Whether logits are those of a plain layer in 16 bits, whose weights lie side by side."""
    is_plain = type(output) is PlainLinear and output.activation is None
    has_cap = stack.output_soft_cap is not None
    return is_plain and not has_cap and cuda_operators.is_whole(output.weight, output.weight.dtype)
