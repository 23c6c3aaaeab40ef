"""The work of a kernel or of a step, and the rates that makers of GPUs publish."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# tokens that another hypothesis of the beam does not share, as the example model has them half-way
UNSHARED_TOKENS = 4
# of a number
BYTES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1}
# the products of float32 without tensor cores, as a share of those of bfloat16, on both machines
FLOAT32_SHARE = 67 / 989


@dataclass(frozen=True)
class Machine:
    """The rates that its maker publishes, without sparsity."""

    bytes_per_us: float
    flop_per_us: float
    float8_flop_per_us: float
    multiprocessors: int = 132

    def multiplies(self, dtype: str) -> float:
        """Operations a microsecond in this dtype."""
        if dtype == "float8_e4m3fn":
            return self.float8_flop_per_us
        return self.flop_per_us * (FLOAT32_SHARE if dtype == "float32" else 1)


MACHINES = {
    "H100": Machine(3.35e6, 989e6, 1979e6),
    "H200": Machine(4.8e6, 989e6, 1979e6),
}


@dataclass(frozen=True)
class Work:
    """The bytes and products of a kernel or of a step.

    Attributes:
        num_bytes: read and written, weights once.
        flop: operations, two for a multiply-add.
    """

    num_bytes: float
    flop: float

    def us(self, machine: Machine, dtype: str, read: float = 1, multiply: float = 1) -> float:
        """Microseconds at these shares of the published rates."""
        rate = machine.multiplies(dtype) * multiply
        return max(self.num_bytes / machine.bytes_per_us / read, self.flop / rate)


@dataclass(frozen=True)
class Network:
    """A decoder of layers, as far as a step of it goes.

    Attributes:
        layers: how many.
        width: numbers of a state.
        ffn: numbers of an inner layer.
        vocabulary: columns of the logits.
        head: numbers of a head.
        has_cross: whether layers attend to sources, too.
        is_gated: whether inner layers have gates beside.
        keys: numbers of a key; None: as many as a state has.
        heads: numbers of all heads of a query; None: as many as a state has.
    """

    layers: int
    width: int
    ffn: int
    vocabulary: int
    head: int = 64
    has_cross: bool = True
    is_gated: bool = False
    keys: int | None = None
    heads: int | None = None

    @property
    def key_width(self) -> int:
        return self.width if self.keys is None else self.keys

    @property
    def query_width(self) -> int:
        return self.width if self.heads is None else self.heads

    @property
    def num_weights(self) -> int:
        """Those that a step multiplies by."""
        d, queries = self.width, self.query_width
        attended = 2 * d * (queries + self.key_width)
        crossed = 2 * d * queries if self.has_cross else 0
        layer = attended + crossed + (3 if self.is_gated else 2) * d * self.ffn
        return self.layers * layer + d * self.vocabulary


@dataclass(frozen=True)
class StepRows:
    """The rows of a step, on average, and what they attend to.

    Attributes:
        sources: that move.
        beam: rows of each.
        rows: of all, padding included.
        own_keys: nodes that a source's rows see, those of the step included.
        source_keys: tokens of a source.
    """

    sources: float
    beam: float
    rows: float
    own_keys: float
    source_keys: float


@dataclass(frozen=True)
class Part:
    """Work that one kernel of a step does.

    Attributes:
        role: "product", "attention", "norm" or "select".
        name: what it computes.
        work: see `Work`.
        num_inputs, num_outputs: of a product.
        keys: of an attention: those that lie there, and those that are new.
    """

    role: str
    name: str
    work: Work
    num_inputs: int = 0
    num_outputs: int = 0
    keys: tuple[float, float] = (0, 0)


def parts(network: Network, step: StepRows, dtype: str) -> list[Part]:
    """The products, attentions, norms and the selection of a step, in the order of their launches.

    Keys and values that hypotheses of a beam share are read once.
    """
    rows, d, queries = step.rows, network.width, network.query_width
    # of a logit, and of a number in the cache
    kept = max(2, BYTES[dtype])

    def linear(name: str, inputs: int, outputs: int) -> Part:
        work = Work(inputs * outputs * BYTES[dtype], 2 * rows * inputs * outputs)
        return Part("product", name, work, inputs, outputs)

    def attention(name: str, keys: float, new: float) -> Part:
        """Each row attends to so many keys, and to those of its beam that are new."""
        seen = keys + new
        num_bytes = 2 * step.sources * seen * network.key_width * kept
        return Part("attention", name, Work(num_bytes, 4 * rows * seen * queries), keys=(keys, new))

    def norm(name: str) -> Part:
        # two read and two written
        return Part("norm", name, Work(4 * rows * d * kept, 0))

    # those of a prompt lie among a decoder's own
    prompt = 0 if network.has_cross else step.source_keys
    layer = [
        linear("queries, keys, values", d, queries + 2 * network.key_width),
        attention("attention to hypotheses", prompt + step.own_keys - step.beam, step.beam),
        linear("its output", queries, d),
        norm("norm"),
    ]
    if network.has_cross:
        layer += [
            linear("queries", d, queries),
            attention("attention to sources", step.source_keys, 0),
            linear("its output", queries, d),
            norm("norm"),
        ]
    layer += [
        linear("inner layer", d, (2 if network.is_gated else 1) * network.ffn),
        linear("its output", network.ffn, d),
        norm("norm"),
    ]
    # logits are written and read once
    logits = linear("logits", d, network.vocabulary)
    selection = Part("select", "selection", Work(2 * rows * network.vocabulary * kept, 0))
    return [norm("norm"), *layer * network.layers, logits, selection]


def whole(own: Iterable[Part]) -> Work:
    """The work of all of them; numbers between kernels need not go through memory."""
    counted = [part.work for part in own if part.role != "norm"]
    return Work(sum(one.num_bytes for one in counted), sum(one.flop for one in counted))
