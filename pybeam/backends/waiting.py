"""Find where a step waits for the device, so that no CUDA graph may hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# operators whose result has a size that depends on data, or that read data back
WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique_consecutive",
    "aten::_unique2",
    "aten::repeat_interleave.Tensor",
    "aten::equal",
    "aten::is_nonzero",
    "aten::item",
}
COPIES = {"aten::_to_copy", "aten::copy_", "aten::lift_fresh"}
INDEX_PUT = ("aten::index_put", "aten::index_put_")
READS = {"tolist", "numpy", "item", "cpu", "__bool__", "__int__", "__float__", "__index__"}


class Waits(RuntimeError):
    """A step waits for the device, or would wait if its tensors were on one."""


def refuse(problem: str) -> None:
    """Raise `Waits`."""
    raise Waits(problem)


class NoWaiting(TorchDispatchMode):
    """Within this context, operators of this thread that wait for the device raise `Waits`.

    torch has a mode for that, `torch.cuda.set_sync_debug_mode`. It is of the whole process: other threads,
    which may wait, would raise, too.

    Args:
        found: called with what waits, in place of raising.
        uploads: whether copies to the device and from it may begin here that nobody waits for. No graph may
            hold them.
    """

    def __init__(self, found: Callable[[str], object] = refuse, *, uploads: bool = False) -> None:
        super().__init__()
        self._found, self._uploads = found, uploads
        self._number: Any = None  # the last constant

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func._schema.name
        overload = f"{name}.{func._overloadname}"
        is_boolean_index = name in ("aten::index", *INDEX_PUT) and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in WAITING or overload in WAITING or is_boolean_index:
            self._found(f"{overload} waits for the device")
        is_number = name in INDEX_PUT and not args[2].ndim and args[2].device.type == "cpu"
        # where there is no GPU, it is known by the operator before
        if is_number and (args[2] is self._number or args[0].device.type != "cpu"):
            self._found(f"{overload} of a number of the host waits for its copy: use `index_fill_`")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # `copy_` takes it by place
        begins = name in COPIES and (kwargs.get("non_blocking") or (True in args[2:]))
        if name == "aten::lift_fresh":
            self._number = result
        if name in COPIES and not (begins and self._uploads):
            # a new constant comes from the host, too
            source = args[1] if name == "aten::copy_" else args[0]
            before = torch.device("cpu") if name == "aten::lift_fresh" else source.device
            if result.device.type != before.type:
                self._found(f"{overload} from {before.type} to {result.device.type} waits")
        return result


class HostReadGuard(TorchFunctionMode):
    """Within this context, Python that asks a tensor for its values raises `Waits`.

    Args:
        found: as for `NoWaiting`.
    """

    def __init__(self, found: Callable[[str], object] = refuse) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in READS:
            self._found(f"Tensor.{func.__name__} waits for the device")
        return func(*args, **(kwargs or {}))
