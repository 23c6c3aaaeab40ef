"""Lines that are translated in pieces: several requests for a line, one line for their results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from pybeam.cli.job import Job, writes_many
from pybeam.cli.options.units import UnitOptions
from pybeam.cli.sources import LineReader, Sources
from pybeam.request import Request, Result

if TYPE_CHECKING:
    from pybeam.cli.job import SourceOptions
    from pybeam.cli.output import Decode, Format
    from pybeam.search.algorithms import Algorithm
    from pybeam.text.tokenizer import Tokenizer
    from pybeam.text.units import Split, Template


@dataclass(frozen=True)
class TranslateJob(Job):
    """One run of `pybeam translate`, with what it translates at a time."""

    units: UnitOptions

    def _algorithm(self, tokenizer: Tokenizer) -> Algorithm:
        algorithm = super()._algorithm(tokenizer)
        self.units.check_number(writes_many(algorithm))
        return algorithm

    @contextlib.contextmanager
    def _sources(self, input_file: BinaryIO, options: SourceOptions) -> Iterator[Sources]:
        tokenizer, of_model, warn = options
        limit = self.units.limit(of_model)
        reader = LineReader(input_file.fileno())
        if self.units.joins:
            split = self.units.split(tokenizer, limit)
            yield Units(reader, tokenizer, limit, warn, self.units.skips, split)
        else:
            yield Limited(reader, tokenizer, limit, warn, self.units.skips)

    def _format(self, decode: Decode, has_many: bool) -> Format:
        return joined_line if self.units.joins else super()._format(decode, has_many)


class Limited(Sources):
    """Make a request for every line, or an error for one that is too long."""

    def __init__(
        self,
        reader: LineReader,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        warn: Callable[[str], None],
        skips: bool,
    ) -> None:
        super().__init__(reader, tokenizer, max_tokens, warn)
        self._skips = skips

    def complete(self, result: Result) -> Result | None:
        """Return the result of a line; that of one which is too long has an error."""
        if isinstance(result.id, ValueError):
            return dataclasses.replace(
                result, hypotheses=[], stop_reason="error", error=result.id, id=None
            )
        return result

    def _overlong(self, tokens: list[int], limit: int) -> Request:
        if not self._skips:
            return super()._overlong(tokens, limit)
        message = f"{len(tokens)} tokens are more than the limit of {limit}; the line is skipped"
        return Request([], id=ValueError(message))


class Units(Limited):
    """Make a request for every text that a split finds in a line, and one result of theirs."""

    def __init__(
        self,
        reader: LineReader,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        warn: Callable[[str], None],
        skips: bool,
        split: Split,
    ) -> None:
        super().__init__(reader, tokenizer, max_tokens, warn, skips)
        self._joining = Joining(split, tokenizer)

    def complete(self, result: Result) -> Result | None:
        """Return the result of a line when all its texts have one."""
        index, position, own_id = result.id
        done = super().complete(dataclasses.replace(result, id=own_id))
        assert done is not None, "a text is one request"
        return self._joining.close(index, position, done)

    def _requests(self, text: str) -> Iterator[Request]:
        index = self.num_lines - 1
        for position, one in enumerate(self._joining.open(index, text)):
            request = self._request(one)
            yield dataclasses.replace(request, id=(index, position, request.id))


class Joining:
    """Knows the lines some of whose texts are being decoded, and puts together those that are done."""

    def __init__(self, split: Split, tokenizer: Tokenizer) -> None:
        self._split, self._tokenizer = split, tokenizer
        self._lines: dict[int, OpenLine] = {}

    def open(self, index: int, text: str) -> tuple[str, ...]:
        """Return the texts of a line, at least one, which may be empty."""
        template = self._split(text)
        # a line without a text has a result too
        texts = template.texts or ("",)
        self._lines[index] = OpenLine(template, [None] * len(texts))
        return texts

    def close(self, index: int, position: int, result: Result) -> Result | None:
        """Take the result of one text. Returns that of the line if it is the last.

        It has the joined text as its `id`, or None if a text has no translation.
        """
        line = self._lines[index]
        line.results[position] = result
        done = [one for one in line.results if one is not None]
        if len(done) < len(line.results):
            return None
        del self._lines[index]
        return self._joined(index, line.template, done)

    def _joined(self, index: int, template: Template, results: list[Result]) -> Result:
        best = [result.hypotheses[0] for result in results if result.hypotheses]
        error = next((result.error for result in results if result.error is not None), None)
        text = None
        if len(best) == len(results) and error is None:
            decoded = [self._tokenizer.decode(hypothesis.tokens) for hypothesis in best]
            text = template.fill(decoded[: len(template.texts)])
        return Result(
            index,
            text,
            best,
            "error" if error is not None else results[-1].stop_reason,
            sum(result.steps for result in results),
            sum(result.expansions for result in results),
            error,
        )


class OpenLine(NamedTuple):
    """A line some of whose texts are being decoded."""

    template: Template
    results: list[Result | None]


def joined_line(result: Result) -> str:
    """Format the text of a line that was put together, or an empty line for one that failed."""
    return "\n" if result.id is None else " ".join(result.id.split("\n")) + "\n"
