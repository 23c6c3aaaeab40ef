"""`pybeam translate`: lines in, translations out."""

from __future__ import annotations

import click

from pybeam.cli.job import Job
from pybeam.cli.search_options import (
    PARALLEL,
    ScheduleOptions,
    SearchOptions,
    TokenIds,
    build_algorithm,
    build_schedule,
    take,
)
from pybeam.cli.sections import SectionCommand, option

files = option("Files")
search = option("Search")
pruning = option("Pruning (with --algorithm variable)")
processors = option("Processors, which change what the model says")
speed = option("Speed and memory; the results do not depend on these")
form = option("Form of the output")


@click.command(cls=SectionCommand, short_help="Translate lines of text.")
@files(
    "--model",
    "model_dirs",
    required=True,
    multiple=True,
    metavar="DIR",
    type=click.Path(),
    help="Folder with config.json, model.safetensors and the tokenizer's files. Given several "
    "times: an ensemble, the mean of the models' probabilities; the first one's tokenizer is used.",
)
@files(
    "--input",
    "input_path",
    metavar="FILE",
    default="-",
    type=click.Path(allow_dash=True),
    help="UTF-8 text, one source per line; `-` or nothing: stdin.",
)
@files(
    "--output",
    "output_path",
    metavar="FILE",
    default="-",
    type=click.Path(allow_dash=True),
    help="Where to write; `-` or nothing: stdout. Written line by line, so that what is "
    "finished is never lost.",
)
@files(
    "--source-lang",
    metavar="CODE",
    help="Language of the input as the model names it, for multilingual models (NLLB: spa_Latn).",
)
@files(
    "--target-lang",
    metavar="CODE",
    help="Language of the output, likewise (NLLB: eng_Latn).",
)
@search(
    "--algorithm",
    type=click.Choice(["greedy", "fixed", "variable", "optimal", *PARALLEL]),
    default="fixed",
    show_default=True,
    help="greedy: fastest, one hypothesis. fixed: beam search as other toolkits do it. "
    "variable: a wide beam that pruning keeps narrow where the model is sure; the choice for "
    "--width above 5. optimal: like fixed, but stops a line when nothing can beat what has finished. "
    "jacobi and its kin: greedy's output, many tokens guessed and checked in one step.",
)
@search(
    "--width",
    type=click.IntRange(1, 128),
    show_default="5",
    help="Hypotheses kept alive per source. 4 to 10 is usual with fixed, up to 50 with variable.",
)
@search(
    "--block",
    type=click.IntRange(1, 128),
    metavar="TOKENS",
    show_default="3",
    help="Tokens that gauss-seidel-jacobi and hybrid-jacobi decode together.",
)
@search(
    "--horizon",
    type=click.IntRange(0),
    metavar="TOKENS",
    show_default="--max-length",
    help="Tokens after which hybrid-jacobi goes on one by one.",
)
@search(
    "--n-best",
    type=click.IntRange(1, 128),
    default=1,
    show_default=True,
    help="Hypotheses to write per source, at most --width.",
)
@search(
    "--min-length",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Tokens to produce before a hypothesis may end.",
)
@search(
    "--max-length",
    type=click.IntRange(1),
    show_default="256, or the model's limit",
    help="Tokens after which a hypothesis is cut; the end token counts.",
)
@search(
    "--scoring",
    default="raw",
    show_default=True,
    metavar="RULE",
    help="What ranks finished hypotheses. raw: sum of log-probabilities. power:A: divided by "
    "length^A (other toolkits' length penalty; power:1 is a good start). gnmt:A: divided by "
    "((5 + length) / 6)^A. reward:R or reward:R:RATIO: plus R per token, up to RATIO times the "
    "source's length.",
)
@pruning(
    "--threshold",
    type=float,
    metavar="NATS",
    help="Drop a hypothesis that scores this much below the best; 1.5 to 2.5 is usual.",
)
@pruning(
    "--max-candidates",
    type=click.IntRange(1),
    metavar="M",
    help="At most M continuations of the same hypothesis; 3 to 5 is usual.",
)
@pruning(
    "--relative-threshold",
    type=float,
    metavar="RATIO",
    help="Drop a hypothesis less than RATIO times as probable as the best (0 to 1).",
)
@pruning(
    "--local-threshold",
    type=float,
    metavar="RATIO",
    help="Drop it if its last token is less than RATIO times as probable as the best last "
    "token (0 to 1).",
)
@processors(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    metavar="T",
    help="Divide logits by T: above 1 smoother, below 1 sharper.",
)
@processors(
    "--eos-penalty",
    type=click.FloatRange(0, min_open=True),
    metavar="P",
    help="Multiply the log-probability of the end token by P: below 1 hypotheses end earlier.",
)
@processors(
    "--repetition-penalty",
    type=click.FloatRange(0, min_open=True),
    metavar="P",
    help="Make tokens that a hypothesis has already less probable, with P above 1; 1.1 to 1.5 is "
    "usual.",
)
@processors(
    "--no-repeat-ngram",
    type=click.IntRange(1),
    metavar="N",
    help="No N tokens in a row twice in a hypothesis; 3 or 4 is usual.",
)
@processors(
    "--suppress",
    type=TokenIds(),
    multiple=True,
    metavar="ID[,ID...]",
    help="Never write this token, or these tokens in a row; may be given many times.",
)
@speed(
    "--schedule",
    type=click.Choice(["batch", "streaming", "fifo"]),
    default="fifo",
    show_default=True,
    help="fifo: a finished line's place is taken at once. batch: the next lines wait for all of "
    "these. streaming: refill when few are left and move the shortest ones first.",
)
@speed(
    "--batch-size",
    type=click.IntRange(1),
    metavar="LINES",
    show_default="64",
    help="Lines decoded at once.",
)
@speed(
    "--batch-tokens",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Source tokens decoded at once, in place of --batch-size.",
)
@speed(
    "--epsilon",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    show_default="1/6 for streaming, 1 for fifo",
    help="Refill when at most this share of the places is taken.",
)
@speed(
    "--row-budget",
    type=click.IntRange(1),
    metavar="ROWS",
    help="Hypotheses sent through the model in one step, at least --width. Bounds the work of "
    "a step whatever pruning does.",
)
@speed(
    "--max-wait",
    type=click.IntRange(1),
    metavar="STEPS",
    help="Move a line again after it has paused for so many steps.",
)
@speed("--threads", type=click.IntRange(1), show_default="torch's choice", help="CPU threads.")
@speed("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@speed(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="Of the weights; auto: float32 on a CPU, the file's on a GPU. On a CPU scores are float32 "
    "even so, and bfloat16 is fast with AVX512_BF16 (see `pybeam info`).",
)
@speed(
    "--backend",
    type=click.Choice(["auto", "native", "reference"]),
    default="auto",
    show_default=True,
    help="Which kernels; auto: the fastest installed (see `pybeam info`).",
)
@form(
    "--scores",
    "has_scores",
    is_flag=True,
    help="Write `score <tab> translation`. --n-best and --json contain scores anyhow.",
)
@form(
    "--json",
    "is_json",
    is_flag=True,
    help="Write one JSON object per line: index (from 0), hypotheses (text, score, final_score, "
    "ended), stop_reason, steps, expansions.",
)
@form("--no-unk", is_flag=True, help="Never write the token for unknown words.")
@form("--quiet", is_flag=True, help="No progress bar and no summary; errors and warnings remain.")
def translate(**values) -> int:
    """Translate lines of text with a model that was loaded from DIR.

    Translations come out in the order of the input, each as soon as it and all before it are
    known. Empty lines stay empty. With --n-best 2 or more, each hypothesis is a line
    `line ||| translation ||| score`, lines counted from 0.

    \b
    Examples:
      pybeam translate --model examples/models/bible-es-en < in.es > out.en
      pybeam translate --model DIR --input in.es --output out.en --width 10 --scoring power:1
      pybeam translate --model DIR --algorithm variable --width 50 --threshold 1.5 \\
          --max-candidates 5 < in.es
      echo "Y dijo Dios: Sea la luz." | pybeam translate --model DIR --n-best 3 --json

    \b
    Exit codes:
      0    every line was translated
      1    a line failed (the others are there), the input is not UTF-8, or a file or a language
           is missing
      2    options that are wrong or contradict each other
      130  Ctrl-C; what was finished has been written
      141  the reader of the output went away
    """
    algorithm = build_algorithm(take(SearchOptions, values))
    schedule = build_schedule(take(ScheduleOptions, values))
    return Job(algorithm, schedule, **values).run()
