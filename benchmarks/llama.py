"""llama.cpp (package llama-cpp-python) beside pybeam: a network of Qwen3-0.6B's shape, one request at a time.

Weights are random, on which the time does not depend. llama.cpp quantises them itself, as its program
llama-quantize does. Q8_0 and int8 have eight bits; Q4_0 and int4 have four in the layers, both in groups of
32, and Q4_0 has Q6_K where int4 has int8: in the output layer, which is also the table of tokens. llama.cpp
has no beam search. Beside a beam of 5 it decodes five sequences greedily, which are as many rows a step.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

import pybeam
from benchmarks.causal import Causal, random_ids
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn

# the type of llama.cpp's file -> its number there, and the dtype here
TYPES = {"Q8_0": (7, "int8"), "Q4_0": (2, "int4")}
# ids of the prompt, new tokens, rows of a step
CASES = {"greedy": (8, 64, 1), "k = 5": (8, 64, 5), "prompt": (512, 1, 1)}


def llama(setup: Setup) -> Iterator[list[Task]]:
    """Greedy search, a beam of 5 and a long prompt beside llama.cpp, in eight bits and in four."""
    networks = Causal(setup)
    exact = cache(lambda: write_gguf(networks.directory, setup.folder / "F16.gguf"))
    theirs = cache(lambda name: loaded(exact(), setup.folder / f"{name}.gguf", TYPES[name][0]))
    ours = cache(networks.loaded)
    for case, (length, num_new, width) in CASES.items():
        [prompt] = random_ids([length // 8 if setup.is_tiny else length], networks.vocab_size)
        num_new = min(num_new, 4) if setup.is_tiny else num_new
        given = prompt, num_new, width
        for name, (_, dtype) in TYPES.items():
            makers = {
                f"llama.cpp {name}": lambda name=name, given=given: LlamaCpp(theirs(name), *given),
                f"pybeam {dtype}": lambda dtype=dtype, given=given: Ours(ours(dtype), *given),
            }
            yield in_turn(f"{case}, {dtype}", makers, repeats=5)


class Ours:
    """Greedy search or a beam of pybeam, as long as asked for."""

    def __init__(self, model: pybeam.Model, prompt: list[int], num_new: int, width: int) -> None:
        search = pybeam.fixed_beam(width, max_length=num_new, ended_only=False)
        self._decoder, self._prompt = pybeam.Decoder(model, search), prompt
        self._num_tokens = max(num_new, len(prompt))

    def __call__(self) -> list[list[int]]:
        [result] = self._decoder.decode([self._prompt])
        return [result.hypotheses[0].tokens]

    def columns(self, timed: Timed) -> dict:
        return _speed(timed, self._num_tokens)


class LlamaCpp:
    """As many greedy sequences behind one prompt as there are rows."""

    def __init__(self, model: int, prompt: list[int], num_new: int, rows: int) -> None:
        import llama_cpp

        self._prompt, self._num_new, self._rows = prompt, num_new, rows
        self._num_tokens = max(num_new, len(prompt))
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = len(prompt) + rows * num_new
        params.n_seq_max, params.kv_unified = rows, True
        params.n_threads = params.n_threads_batch = torch.get_num_threads()
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._num_logits = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(rows, 0, 1)
        self._batch.n_tokens = rows
        for row in range(rows):
            self._batch.n_seq_id[row], self._batch.logits[row] = 1, True
            self._batch.seq_id[row][0] = row
        self._call = llama_cpp
        self()

    def __call__(self) -> list[list[int]]:
        memory = self._call.llama_get_memory(self._context)
        self._call.llama_memory_clear(memory, False)
        tokens = (ctypes.c_int32 * len(self._prompt))(*self._prompt)
        self._decode(self._call.llama_batch_get_one(tokens, len(tokens)))
        for row in range(1, self._rows):
            self._call.llama_memory_seq_cp(memory, 0, row, -1, -1)
        out = [self._best(-1)]
        last = out * self._rows
        for place in range(len(tokens), len(tokens) + self._num_new - 1):
            for row, token in enumerate(last):
                self._batch.token[row], self._batch.pos[row] = token, place
            self._decode(self._batch)
            last = [self._best(row) for row in range(self._rows)]
            out.append(last[0])
        return [out]

    def _decode(self, batch: ctypes.Structure) -> None:
        if code := self._call.llama_decode(self._context, batch):
            raise RuntimeError(f"llama.cpp cannot decode a batch: {code}")

    def _best(self, row: int) -> int:
        logits = self._call.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._num_logits,)).argmax())

    def columns(self, timed: Timed) -> dict:
        return _speed(timed, self._num_tokens)


def _speed(timed: Timed, num: int) -> dict:
    """Return tokens a second: the new ones of a hypothesis, or those of the prompt if they are more."""
    return {"tokens/s": num / timed.seconds, "tokens/cpu_s": num / timed.cpu_seconds}


def write_gguf(directory: Path, target: Path) -> Path:
    """Write a Qwen3 for llama.cpp: matrices in float16, other weights in float32, and no vocabulary."""
    import gguf

    config = json.loads((directory / "config.json").read_text("utf-8"))
    writer = gguf.GGUFWriter(target, "qwen3")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    with safe_open(directory / "model.safetensors", "pt") as weights:
        for name in weights.keys():
            weight = weights.get_tensor(name)
            own = names.get_name(name, (".weight",))
            writer.add_tensor(own, (weight.half() if weight.ndim == 2 else weight).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def loaded(exact: Path, target: Path, number: int) -> int:
    """Quantise a file as this type, and load it."""
    import llama_cpp

    llama_cpp.llama_log_set(quiet, None)
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = number, torch.get_num_threads()
    paths = os.fsencode(exact), os.fsencode(target)
    if llama_cpp.llama_model_quantize(*paths, ctypes.byref(options)):
        raise RuntimeError(f"llama.cpp cannot write {target}")
    return llama_cpp.llama_model_load_from_file(paths[1], llama_cpp.llama_model_default_params())


# kept, since llama.cpp calls it from then on
quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
