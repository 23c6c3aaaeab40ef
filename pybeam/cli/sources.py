"""Read lines as they come, decode them, tokenise them and number them."""

from __future__ import annotations

import dataclasses
import os
import select
from collections import deque
from collections.abc import Callable, Iterator

import click

from pybeam.request import Request, Result
from pybeam.text.tokenizer import Tokenizer

CHUNK_BYTES = 1 << 20
# a writer who is silent for so long has paused
PAUSE_SECONDS = 0.05
# after which a wait is interrupted, so that Ctrl-C is noticed
WAIT_SECONDS = 0.5


class LineReader:
    """Read the lines of a file descriptor, in runs that end when its writer pauses.

    A file is one run. A slow pipe or a terminal has many, so that typed lines are translated before the
    end of the input.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []
        self.has_ended = False

    def run(self) -> Iterator[bytes]:
        """Read the lines up to the next pause. There are none only if the input has ended."""
        num_lines = 0
        while self._fill(may_wait=num_lines == 0):
            num_lines += 1
            yield self._lines.popleft()

    def lines(self) -> Iterator[bytes]:
        """Yield all lines, whatever pauses their writer makes."""
        while not self.has_ended or self._lines:
            yield from self.run()

    def _fill(self, may_wait: bool) -> bool:
        """Read more. Returns whether there is a line now."""
        while not self._lines and not self.has_ended:
            if not may_wait and not self._is_ready(PAUSE_SECONDS):
                break
            # a blocking read would notice a Ctrl-C that came just before it only when it returns
            while not self._is_ready(WAIT_SECONDS):
                pass
            self._read()
        return bool(self._lines)

    def _is_ready(self, seconds: float) -> bool:
        if os.name == "nt":  # select knows only sockets there
            return True
        return bool(select.select([self._fd], [], [], seconds)[0])

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, CHUNK_BYTES)
        except OSError as error:
            raise click.ClickException(f"cannot read the input: {error.strerror}") from error
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            self._lines.append(b"".join([*self._partial, piece]))
            self._partial.clear()
        if rest:
            self._partial.append(rest)
        if not chunk:
            self.has_ended = True
            if self._partial:
                self._lines.append(b"".join(self._partial))


class Sources:
    """Make a request for every line. An empty line is an empty source.

    Reading stops at the first line that is not UTF-8, and `error` then has the message.
    """

    harm_of_cutting = "its translation lacks the end"

    def __init__(
        self,
        reader: LineReader,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        warn: Callable[[str], None],
    ) -> None:
        self._reader, self._tokenizer, self._warn = reader, tokenizer, warn
        self._max_tokens = max_tokens
        self.num_lines = 0
        self.error: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.error is not None or self._reader.has_ended

    def run(self) -> Iterator[Request]:
        """Requests up to the next pause of the input."""
        for line in self._reader.run():
            try:
                text = _text(line, is_first=self.num_lines == 0)
            except UnicodeDecodeError as error:
                self.error = f"line {self.num_lines + 1}: {_not_utf8(line, error)}"
                return
            self.num_lines += 1
            yield from self._requests(text)

    def complete(self, result: Result) -> Result | None:
        """Return the result of a line, with the facts that only this class knows.

        None: the line has several requests, and others of them are not done.
        """
        return result

    def _requests(self, text: str) -> Iterator[Request]:
        yield self._request(text)

    def _request(self, text: str) -> Request:
        if not text:
            return Request([])
        tokens = self._tokenizer.encode(text)
        limit = self._max_tokens
        if limit is not None and len(tokens) > limit:
            return self._overlong(tokens, limit)
        return self._request_of(tokens)

    def _overlong(self, tokens: list[int], limit: int) -> Request:
        self._warn(
            f"line {self.num_lines}: {len(tokens)} tokens are more than the limit of {limit}; the line is "
            f"cut, so {self.harm_of_cutting}"
        )
        return self._request_of(cut(tokens, self._tokenizer.encode(""), limit))

    def _request_of(self, tokens: list[int]) -> Request:
        # the id comes back with the result, which may show the source again
        return Request(tokens, prefix=self._tokenizer.prefix, id=tokens)


class Pairs(Sources):
    """Make a request for every line, with the line of the same number in another file as its target.

    Reading stops when one of the files has no more lines, or at a line that is not UTF-8. `error` then says
    so.
    """

    harm_of_cutting = "its score is that of a translation of its beginning"

    def __init__(
        self,
        reader: LineReader,
        targets: LineReader,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(reader, tokenizer, max_tokens, warn)
        self._targets = targets.lines()

    def run(self) -> Iterator[Request]:
        """Requests up to the next pause of the input."""
        for request in super().run():
            line = next(self._targets, None)
            if line is None:
                self.error = f"--target ends before line {self.num_lines} of the input"
                return
            try:
                text = _text(line, is_first=self.num_lines == 1)
            except UnicodeDecodeError as error:
                self.error = f"line {self.num_lines} of --target: {_not_utf8(line, error)}"
                return
            yield dataclasses.replace(request, target=self._tokenizer.encode_target(text))
        if self.has_ended and self.error is None and next(self._targets, None) is not None:
            self.error = f"the input ends after line {self.num_lines}, but --target goes on"


def _text(line: bytes, *, is_first: bool) -> str:
    return line.decode("utf-8-sig" if is_first else "utf-8").strip()


def _not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    return (
        f"expected UTF-8, but byte {error.start + 1} is 0x{line[error.start]:02x}; convert it, for "
        "example with `iconv -f LATIN1 -t UTF-8`"
    )


def cut(tokens: list[int], frame: list[int], limit: int) -> list[int]:
    """Cut a source to `limit` tokens, but keep the tokens that end every source (the end of `frame`)."""
    num_last = 0
    while num_last < len(frame) and tokens[-1 - num_last] == frame[-1 - num_last]:
        num_last += 1
    return tokens[: limit - num_last] + tokens[len(tokens) - num_last :]
