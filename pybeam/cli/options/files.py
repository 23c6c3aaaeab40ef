"""Options that name models, files and languages; commands choose from these."""

from __future__ import annotations

import click

from pybeam.cli.options.sections import option

MODEL = option(
    "--model",
    "model_dir",
    required=True,
    metavar="DIR",
    type=click.Path(),
    help="Folder with config.json, model.safetensors and the tokenizer's files.",
)
MODELS = option(
    "--model",
    "model_dirs",
    required=True,
    multiple=True,
    metavar="DIR",
    type=click.Path(),
    help="Folder with config.json, model.safetensors and the tokenizer's files. Given several "
    "times: an ensemble, the mean of the models' probabilities; the first one's tokenizer is used.",
)
INPUTS = option(
    "--input",
    "input_paths",
    multiple=True,
    metavar="FILE",
    default=["-"],
    show_default=False,
    type=click.Path(allow_dash=True),
    help="UTF-8 text, one source per line; `-` or nothing: stdin. With --output-dir it may be given several "
    "times, and be .gz, .zst, .jsonl or .parquet.",
)
OUTPUT = option(
    "--output",
    "output_path",
    metavar="FILE",
    default="-",
    show_default=False,
    type=click.Path(allow_dash=True),
    help="Where to write; `-` or nothing: stdout. Written line by line, so that what is finished is never "
    "lost.",
)
SOURCE_LANG = option(
    "--source-lang",
    metavar="CODE",
    help="Language of the input as the model names it, for multilingual models (NLLB: spa_Latn).",
)
TARGET_LANG = option(
    "--target-lang", metavar="CODE", help="Language of the output, likewise (NLLB: eng_Latn)."
)
QUIET = option(
    "--quiet", is_flag=True, help="No progress bar and no summary; errors and warnings remain."
)
