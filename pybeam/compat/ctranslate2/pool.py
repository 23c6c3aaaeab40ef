"""The common part of `Translator` and `Generator`: a model, and threads that decode batches with it."""

from __future__ import annotations

import copy
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from pybeam.backends.packing import INTEGERS
from pybeam.compat.ctranslate2.computing import ComputeType, Computing
from pybeam.compat.ctranslate2.results import AsyncResult
from pybeam.compat.ctranslate2.vocabulary import Vocabulary
from pybeam.decoder import Decoder
from pybeam.models.base import Alignment, Model
from pybeam.search.algorithms import Algorithm

T = TypeVar("T")
NAMES = dict.fromkeys((*INTEGERS, torch.float8_e4m3fn), "int8_float32")
# decoders of as many searches are kept, with the memory of their last batches
KEPT_DECODERS = 8


class Pool:
    """A model of a folder, and threads that decode with it; the base of `Translator` and `Generator`."""

    has_encoder: ClassVar[bool]

    # the parameters are those of the system that this stands in for
    def __init__(
        self,
        model_path: str,
        device: str = "cpu",
        *,
        device_index: int | Sequence[int] = 0,
        compute_type: ComputeType = "default",
        inter_threads: int = 1,
        intra_threads: int = 0,
        max_queued_batches: int = 0,
        flash_attention: bool = False,
        tensor_parallel: bool = False,
        files: Mapping[str, Any] | None = None,
    ) -> None:
        if tensor_parallel:
            raise NotImplementedError("`tensor_parallel` is not there; a model is on one device")
        self._computing = Computing.of(device, device_index, compute_type)
        if intra_threads:
            torch.set_num_threads(intra_threads)
        self._directory = Path(model_path)
        if files is not None:
            self._directory = _written(files)
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self.device, self.device_index = self._computing.device, [self._computing.index]
        self.num_replicas = inter_threads
        self._lock, self._num_active = threading.Lock(), 0
        self._threads = ThreadPoolExecutor(inter_threads, thread_name_prefix=type(self).__name__)
        self._decoder = lru_cache(KEPT_DECODERS)(self._new_decoder)
        self._model: Model | None = None
        self.load_model()

    def load_model(self, keep_cache: bool = False) -> None:
        """Load the model where it has been unloaded."""
        if self._model is not None:
            return
        if not self._directory.is_dir():
            raise RuntimeError(f"Unable to open file 'model.bin' in model '{self._directory}'")
        model = self._computing.load(self._directory)
        if hasattr(model, "encoder") != self.has_encoder:
            kind = (
                "a sequence generator" if not self.has_encoder else "a sequence-to-sequence model"
            )
            raise RuntimeError(f"This model cannot be used as {kind}: {model!r}")
        # CTranslate2 does what a caller asks for; its converter takes over what is never generated
        others = [name for name in model.settings.names if name != "bad_words_ids"]
        self._model = model.without(*others)
        self._vocabulary = Vocabulary.load(self._directory, self._model)

    def unload_model(self, to_cpu: bool = False) -> None:
        """Forget the model, unless batches are being decoded; on a CPU `to_cpu` leaves it where it is."""
        if self._num_active or (to_cpu and self.device == "cpu"):
            return
        self._model = None
        self._decoder.cache_clear()

    @property
    def model_is_loaded(self) -> bool:
        """Whether the model is there."""
        return self._model is not None

    @property
    def compute_type(self) -> str:
        """The type of computation."""
        dtype = self._ready.weight_dtype
        return NAMES.get(dtype, str(dtype).removeprefix("torch."))

    @property
    def tensor_parallel(self) -> bool:
        """Always False."""
        return False

    @property
    def num_active_batches(self) -> int:
        """How many batches wait or are being decoded."""
        return self._num_active

    @property
    def num_queued_batches(self) -> int:
        """How many batches wait."""
        return max(0, self._num_active - self.num_replicas)

    @property
    def _ready(self) -> Any:
        if self._model is None:
            raise RuntimeError("The model for this translator was unloaded")
        return self._model

    def _new_decoder(
        self, algorithm: Algorithm, eos_ids: tuple[int, ...], log_probs: bool, attention: bool
    ) -> Decoder:
        model = self._ready
        if eos_ids:
            model = copy.copy(model)
            model.eos_id, *others = eos_ids
            model.other_eos_ids = tuple(others)
        alignment = Alignment(heads=[0]) if attention else False
        return Decoder(model, algorithm, log_probs=log_probs, alignment=alignment)

    def _end_ids(self, end_token: Any) -> tuple[int, ...]:
        """Return the tokens that end, in place of the model's; nothing: those of the model."""
        if end_token is None or end_token == "":
            return ()
        given = [end_token] if isinstance(end_token, str) else list(end_token)
        ids = tuple(one for one in given if isinstance(one, int))
        return ids or tuple(self._vocabulary.target(given, allows_unknown=False))

    def _run(
        self,
        run: Callable[[list[int]], list[T]],
        lengths: Sequence[int],
        max_batch_size: int,
        batch_type: str,
        asynchronous: bool,
    ) -> list[T] | list[AsyncResult[T]]:
        """Run batches of examples, given by their numbers, in the threads; results are in their order."""
        _ = self._ready
        found: list[Any] = [None] * len(lengths)
        for batch in batches(lengths, max_batch_size, batch_type):
            with self._lock:
                self._num_active += 1
            future: Future[list[T]] = self._threads.submit(self._counted, run, batch)
            for place, i in enumerate(batch):
                found[i] = AsyncResult(future, place)
        return found if asynchronous else [one.result() for one in found]

    def _counted(self, run: Callable[[list[int]], list[T]], batch: list[int]) -> list[T]:
        try:
            return run(batch)
        finally:
            with self._lock:
                self._num_active -= 1


def batches(lengths: Sequence[int], size: int, batch_type: str) -> Iterator[list[int]]:
    """Yield the numbers of examples in batches of `size` examples or tokens, the longest first; 0: all."""
    if batch_type not in ("examples", "tokens"):
        raise ValueError(f"Invalid batch type: {batch_type}")
    order = range(len(lengths))
    batch: list[int] = []
    for i in sorted(order, key=lambda i: -lengths[i]) if size else order:
        if size and batch:
            weight = max(1, lengths[batch[0]]) if batch_type == "tokens" else 1
            if (len(batch) + 1) * weight > size:
                yield batch
                batch = []
        batch.append(i)
    if batch:
        yield batch


def _written(files: Mapping[str, Any]) -> Path:
    """Write files that were given as bytes, or that can be read, into a new folder."""
    if not isinstance(files, Mapping):
        raise TypeError(f"`files` must map names to contents, but is {files!r}")
    folder = Path(tempfile.mkdtemp(prefix="pybeam-"))
    for name, content in files.items():
        if Path(name).name != name:
            raise ValueError(f"`files` must have plain names, but has {name!r}")
        content = content.read() if hasattr(content, "read") else content
        if not isinstance(content, bytes):
            raise TypeError(f"`files` must hold bytes, but holds {content!r} as {name!r}")
        (folder / name).write_bytes(content)
    return folder
