"""`translate_file` and `score_file`: a line of tokens, or of text with functions that split and join it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from pybeam.compat.ctranslate2.results import ExecutionStats

Split = Callable[[str], Sequence[str]]


class FileTranslator:
    """Translates and scores files by what yields the results of iterables."""

    translate_iterable: Callable[..., Iterator[Any]]
    score_iterable: Callable[..., Iterator[Any]]

    def translate_file(
        self, source_path: str, output_path: str, target_path: str | None = None, **options: Any
    ) -> ExecutionStats:
        """Translate a file of tokens, or of texts with functions that split and join them.

        Args:
            source_path, target_path: files of sources and of prefixes, an example a line.
            output_path: the file that is written.
            options: those of `translate_batch`, `with_scores`, and the functions `source_tokenize_fn`,
                `target_tokenize_fn` and `target_detokenize_fn`.
        """
        options, (split, split_target, join) = _functions(options)
        if (split is None) != (join is None):
            raise ValueError(
                "source_tokenize_fn and target_detokenize_fn should both be set or none at all"
            )
        if target_path is not None and split is not None and split_target is None:
            raise ValueError("target_tokenize_fn should be set when passing a target file")
        has_scores = options.pop("with_scores", False)
        start, num_tokens, num_examples = time.perf_counter(), 0, 0
        lines = [_lines(source_path, split)]
        if target_path is not None:
            lines.append(_lines(target_path, split_target))
        with open(output_path, "w", encoding="utf-8") as output:
            for result in self.translate_iterable(
                *_paired(lines), return_scores=has_scores, **options
            ):
                num_examples += 1
                num_tokens += len(result.hypotheses[0])
                for i, tokens in enumerate(result.hypotheses):
                    score = f"{result.scores[i]:.6g} ||| " if has_scores else ""
                    output.write(f"{score}{(join or ' '.join)(tokens)}\n")
        return ExecutionStats(num_tokens, num_examples, 1000 * (time.perf_counter() - start))

    def score_file(
        self, source_path: str, target_path: str, output_path: str, **options: Any
    ) -> ExecutionStats:
        """Write ``<score> ||| <target> [||| <scores of tokens>]`` for each pair of lines.

        Args:
            source_path, target_path: files of an example a line.
            output_path: the file that is written.
            options: those of `score_batch`, `with_tokens_score`, and functions as of `translate_file`.
        """
        options, functions = _functions(options)
        split, split_target, join = functions
        if len({one is None for one in functions}) > 1:
            raise ValueError(
                "source_tokenize_fn, target_tokenize_fn, and target_detokenize_fn should all be set or none "
                "at all"
            )
        has_tokens = options.pop("with_tokens_score", False)
        start, num_tokens, num_examples = time.perf_counter(), 0, 0
        pairs = _paired([_lines(source_path, split), _lines(target_path, split_target)])
        with open(output_path, "w", encoding="utf-8") as output:
            for result in self.score_iterable(*pairs, **options):
                num_examples += 1
                num_tokens += len(result.tokens)
                mean = sum(result.log_probs) / max(1, len(result.log_probs))
                parts = [f"{mean:.6g}", (join or " ".join)(result.tokens)]
                if has_tokens:
                    parts.append(" ".join(f"{one:.6g}" for one in result.log_probs))
                output.write(" ||| ".join(parts) + "\n")
        return ExecutionStats(num_tokens, num_examples, 1000 * (time.perf_counter() - start))


def _functions(given: dict[str, Any]) -> tuple[dict[str, Any], tuple[Any, Any, Any]]:
    """Return the options of batches, and the functions that split and join lines."""
    options: dict[str, Any] = {"max_batch_size": 32, **given}
    options.pop("read_batch_size", None)
    names = "source_tokenize_fn", "target_tokenize_fn", "target_detokenize_fn"
    split, split_target, join = (options.pop(name, None) for name in names)
    return options, (split, split_target, join)


def _lines(path: str, split: Split | None) -> Iterator[list[str]]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            text = line.rstrip("\r\n")
            yield list(split(text)) if split else text.split()


def _paired(lines: Sequence[Iterator[list[str]]]) -> list[Iterator[list[str]]]:
    """Return iterators side by side, which raise RuntimeError where one of them ends before the first."""

    def checked() -> Iterator[tuple[list[str], ...]]:
        for i, pair in enumerate(itertools.zip_longest(*lines)):
            if None in pair:
                raise RuntimeError(f"A file has less examples than another, {i}")
            yield pair

    columns = itertools.tee(checked(), len(lines))
    return [map(itemgetter(k), column) for k, column in enumerate(columns)]
