"""The kernels of a step on a GPU, in the order of their launches, from the trace of a decode."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from pybeam.inspect.trace import KERNEL, launches_by_phase
from pybeam.inspect.work import BYTES, MACHINES, Machine, Network, Part, whole

# the first that fits counts; names are ATen's, CUDA's libraries' or ours
_ROLE_OF = {
    "product": r"\b_?(scaled_|add)?mm\b|_addmm|linear|product|gemm|nvjet|cutlass|splitK|Memset|_layers_",
    "attention": r"attention",
    "norm": r"_norm",
    "select": r"\bselect_\w*kernel",
    "books": r"\b(plan|read|inherit|commit|append|release|report|accept|prepend)_\w*kernel",
    "other": r"",
}
ROLES = tuple(_ROLE_OF)
# of a product: what it needs before, and what adds its parts
BESIDE_PRODUCTS = ("Memset", "splitK")
# all layers of a decoder in one launch, and the selection where no other kernel has it
ONE_LAUNCH = "decoder_layers_kernel"
# phases in which the kernels of a step are launched
IN_STEP = ("plan", "model", "select", "commit", "replay")


class Kernel(NamedTuple):
    """A kernel of a step and its median duration."""

    name: str
    us: float

    @property
    def role(self) -> str:
        return role_of(self.name)


class Step(NamedTuple):
    """The kernels of a step in their order, and microseconds from its first to the end of its last."""

    kernels: list[Kernel]
    us: float


def role_of(kernel: str) -> str:
    """Which of `ROLES` a kernel has; `kernel` is its name in a trace, or the operator that launches it."""
    return next(role for role, pattern in _ROLE_OF.items() if re.search(pattern, kernel))


def short_name(kernel: str) -> str:
    """The name without types and templates, which have hundreds of letters."""
    return re.sub(r"^void |<.*|\(.*", "", kernel.replace("(anonymous namespace)::", ""))


def median_step(events: list[dict]) -> Step:
    """The step with the kernels that most steps of a trace have, each with its median duration.

    Raises ValueError if no step has launched a kernel.
    """
    steps: list[list[dict]] = [[]]
    for phase, launched in launches_by_phase(events):
        if phase in IN_STEP:
            steps[-1] += [event for event in launched if event["cat"] in KERNEL]
        elif steps[-1]:
            steps.append([])
    steps = [sorted(step, key=lambda event: event["ts"]) for step in steps if step]
    if not steps:
        raise ValueError("a trace must have kernels of a step, but has none")
    names = [tuple(event["name"] for event in step) for step in steps]
    [(most, _)] = Counter(names).most_common(1)
    same = [step for step, own in zip(steps, names, strict=True) if own == most]
    kernels = [
        Kernel(own[0]["name"], statistics.median(event["dur"] for event in own))
        for own in zip(*same, strict=True)
    ]
    spans = [step[-1]["ts"] + step[-1]["dur"] - step[0]["ts"] for step in same]
    return Step(kernels, statistics.median(spans))


def parts_of(kernels: Sequence[Kernel], own: Sequence[Part]) -> list[Part | None]:
    """The part of a step that each kernel does: the kernels of a role have its parts in their order.

    One launch for all layers has all of their work. None where a role has not as many kernels as parts, and
    for what a product needs beside itself.
    """
    found: list[Part | None] = [None] * len(kernels)
    for i, kernel in enumerate(kernels):
        if ONE_LAUNCH in kernel.name:
            others = {other.role for other in kernels} & {"select"}
            found[i] = Part("product", "all layers", whole(p for p in own if p.role not in others))
            own = [part for part in own if part.role in others]
    for role in ROLES:
        parts = [part for part in own if part.role == role]
        places = [
            i
            for i, kernel in enumerate(kernels)
            if kernel.role == role and not any(name in kernel.name for name in BESIDE_PRODUCTS)
        ]
        if len(places) == len(parts):
            for i, part in zip(places, parts, strict=True):
                found[i] = part
    return found


def this_machine() -> Machine | None:
    """The published rates of this GPU; None: they are not known here."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    # others of these names, such as the H100 PCIe, have slower memory
    return MACHINES.get({"NVIDIA H100 80GB HBM3": "H100", "NVIDIA H200": "H200"}.get(name, ""))


def network_of(config: object, dtype: str) -> Network | None:
    """The sizes of a transformer by its configuration, with weights of this dtype; None: not known."""
    from pybeam.models.transformer.causal_config import CausalConfig
    from pybeam.models.transformer.config import TransformerConfig

    if dtype not in BYTES:
        return None
    if isinstance(config, TransformerConfig):
        heads = config.num_decoder_heads
        head = config.head_size(heads)
        sizes = config.num_decoder_layers, config.hidden_size, config.decoder_inner_size
        width = heads * head
        gated = config.is_gated
        return Network(*sizes, config.vocab_size, head, is_gated=gated, keys=width, heads=width)
    if isinstance(config, CausalConfig):
        stack = config.stack
        head = stack.head_size
        sizes = stack.num_layers, stack.hidden_size, stack.inner_size
        keys, heads = stack.num_key_heads * head, stack.num_heads * head
        own = Network(*sizes, config.vocab_size, head, is_gated=stack.is_gated)
        return replace(own, has_cross=False, keys=keys, heads=heads)
    return None
