"""Folders of models as they are published: each rewrites what `save_pretrained` has written.

A layout has a name, which docs/reference/file-formats.md lists, the kind of the tiny model, and a function
that rewrites the folder. Those in `REFUSED` have what the error must say in place of a kind. `TOKENIZERS` and
`NO_TOKENIZERS` make folders with the files of a tokenizer.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import sentencepiece
import torch
import transformers
from safetensors.torch import load_file, save_file

from support.ctranslate2_folders import convert
from support.paths import MODEL

WEIGHTS = "model.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1200000000\n"
# fields of configs from the years before `generation_config.json`
OLD_FIELDS = dict(
    _num_labels=3,
    activation_dropout=0.1,
    add_bias_logits=False,
    add_final_layer_norm=False,
    classif_dropout=0.1,
    extra_pos_embeddings=2,
    gradient_checkpointing=False,
    id2label={"0": "LABEL_0"},
    normalize_before=False,
    normalize_embedding=True,
    num_hidden_layers=2,
    output_past=True,
    static_position_embeddings=False,
    task_specific_params={
        "summarization": {"length_penalty": 2.0, "max_length": 128, "num_beams": 4}
    },
    torch_dtype="float32",
    transformers_version="4.2.1",
)

Rewrite = Callable[[Path], None]


def change(path: Path, **fields) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def as_saved(directory: Path) -> None:
    pass


def old_fields(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    for name in ("dtype", "is_encoder_decoder"):
        config.pop(name, None)
    (directory / "config.json").write_text(
        json.dumps(config | OLD_FIELDS | {"is_encoder_decoder": True})
    )


def settings_in_config(directory: Path) -> None:
    path = directory / "generation_config.json"
    settings = json.loads(path.read_text())
    path.unlink()
    change(directory / "config.json", **settings)


def lists_of_eos(directory: Path) -> None:
    settings = json.loads((directory / "generation_config.json").read_text())
    change(directory / "generation_config.json", eos_token_id=[settings["eos_token_id"]])


def rewritten(change_tensors: Callable[[dict[str, torch.Tensor]], None]) -> Rewrite:
    def rewrite(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS)
        change_tensors(tensors)
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
            directory / WEIGHTS,
        )

    return rewrite


def all_tables(tensors: dict[str, torch.Tensor]) -> None:
    table = tensors["model.shared.weight"]
    for name in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = table


def output_table_alone(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = tensors.pop("model.shared.weight")


def of_the_base_model(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("model.")]:
        tensors[name.removeprefix("model.")] = tensors.pop(name)


def with_versions(tensors: dict[str, torch.Tensor]) -> None:
    for stack in ("encoder", "decoder"):
        tensors[f"model.{stack}.version"] = torch.tensor([3.0])
        tensors[f"model.{stack}.embed_positions._float_tensor"] = torch.zeros(1)


def shards(directory: Path) -> None:
    tensors = load_file(directory / WEIGHTS)
    (directory / WEIGHTS).unlink()
    names = sorted(tensors)
    weight_map = {}
    for i in range(3):
        file = f"model-{i + 1:05}-of-00003.safetensors"
        save_file({name: tensors[name] for name in names[i::3]}, directory / file)
        weight_map |= dict.fromkeys(names[i::3], file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def beside_others(directory: Path) -> None:
    for name in (
        "pytorch_model.bin",
        "tf_model.h5",
        "flax_model.msgpack",
        "rust_model.ot",
        "README.md",
    ):
        (directory / name).write_bytes(b"no model of pybeam")
    (directory / "onnx").mkdir()
    (directory / "onnx" / "decoder_model.onnx").write_bytes(b"")


def linked(directory: Path) -> None:
    """As in the cache of the hub: every file is a link to a blob."""
    blobs = directory / "blobs"
    blobs.mkdir()
    for path in [path for path in directory.iterdir() if path.is_file()]:
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)


def of_ctranslate2(directory: Path) -> None:
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory)
    for path in directory.iterdir():
        path.unlink()
    convert(network, directory)


READ: dict[str, tuple[str, Rewrite]] = {
    "as `save_pretrained` writes it": ("m2m_100", as_saved),
    "fields of old configs (`normalize_before`, `static_position_embeddings`, `task_specific_params`, …)": (
        "bart",
        old_fields,
    ),
    "no `generation_config.json`, its fields in `config.json`": ("marian", settings_in_config),
    "`eos_token_id` is a list": ("mbart", lists_of_eos),
    "shards and `model.safetensors.index.json`": ("t5", shards),
    "all copies of tied tables": ("bart", rewritten(all_tables)),
    "the output table alone of tied ones": ("m2m_100", rewritten(output_table_alone)),
    "tensor names without `model.`": ("marian", rewritten(of_the_base_model)),
    "version marks among the weights": ("m2m_100", rewritten(with_versions)),
    "pickles, weights of other frameworks and ONNX files beside `model.safetensors`": (
        "mbart",
        beside_others,
    ),
    "files that are links, as in the cache of the hub": ("m2m_100", linked),
    "CTranslate2": ("m2m_100-even", of_ctranslate2),
}


def without_weights(*names: str) -> Rewrite:
    def rewrite(directory: Path) -> None:
        (directory / WEIGHTS).unlink()
        for name in names:
            (directory / name).write_bytes(b"x" * 2000)

    return rewrite


def holding(*names: str) -> Rewrite:
    def rewrite(directory: Path) -> None:
        for path in directory.iterdir():
            path.unlink()
        for name in names:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text("{}")

    return rewrite


def pointer(name: str) -> Rewrite:
    return lambda directory: (directory / name).write_text(POINTER)


def lost_shard(directory: Path) -> None:
    shards(directory)
    (directory / "model-00002-of-00003.safetensors").unlink()


CONVERTED = "must hold config.json and model.safetensors, but holds "
REFUSED: dict[str, tuple[str, Rewrite]] = {
    "`pytorch_model.bin` alone": (
        "has only pytorch_model.bin, .* can run code; `pybeam.load` and `pybeam.hub.fetch` convert",
        without_weights("pytorch_model.bin"),
    ),
    "shards of `pytorch_model.bin`": (
        "has only pytorch_model-00001-of-00002.bin, .* convert pytorch_model.bin once",
        without_weights("pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"),
    ),
    "a clone without the files of git-lfs": (
        "model.safetensors must hold the file itself, but is a pointer of git-lfs; .*`git lfs pull`",
        pointer(WEIGHTS),
    ),
    "a missing shard": ("model-00002-of-00003.safetensors is missing in .*download", lost_shard),
    "a LoRA or another adapter": (
        f"{CONVERTED}adapter_config.json, a LoRA .* merge them once: .*merge_and_unload",
        holding("adapter_config.json", "adapter_model.safetensors"),
    ),
    "Marian's weights without `decoder.yml`": (
        f"{CONVERTED}.*npz without decoder.yml, a model of Marian; write decoder.yml",
        holding("model.npz", "vocab.yml"),
    ),
    "fairseq": (
        f"{CONVERTED}.*fairseq.*; convert it",
        holding("model.pt", "dict.en.txt", "dict.de.txt"),
    ),
    "llama.cpp": (f"{CONVERTED}.*gguf, weights of llama.cpp; load", holding("model-q4.gguf")),
    "the root of the hub's cache": (
        f"{CONVERTED}snapshots, .*; give the folder below snapshots",
        holding("refs/main", "snapshots/0a1b/config.json"),
    ),
}


PIECES = MODEL / "sentencepiece.model"


def marian_tokenizer(directory: Path) -> None:
    for name in ("source.spm", "target.spm"):
        shutil.copy(PIECES, directory / name)
    model = sentencepiece.SentencePieceProcessor(model_file=str(PIECES))
    # ids of an order of their own
    pieces = sorted(model.id_to_piece(list(range(model.get_piece_size()))))
    (directory / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    eos_id = pieces.index("</s>")
    config = {"model_type": "marian", "eos_token_id": eos_id}
    (directory / "config.json").write_text(json.dumps(config))


def json_alone(directory: Path) -> None:
    ids = {piece: i for i, piece in enumerate("<s> <pad> </s> <unk> J e s Ġ <mask>".split())}
    transformers.BartTokenizer(vocab=ids, merges=[]).save_pretrained(directory)
    for path in directory.iterdir():
        if path.name != "tokenizer.json":
            path.unlink()
    (directory / "config.json").write_text(json.dumps({"model_type": "bart", "eos_token_id": 2}))


def pieces_alone(directory: Path) -> None:
    shutil.copy(PIECES, directory / "sentencepiece.bpe.model")
    config = {"model_type": "mbart", "eos_token_id": 2, "decoder_start_token_id": 2}
    (directory / "config.json").write_text(json.dumps(config))
    own = {"tokenizer_class": "MBart50Tokenizer", "src_lang": "es_XX", "tgt_lang": "en_XX"}
    (directory / "tokenizer_config.json").write_text(json.dumps(own))


TOKENIZERS: dict[str, Rewrite] = {
    "tokenizer: `source.spm`, `target.spm` and `vocab.json`": marian_tokenizer,
    "tokenizer: `tokenizer.json` alone": json_alone,
}
NO_TOKENIZERS: dict[str, tuple[str, Rewrite]] = {
    "tokenizer: `sentencepiece.bpe.model` alone": (
        r"no tokenizer in .*save one with transformers: `AutoTokenizer.from_pretrained\(path\)\.save_",
        pieces_alone,
    ),
}
