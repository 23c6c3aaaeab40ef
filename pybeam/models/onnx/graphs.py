"""Run graphs with ONNX Runtime on torch tensors, without copies, and make the index tables that they take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pybeam.models.base import InProcess, Model
from pybeam.models.onnx import DECODER, ENCODER
from pybeam.models.onnx.external import check_external
from pybeam.models.rnn import RnnConfig
from pybeam.models.transformer.config import TransformerConfig


def missing_package(error: ImportError) -> ImportError:
    """An error that says which packages to install."""
    return ImportError(
        f"ONNX needs packages that are not installed ({error}); run `pip install 'pybeam-search[onnx]'`, "
        "or `pip install onnx onnx-ir onnxruntime`"
    )


class Graph:
    """One graph, with as many threads as torch had when it was loaded."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        check_external(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # threads must not spin between two steps, because torch needs the cores
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self._path = path
        self._pid, self._num_threads = os.getpid(), options.intra_op_num_threads
        self._names = [one.name for one in self._session.get_inputs()]

    def check(self, num_inputs: int, outputs: dict[str, tuple[int | None, ...]]) -> None:
        """Raise ValueError unless the graph has so many inputs, and outputs of these sizes; None: any."""
        found = {one.name: one.shape for one in self._session.get_outputs()}
        is_other = len(self._names) != num_inputs or not outputs.keys() <= found.keys()
        for name, sizes in outputs.items():
            shape = found.get(name, ())
            is_other |= len(shape) != len(sizes) or any(
                size is not None and size != own for size, own in zip(sizes, shape, strict=False)
            )
        if is_other:
            raise ValueError(
                f"{self._path} must be a graph of {num_inputs} inputs with outputs {outputs}, but has "
                f"{len(self._names)} inputs and outputs {found}; does config.json belong to it?"
            )

    def __call__(
        self, inputs: Sequence[Tensor] | dict[str, Tensor], *outputs: str, **memory: Tensor
    ) -> list[Tensor]:
        """Run the graph.

        Args:
            inputs: tensors by name, or in the graph's order.
            outputs: names of the outputs to return.
            memory: tensors by name that other outputs are written to.
        """
        if self._num_threads > 1 and self._pid != os.getpid():
            raise RuntimeError(
                f"{self._path} was loaded with {self._num_threads} threads in process {self._pid}, which a "
                "copy that os.fork made does not have; load the model in this process"
            )
        if not isinstance(inputs, dict):
            inputs = dict(zip(self._names, inputs, strict=True))
        binding = self._session.io_binding()
        held = {name: tensor.contiguous() for name, tensor in inputs.items()}
        for name, tensor in held.items():
            binding.bind_cpu_input(name, tensor.numpy())
        for name in outputs:
            binding.bind_output(name)
        for name, tensor in memory.items():
            binding.bind_output(name, "cpu", 0, np.float32, tensor.shape, tensor.data_ptr())
        try:
            self._session.run_with_iobinding(binding)
        # exceptions of ONNX Runtime have no other base class
        except Exception as error:
            raise ValueError(f"{self._path} cannot be computed; is it damaged? {error}") from error
        found = binding.get_outputs()[: len(outputs)]
        return [torch.from_numpy(one.numpy()) for one in found]


def load_graphs(directory: Path) -> tuple[Graph, Graph]:
    """Load the graphs of encoder and decoder step.

    Raises:
        ImportError: onnxruntime is not installed.
        ValueError: a file cannot be read.
    """
    try:
        return Graph(directory / ENCODER), Graph(directory / DECODER)
    except ImportError as error:
        raise missing_package(error) from error
    except ValueError:
        raise
    # exceptions of ONNX Runtime have no other base class
    except Exception as error:
        raise ValueError(
            f"{ENCODER} and {DECODER} in {directory} must be graphs that pybeam has exported, but "
            f"cannot be read: {error}"
        ) from error


class ExportedModel(InProcess, Model):
    """A model that `pybeam.export.export_onnx` wrote, run by ONNX Runtime on the CPU.

    It has as many threads as torch had when it was loaded.
    """

    def __init__(self, config: TransformerConfig | RnnConfig) -> None:
        self.encoder, self.decoder = load_graphs(config.path.parent)
        # a copy of the process has none of their threads
        self.can_fork = torch.get_num_threads() == 1
        self.device = torch.device("cpu")
        self.dtype = self.weight_dtype = torch.float32
        self.vocab_size, self.start_id = config.vocab_size, config.start_id
        self.eos_id, self.other_eos_ids = config.eos_id, config.other_eos_ids


def padded(sources: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad sources to [B, E] or [B, E, F]. Returns them with their lengths [B]."""
    length = torch.tensor([len(source) for source in sources])
    return pad_sequence(list(sources), batch_first=True), length


def places(offset: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return the places of rows, grouped by offsets [A + 1], in a table; see `Places` in `pybeam.export`."""
    count = offset.diff().long()  # [A]
    source = torch.arange(count.numel()).repeat_interleave(count)  # [R]
    row = torch.arange(num_rows)
    width = max(1, int(count.max()))
    place = source * width + row - offset[source]
    table = row.new_zeros(count.numel() * width)
    table[place] = row
    return table.view(-1, width), place


def counted(size: int, count: Tensor) -> Tensor:
    """Return [A, size] bool, true in the first ``count[a]`` places of every line."""
    return torch.arange(size) < count[:, None]
