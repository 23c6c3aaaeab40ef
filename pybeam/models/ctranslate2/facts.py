"""The facts of a stack that the numbers in `model.bin` say, and the tensors that stand together there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pybeam.models.ctranslate2.binary import NUM_HEADS, Binary
from pybeam.models.transformer.facts import Names, NormFacts, StackFacts

# by their numbers; pybeam has no sigmoid and no GELU that is made of one
ACTIVATIONS = {0: "relu", 1: "gelu_new", 2: "silu", 3: "gelu", 5: "tanh"}
OTHER_ACTIVATIONS = {4: "GELUSigmoid", 6: "Sigmoid"}
NAMES = Names(
    layer="layer_{}.",
    self_norm="self_attention.layer_norm",
    qkv=("self_attention.linear_0",),
    self_out="self_attention.linear_1",
    cross_norm="attention.layer_norm",
    cross_query="attention.linear_0",
    cross_key_value=("attention.linear_1",),
    cross_out="attention.linear_2",
    inner_norm="ffn.layer_norm",
    inner=("ffn.linear_0",),
    inner_out="ffn.linear_1",
)
# norms before and behind both sublayers
SANDWICH: dict[str, Any] = dict(
    self_norm="input_layer_norm",
    after_self_norm="post_attention_layer_norm",
    inner_norm="pre_feedforward_layer_norm",
    after_inner_norm="post_feedforward_layer_norm",
)
GAMMA_OFFSET = "/layer_norm_use_residual"


class StackReader:
    """Reads the facts of one stack.

    Args:
        binary: the file.
        stack: "encoder" or "decoder".
        config: config.json.
    """

    def __init__(self, binary: Binary, stack: str, config: dict[str, Any]) -> None:
        self.binary, self.stack, self._config = binary, stack, config
        self.num_layers = binary.num_layers(stack)

    def has(self, name: str) -> bool:
        """Whether the stack has a tensor or a number of this name."""
        return f"{self.stack}/{name}" in self.binary

    def number(self, name: str, default: float | None = None) -> Any:
        """Return a number of the stack, or of files of old versions one of the model."""
        found = self.binary.number(f"{self.stack}/{name}")
        return self.binary.number(name, default) if found is None else found

    def numbers(self, name: str) -> list[float]:
        """Take a list of numbers of the stack out of the file."""
        name = f"{self.stack}/{name}"
        self.binary.shape(name, 1)
        found: list[float] = self.binary.tensors.pop(name).read().tolist()
        return found

    def of_layers(self, name: str, default: float | None = None) -> list[Any]:
        """Return a number of each layer."""
        layers = range(self.num_layers)
        return [self.binary.number(f"{self.stack}/layer_{i}/{name}", default) for i in layers]

    def of_all_layers(self, name: str, default: float | None = None) -> Any:
        """Return a number that is the same in all layers. Raises ValueError if layers differ."""
        found = set(self.of_layers(name, default))
        if len(found) > 1:
            place = f"{self.stack}/layer_*/{name}"
            raise self.binary.error(place, "the same in all layers", sorted(found, key=str))
        return found.pop()

    @property
    def is_parallel(self) -> bool:
        """Whether attention and inner layers read the same states."""
        first = "layer_0/input_layer_norm/gamma", "layer_0/shared_layer_norm/gamma"
        return not self._is_sandwich and any(map(self.has, first))

    @property
    def _is_sandwich(self) -> bool:
        return self.has("layer_0/pre_feedforward_layer_norm/gamma")

    def _names(self) -> Names:
        names, own = NAMES, {}
        if self._is_sandwich:
            own = SANDWICH
        elif self.has("layer_0/shared_layer_norm/gamma"):
            own = dict.fromkeys(("self_norm", "inner_norm"), "shared_layer_norm")
        elif self.is_parallel:
            has_two = self.has("layer_0/post_attention_layer_norm/gamma")
            own = dict(self_norm="input_layer_norm")
            own["inner_norm"] = "post_attention_layer_norm" if has_two else "input_layer_norm"
        if self.has("layer_0/ffn/linear_0_noact/weight"):
            own = {**own, "inner": (*names.inner, "ffn.linear_0_noact")}
        if self.has("layer_0/self_attention/q_norm/gamma"):
            own = {
                **own,
                "query_norm": "self_attention.q_norm",
                "key_norm": "self_attention.k_norm",
            }
        return replace(names, **own)

    def embedding_scale(self, hidden_size: int) -> float:
        """Return what embeddings are multiplied by."""
        older = self.binary.number(f"{self.stack}/embeddings/multiply_by_sqrt_depth")
        given = self.number("scale_embeddings", older)
        # integers are flags, and floats the scale itself
        if given is None or given is True or (isinstance(given, int) and given):
            return float(hidden_size**0.5)
        return float(given) if isinstance(given, float) else 1.0

    def _norm(self, first: str, is_wide: bool) -> NormFacts:
        has_bias = self.has(f"layer_0/{first.replace('.', '/')}/beta")
        epsilon = self._config.get("layer_norm_epsilon")
        if epsilon is None:
            epsilon = 1e-5 if has_bias else 1e-6
        if not isinstance(epsilon, float) or not 0 < epsilon < 1:
            path = self.binary.path.parent / "config.json"
            raise ValueError(
                f"`layer_norm_epsilon` in {path} must be a small number, but is {epsilon!r}"
            )
        held = (*self.binary.tensors, *self.binary.aliases)
        mine = [name for name in held if name.startswith(f"{self.stack}/")]
        offsets = [self.binary.number(name) for name in mine if name.endswith(GAMMA_OFFSET)]
        num_norms = sum(name.endswith("/gamma") for name in mine)
        if offsets and (len(set(offsets)) > 1 or len(offsets) != num_norms):
            raise ValueError(
                f"`{GAMMA_OFFSET[1:]}` in {self.binary.path} must be the same in all norms"
            )
        offset = float(any(offsets))
        return NormFacts(float(epsilon), has_bias, is_wide=is_wide and not has_bias, offset=offset)

    def facts(self, *, has_cross: bool = False, is_wide: bool = False) -> StackFacts:
        """Return the shapes and facts of the layers.

        `has_cross` is whether layers attend over encoder states, `is_wide` as in `NormFacts`.

        Raises:
            ValueError: numbers or shapes contradict each other, or layers compute what pybeam does not.
        """
        binary, names = self.binary, self._names()
        heads = binary.size("num_heads", NUM_HEADS.get(binary.spec, 8))
        heads = binary.size(f"{self.stack}/num_heads", heads)
        key_heads = self.of_all_layers("self_attention/num_heads_kv", heads)
        if key_heads < 1 or heads % key_heads:
            raise binary.error(f"{self.stack}/num_heads", f"a multiple of {key_heads}", heads)
        first = f"{self.stack}/layer_0"
        rows, hidden_size = binary.shape(f"{first}/self_attention/linear_0/weight", 2)
        head_size, rest = divmod(rows, heads + 2 * key_heads)
        if rest or not head_size:
            raise ValueError(
                f"`{first}/self_attention/linear_0/weight` in {binary.path} must have a multiple of "
                f"{heads + 2 * key_heads} rows, for {heads} heads and {key_heads} of keys, but has {rows}"
            )
        activation = self.number("activation", 0)
        if activation not in ACTIVATIONS:
            found = OTHER_ACTIVATIONS.get(activation, activation)
            raise binary.error(
                f"{self.stack}/activation", f"one of {', '.join(ACTIVATIONS.values())}", found
            )
        has_qkv_bias, has_out_bias, has_inner_bias = (
            self.has(f"layer_0/{linear}/bias")
            for linear in ("self_attention/linear_0", "self_attention/linear_1", "ffn/linear_0")
        )
        return StackFacts(
            names=names,
            norm=self._norm(names.self_norm, is_wide),
            num_layers=self.num_layers,
            hidden_size=hidden_size,
            inner_size=binary.shape(f"{first}/ffn/linear_0/weight", 2)[0],
            num_heads=heads,
            num_key_heads=key_heads,
            head_size=head_size,
            activation=ACTIVATIONS[activation],
            prefix=f"{self.stack}.",
            is_pre_norm=bool(self.number("pre_norm", 1)),
            has_cross=has_cross,
            is_gated=len(names.inner) == 2,
            has_qkv_bias=has_qkv_bias,
            has_key_bias=has_qkv_bias,
            has_out_bias=has_out_bias,
            has_inner_bias=has_inner_bias,
        )

    def scale(self, facts: StackFacts, attention: str = "self_attention") -> float:
        """Return what queries times keys are multiplied by."""
        size = self.of_all_layers(f"{attention}/head_dim", facts.hidden_size // facts.num_heads)
        if not isinstance(size, int) or size < 1:
            raise self.binary.error(f"{self.stack}/layer_0/{attention}/head_dim", "a size", size)
        return float(self.of_all_layers(f"{attention}/queries_scale", size**-0.5))
