"""Build FireRedASR-AED from its converted checkpoint."""

from __future__ import annotations

from torch import Tensor

from pybeam.backends.packing import Quantised
from pybeam.models.conformer.attention import RelativeAttention
from pybeam.models.conformer.config import KERNEL, ConformerConfig
from pybeam.models.conformer.model import Conformer, ConformerLayer, ConformerTransformer
from pybeam.models.conformer.parts import ConvolutionModule, FeedForward, Kernels, PlaneSubsampler
from pybeam.models.linear import Linear
from pybeam.models.transformer.assembly import Assembly, nowhere
from pybeam.models.transformer.layers import Stack
from pybeam.models.transformer.norms import Norm


class ConformerAssembly(Assembly):
    """Builds the parts of a model whose encoder is a Conformer."""

    def model(self) -> ConformerTransformer:
        front = self.config.front
        assert isinstance(front, ConformerConfig)
        kernels = Kernels(self.reader.device, self.reader.is_packed)
        names = [f"encoder.layers.{i}" for i in range(self.config.num_encoder_layers)]
        conformer = Conformer(
            subsampler=self._plane_subsampler(front),
            position_table=self._positions("encoder"),
            layers=tuple(self._conformer_layer(name, front, kernels) for name in names),
        )
        ctc = None
        if front.has_ctc:
            ctc = self._linear("encoder.ctc", self.config.vocab_size, self.config.hidden_size)
        return ConformerTransformer(self._weights(), conformer, ctc)

    def _encoder(self) -> Stack:
        config, heads = self.config, self.config.num_encoder_heads
        size = config.head_size(heads)
        no_positions = nowhere(self.reader, config.hidden_size)
        return Stack(None, no_positions, (), heads, heads, size, size**-0.5)

    def _plane_subsampler(self, front: ConformerConfig) -> PlaneSubsampler:
        name, channels = "encoder.subsample", front.num_channels
        size = self.config.hidden_size
        return PlaneSubsampler(
            first=self._plane(f"{name}.conv1", channels, 1),
            second=self._plane(f"{name}.conv2", channels, channels),
            out=self._linear(f"{name}.out", size, channels * front.num_bands),
            right_padding=front.right_padding,
        )

    def _plane(self, name: str, rows: int, columns: int) -> Linear:
        """Return a convolution over time and frequency, with ReLU."""
        weight = self.reader.matrix([f"{name}.weight"], rows, columns, KERNEL, KERNEL)
        return self.reader.linear(flattened(weight), self._take(f"{name}.bias", rows), "relu")

    def _conformer_layer(
        self, name: str, front: ConformerConfig, kernels: Kernels
    ) -> ConformerLayer:
        return ConformerLayer(
            before=self._feed_forward(f"{name}.ffn1"),
            attention=self._attention(f"{name}.self_attn", kernels),
            convolution=self._convolution(f"{name}.conv", front.kernel_size, kernels),
            after=self._feed_forward(f"{name}.ffn2"),
            norm=self._norm(f"{name}.layer_norm"),
        )

    def _feed_forward(self, name: str) -> FeedForward:
        d, inner_size = self.config.hidden_size, self.config.encoder_inner_size
        return FeedForward(
            norm=self._norm(f"{name}.layer_norm"),
            inner=self._linear(f"{name}.fc1", inner_size, d, "swish"),
            out=self._linear(f"{name}.fc2", d, inner_size),
        )

    def _attention(self, name: str, kernels: Kernels) -> RelativeAttention:
        d, heads = self.config.hidden_size, self.config.num_encoder_heads
        size = self.config.head_size(heads)
        return RelativeAttention(
            query_norm=self._norm(f"{name}.q_norm"),
            key_norm=self._norm(f"{name}.k_norm"),
            value_norm=self._norm(f"{name}.v_norm"),
            query=self._matrix(f"{name}.q_proj", d, d),
            key=self._matrix(f"{name}.k_proj", d, d),
            value=self._matrix(f"{name}.v_proj", d, d),
            position=self._matrix(f"{name}.pos_proj", d, d),
            out=self._matrix(f"{name}.out_proj", d, d),
            content_bias=self.reader.vector(f"{name}.pos_bias_u", heads, size),
            position_bias=self.reader.vector(f"{name}.pos_bias_v", heads, size),
            kernels=kernels,
        )

    def _convolution(self, name: str, kernel_size: int, kernels: Kernels) -> ConvolutionModule:
        d = self.config.hidden_size
        depthwise = self.reader.vector(f"{name}.depthwise.weight", 2 * d, kernel_size)
        return ConvolutionModule(
            norm=self._norm(f"{name}.layer_norm"),
            gate=self._matrix(f"{name}.pointwise1", 4 * d, d),
            depthwise=depthwise.t().contiguous(),
            inner_norm=self._norm(f"{name}.inner_norm", 2 * d),
            out=self._matrix(f"{name}.pointwise2", d, 2 * d),
            kernels=kernels,
        )

    def _linear(self, name: str, rows: int, columns: int, activation: str | None = None) -> Linear:
        """Return a linear layer with a bias."""
        weight = self.reader.matrix([f"{name}.weight"], rows, columns)
        return self.reader.linear(weight, self._take(f"{name}.bias", rows), activation)

    def _matrix(self, name: str, rows: int, columns: int) -> Linear:
        """Return a linear layer without a bias."""
        return self.reader.linear(self.reader.matrix([f"{name}.weight"], rows, columns), None)

    def _norm(self, name: str, size: int | None = None) -> Norm:
        size = size or self.config.hidden_size
        weight, bias = (self.reader.vector(f"{name}.{part}", size) for part in ("weight", "bias"))
        return Norm(weight, bias, is_packed=self.reader.is_packed)


def flattened(weight: Tensor | Quantised) -> Tensor | Quantised:
    """Flatten windows of a convolution [rows, columns, k, k]: [rows, columns * k * k]."""
    if isinstance(weight, Quantised):
        return Quantised(weight.q.flatten(1), weight.scale)
    return weight.flatten(1)
