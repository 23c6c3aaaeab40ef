"""Triton's interpreter, which runs kernels on a CPU when TRITON_INTERPRET=1 is set."""

from __future__ import annotations

from typing import Any


def take_computed_ranges() -> None:
    """Let kernels loop over `range(n)` with a computed n; call it once, before the first kernel runs.

    The interpreter holds n as an array of one number, and NumPy 2.4 and later refuse to take such an array
    for an index (triton issue 9171).
    """
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)
        # up to Triton 3.5 there is no scope, which restores attributes behind a kernel
        change = scope[0].set_attr if scope else setattr
        change(tensor, "__index__", lambda number: int(number.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_and_index
