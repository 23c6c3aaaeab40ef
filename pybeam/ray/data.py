"""`translate`: a column of a Ray dataset, by a pool of actors that hold the model."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import ray.data

from pybeam.arguments import ArgumentError
from pybeam.decoder import Decoder
from pybeam.engine.schedule import Schedule
from pybeam.models.loading import load_model
from pybeam.ray.weights import SharedModel
from pybeam.request import Request, Result
from pybeam.search.algorithms import Algorithm
from pybeam.text.tokenizer import load_tokenizer

COLUMNS = {"translation": pa.string(), "score": pa.float64(), "error": pa.string()}
LISTS = {"translations": pa.list_(pa.string()), "scores": pa.list_(pa.float64())}
# enough that the end of a batch, when few sources are left, does not count
BATCH_SIZE = 1024


# the last one takes what Ray takes
def translate(
    dataset: ray.data.Dataset,
    *,
    model: str | os.PathLike[str] | SharedModel,
    algorithm: Algorithm,
    column: str = "text",
    schedule: Schedule | None = None,
    languages: tuple[str | None, str | None] = (None, None),
    keep_order: bool = False,
    **options: Any,
) -> ray.data.Dataset:
    """Translate a column of a Ray dataset; returns a lazy dataset with more columns.

    A pool of actors decodes, each of which loads the model once. An actor or a node that is lost costs time:
    Ray decodes its batches again elsewhere. Results do not depend on batches, actors or losses, to the last
    bit on CPUs of one kind.

    Columns beside those of the dataset:

    - ``translation``: string, the best output; "" for an empty source; null if the row failed.
    - ``score``: float64, its `Hypothesis.final_score`; null where there is no output.
    - ``error``: string, why the row failed; null if it did not. A row that fails changes no other.
    - ``translations``, ``scores``: lists of string and float64, all outputs from the best one on, if the
      algorithm finds several.

    Args:
        dataset: any `ray.data.Dataset`. Its blocks are what is decoded side by side: `Dataset.repartition`
            makes more of them.
        model: a directory that every node can read, or what `share_model` returns.
        algorithm: as for `Decoder`.
        column: holds the sources, of type string. Null, and what is no string, are errors of their rows.
        schedule: as for `Decoder`. Actors get batches of rows; the schedule bounds what an actor decodes at
            once, so ``Fifo(tokens=4096)`` is a budget of source tokens, whatever the rows are.
        languages: source and target language, as for `pybeam.load_tokenizer`, with a directory.
        keep_order: whether rows come out in their order; else as they finish. It sets `preserve_order` in
            `dataset.context`, which other datasets made of the same one share.
        options: for `ray.data.Dataset.map_batches`, which picks machines by them: `num_cpus` (default 1,
            also the threads of an actor), `num_gpus`, `compute` (default an
            `ActorPoolStrategy` from 1 actor to what the cluster holds), `batch_size` (rows, default 1024),
            `memory`, `resources`, ….

    Raises:
        TypeError, ValueError: `model` or `algorithm` is none, or the dataset has not `column`, or has one
            of the new columns. Where the dataset does not know its columns yet, running it raises.
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(
            f"`algorithm` must be one such as pybeam.fixed_beam(5), but is {algorithm!r}"
        )
    if not isinstance(model, (str, os.PathLike, SharedModel)):
        raise TypeError(
            f"`model` must be a directory or what pybeam.ray.share_model returns, but is {type(model)}"
        )
    if isinstance(model, SharedModel) and options.get("num_gpus"):
        raise ArgumentError("num_gpus", "must be 0 for a shared model; give `model` as a directory")
    if isinstance(model, SharedModel) and languages != (None, None):
        raise ArgumentError(
            "languages", f"must be given to share_model, but is {languages} beside a shared model"
        )
    known = dataset.columns(fetch_if_missing=False)
    if known is not None:
        _check_columns(known, column, algorithm)
    if keep_order:
        dataset.context.execution_options.preserve_order = True
    arguments = (model, algorithm, column, schedule, languages)
    defaults: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_cpus": 1}
    if "concurrency" not in options:
        defaults["compute"] = ray.data.ActorPoolStrategy(min_size=1)
    return dataset.map_batches(
        Translator,
        fn_constructor_args=arguments,
        batch_format="pyarrow",
        udf_modifying_row_count=False,
        **{**defaults, **options},
    )


class Translator:
    """The work of an actor: tables in, tables with more columns out. Arguments are those of `translate`."""

    def __init__(
        self,
        model: str | os.PathLike[str] | SharedModel,
        algorithm: Algorithm,
        column: str,
        schedule: Schedule | None,
        languages: tuple[str | None, str | None],
    ) -> None:
        if isinstance(model, SharedModel):
            loaded, self._tokenizer = model.open()
        else:
            loaded = load_model(model)
            self._tokenizer = load_tokenizer(
                model, source_lang=languages[0], target_lang=languages[1]
            )
        self._decoder = Decoder(loaded, algorithm, schedule)
        self._column, self._algorithm = column, algorithm

    def __call__(self, table: pa.Table) -> pa.Table:
        """Translate the rows of a table."""
        _check_columns(table.column_names, self._column, self._algorithm)
        answers = self._answers(table.column(self._column).to_pylist())
        for name, dtype in _columns(self._algorithm).items():
            values = [answer.get(name) for answer in answers]
            table = table.append_column(name, pa.array(values, dtype))
        return table

    def _answers(self, texts: list[Any]) -> list[dict[str, Any]]:
        """Return the values of the new columns, for each row."""
        answers: list[dict[str, Any]] = [{} for _ in texts]
        requests = []
        for i, text in enumerate(texts):
            try:
                requests.append(self._request(text, i))
            except Exception as error:  # whatever it is, it is about this row alone
                answers[i] = {"error": str(error)}
        for result in self._decoder.stream(requests):
            answers[result.id] = self._answer(result)
        return answers

    def _request(self, text: Any, index: int) -> Request:
        if not isinstance(text, str):
            raise TypeError(f"{self._column!r} must hold strings, but holds {text!r}")
        if not text.strip():
            return Request([], id=index)
        return Request(self._tokenizer.encode(text), id=index)

    def _answer(self, result: Result) -> dict[str, Any]:
        if result.error is not None:
            return {"error": str(result.error)}
        texts = [self._tokenizer.decode(one.tokens) for one in result.hypotheses]
        scores = [one.final_score for one in result.hypotheses]
        return {
            "translation": texts[0] if texts else "",
            "score": scores[0] if scores else None,
            "translations": texts,
            "scores": scores,
        }


def _columns(algorithm: Algorithm) -> dict[str, pa.DataType]:
    return COLUMNS | LISTS if algorithm.n_best * algorithm.num_groups > 1 else COLUMNS


def _check_columns(known: list[str], column: str, algorithm: Algorithm) -> None:
    """Raise ValueError unless there is the column, and none of the new ones."""
    if column not in known:
        raise ArgumentError("column", f"must be one of {', '.join(known)}, but is {column!r}")
    taken = [name for name in _columns(algorithm) if name in known]
    if taken:
        raise ArgumentError(
            "dataset",
            f"must not have the columns {', '.join(taken)}, which translate adds; rename them "
            "with Dataset.rename_columns",
        )
