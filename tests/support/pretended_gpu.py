"""A GPU that is not there: tensors that say they are on one, compute on the CPU, and mix with no others.

    with pretended(monkeypatch):
        model = load_model(directory)       # device "auto"
        assert model.device.type == "cuda"

Every tensor that is made on the device, or copied to it, is a `DeviceTensor`. An operator that meets one of
them beside a tensor of the host raises, as on a GPU, unless it copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pybeam import backends
from pybeam.backends import pinned
from support.device_loop import torch_beams

CPU, GPU = torch.device("cpu"), torch.device("cuda")
COPIES = ("aten::_to_copy", "aten::copy_")


class DeviceTensor(torch.Tensor):
    """A tensor of the device. Torch takes it for one of "meta", which has no numbers; `own` has them."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda = True
    device = GPU
    own: torch.Tensor

    @staticmethod
    def __new__(cls, own: torch.Tensor) -> DeviceTensor:
        sizes = dict(strides=own.stride(), storage_offset=own.storage_offset(), dtype=own.dtype)
        # views of tensors that are none of inference must be none, either
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(cls, own.shape, device="meta", **sizes)
        made.own = own
        return made

    def __repr__(self) -> str:
        return f"DeviceTensor({self.own})"

    def pin_memory(self, device=None):
        raise AssertionError("only memory of the host can be pinned")

    def tolist(self) -> list:
        return self.own.tolist()

    def numpy(self, *, force=False):
        raise TypeError("can't convert a tensor of the device to numpy")

    def data_ptr(self) -> int:
        return self.own.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, dict(kwargs or {}))


def computed(func, args: tuple, kwargs: dict):
    """Call an operator where its tensors are."""
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    is_on_gpu = comes_from_gpu = any(type(tensor) is DeviceTensor for tensor in tensors)
    names = _names(func)
    if not is_on_gpu and "device" not in names:
        return func(*args, **kwargs)
    name = func._schema.name
    hosts = [t for t in tensors if type(t) is not DeviceTensor and (t.dim() or not is_on_gpu)]
    if is_on_gpu and hosts and name not in COPIES:
        shapes = [list(tensor.shape) for tensor in hosts]
        raise RuntimeError(f"{name} mixes tensors of the device with those of the host, {shapes}")
    if name == "aten::copy_":
        is_on_gpu = type(args[0]) is DeviceTensor
    if "device" in names:
        kwargs.update(zip(names, args, strict=False))
        args = ()
        if kwargs.get("device") is not None:
            is_on_gpu = torch.device(kwargs["device"]).type == "meta"
        kwargs.update(device=CPU)
        kwargs.pop("pin_memory", None)
    own = _product_and_activation if name == "aten::_addmm_activation" else func
    found = own(*_own(args), **{name: _own(value) for name, value in kwargs.items()})
    if comes_from_gpu != is_on_gpu and any(found is tensor for tensor in tensors):
        found = found.clone()
    # what was changed in place is the same object
    known = {id(tensor.own): tensor for tensor in tensors if type(tensor) is DeviceTensor}
    return _on_gpu(found, known) if is_on_gpu else found


def _product_and_activation(bias, x, weight, *, use_gelu=False):
    """Act as this operator does on a GPU, where its GELU is tanh's. On a CPU it is the exact one."""
    product = torch.ops.aten.addmm(bias, x, weight)
    return torch.ops.aten.gelu(product, approximate="tanh") if use_gelu else product.relu_()


@cache
def _names(func) -> list[str]:
    return [argument.name for argument in func._schema.arguments]


def _tensors(values: Iterable) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _own(value):
    if isinstance(value, list | tuple):
        return type(value)(map(_own, value))
    return value.own if type(value) is DeviceTensor else value


def _on_gpu(value, known: dict):
    if isinstance(value, list | tuple):
        return [_on_gpu(part, known) for part in value]
    if isinstance(value, torch.Tensor):
        return known[id(value)] if id(value) in known else DeviceTensor(value)
    return value


class _Factories(TorchDispatchMode):
    """Tensors that are made on the device belong to it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return computed(func, args, dict(kwargs or {}))


class _Names(TorchFunctionMode):
    """Torch without CUDA refuses its name, so "meta" stands for it. Constants are made on the host."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        args = [_known_name(value) for value in args]
        if func is torch.Tensor.__setitem__ and isinstance(args[2], bool | int | float):
            # a number stays on the host until an operator copies it
            args[2] = torch.tensor(args[2], dtype=args[0].dtype)
        device = kwargs.get("device")
        if device is not None:
            kwargs = {**kwargs, "device": _known_name(device)}
            if func in (torch.tensor, torch.as_tensor):
                return func(*args, **{**kwargs, "device": None}).to(_known_name(device))
        return func(*args, **kwargs)


def _known_name(value):
    is_gpu = isinstance(value, torch.device | str) and str(value).startswith("cuda")
    return "meta" if is_gpu else value


@contextmanager
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A context in which there is such a GPU, so that `device="auto"` is that one."""
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    fakes = dict(
        is_available=lambda: True,
        _lazy_init=lambda: None,
        device=lambda which: nullcontext(),
        mem_get_info=lambda which=None: (1 << 30, 1 << 30),
        Event=lambda: event,
    )
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(pinned, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    program = torch_beams()
    monkeypatch.setattr(backends, "resolve", lambda name, device: program)
    with _Names(), _Factories():
        yield
