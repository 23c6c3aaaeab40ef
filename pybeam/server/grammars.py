"""The processor by which a request to a server holds its outputs to a grammar."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection

from pybeam.automata.grammars import MAX_LEXER_STATES, Grammar, GrammarError
from pybeam.automata.vocabulary import Vocabulary
from pybeam.processors.base import Processor
from pybeam.processors.grammars import GrammarConstraint, schema_grammar
from pybeam.search.algorithms import Algorithm
from pybeam.server.errors import RETRY_SECONDS, APIError
from pybeam.server.limits import Client, Clients
from pybeam.server.models import ServedModel

# characters of a grammar
LARGEST = 1 << 16
# Llguidance may read a small schema for ever, in a thread that nobody can stop. So a process of its own, with
# so much time of a CPU and so much memory, reads a new grammar first.
CPU_SECONDS, MEMORY = 4, 2 << 30
# until it must have ended, beside other work of the machine
WALL_SECONDS = 60.0
MOST_READERS = 2
# of one client; each has a deadline, and one alone is read at a time
MOST_WAITING = 32
# the end of a line, escaped or not; what else is escaped, or a slash that is not
PART = re.compile(r"(\\?\n)|(\\.)|/", re.DOTALL)
# a control character that JSON writes as it is, and llguidance reads no text with
DELETE = "\x7f"
READER = f"""
import sys
try:
    import resource
except ImportError:
    pass  # not on Windows
else:
    for limit, most in ((resource.RLIMIT_CPU, {CPU_SECONDS}), (resource.RLIMIT_AS, {MEMORY})):
        try:
            resource.setrlimit(limit, (most, most))
        except ValueError:
            pass  # macOS has no bound on memory
import llguidance as library
limits = library.LLParserLimits(max_lexer_states={MAX_LEXER_STATES}, verbose_errors=False)
grammar = library.LLMatcher.grammar_from_lark(sys.stdin.buffer.read().decode())
matcher = library.LLMatcher(library.LLTokenizer("byte"), grammar, log_level=0, limits=limits)
if not matcher.is_error():
    matcher.compute_bitmask()
sys.stdout.buffer.write(matcher.get_error().encode())
"""


class Asked(NamedTuple):
    """A grammar that a request asks for."""

    field: str  # where it stands in the body
    text: str  # in llguidance's dialect of Lark


def asked(field: str, kind: str, value: Any) -> Asked:
    """Return what a field asks for: a "json_schema", any "json_object", a "regex", a "choice", a "grammar".

    Raises:
        APIError: a schema is no JSON, or nested too deep.
    """
    if kind == "grammar":
        return Asked(field, value)
    if kind == "regex":
        # a slash would end it, and so would the end of a line
        pattern = PART.sub(lambda found: r"\n" if found[1] else found[2] or r"\/", value)
        return Asked(field, f"start: /{pattern}/")
    if kind == "choice":
        texts = (json.dumps(one, ensure_ascii=False).replace(DELETE, r"\u007f") for one in value)
        return Asked(field, f"start: {' | '.join(texts)}")
    try:
        return Asked(field, schema_grammar({"type": "object"} if kind == "json_object" else value))
    except (TypeError, ValueError, RecursionError) as error:
        raise APIError(400, f"`{field}` must be a JSON schema, but is none", field) from error


class Continuation:
    """The tokenizer of outputs that go on with a prompt, so that each token has its text behind others."""

    def __init__(self, tokenizer: object) -> None:
        self._tokenizer = tokenizer

    def vocab(self) -> tuple[bytes | None, ...]:
        """Return the text of each token."""
        return Vocabulary.of(self._tokenizer).tokens


def with_grammars(algorithm: Algorithm, tokenizer: object, *, continues: bool) -> Algorithm:
    """Return a search with a processor that does nothing until a request has a grammar.

    Such a search is not captured on a GPU. One whose last processor gives columns stays as it is: beside
    another processor it would compute all of the vocabulary. So does one that has a grammar, of which a
    request may have another.
    """
    chain = [one for one in algorithm.processors if isinstance(one, Processor)]
    stays = any(one.gives_columns or isinstance(one, GrammarConstraint) for one in chain)
    if stays or find_spec("llguidance") is None:
        return algorithm
    given = Continuation(tokenizer) if continues else tokenizer
    # first, so that samples are drawn of what is allowed
    own = GrammarConstraint(None, given, "logits")
    return dataclasses.replace(algorithm, processors=(own, *algorithm.processors))


class _Waiting:
    """The grammars of one client that wait or are read: one at a time, first come, first served."""

    def __init__(self) -> None:
        self.turn, self.texts = asyncio.Lock(), Counter[str]()


class _Readers:
    """Readers of grammars, of whom a client has one at a time, so that others wait for their own alone.

    Those who count for no client wait in the order in which they came.

    Args:
        proxies: addresses and networks whose connections are those of many clients.
    """

    def __init__(self, proxies: Iterable[str]) -> None:
        self._places, self._clients = asyncio.Semaphore(MOST_READERS), Clients(proxies)
        self._waiting: dict[Client, _Waiting] = {}

    @asynccontextmanager
    async def one(self, http: HTTPConnection, wish: Asked) -> AsyncIterator[None]:
        """Wait for a reader, and have it. Raises APIError, 429, if too many grammars of this client wait."""
        client = self._clients.of(http)
        if client is None:
            async with self._places:
                yield
            return
        own = self._waiting.setdefault(client, _Waiting())
        # the same one may wait many times, and is read once
        if wish.text not in own.texts and len(own.texts) > MOST_WAITING:
            problem = (
                f"`{wish.field}` must wait: {MOST_WAITING} new grammars of this client do, which are read "
                "one after the other; send it again later"
            )
            raise APIError(429, problem, wish.field, retry_after=RETRY_SECONDS)
        own.texts[wish.text] += 1
        try:
            async with own.turn, self._places:
                yield
        finally:
            own.texts[wish.text] -= 1
            own.texts += Counter()
            if not own.texts:
                del self._waiting[client]


class Grammars:
    """Reads the grammars that requests ask for.

    Args:
        proxies: addresses and networks whose connections are those of many clients.
    """

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._readers = _Readers(proxies)

    async def constraints(
        self,
        http: HTTPConnection,
        model: ServedModel,
        wish: Asked,
        seconds: float | None = None,
        spent: float = 0.0,
    ) -> list[Processor]:
        """Return the processor for what is asked, in a list.

        Raises:
            APIError: the server has none to change, or the grammar is too large, wrong or too complex, or is
                not read within so many seconds, less those that are spent, or too many others of the client
                wait.
        """
        chain = model.decoder.algorithm.processors
        own = next((one for one in chain if isinstance(one, GrammarConstraint)), None)
        field = wish.field
        if own is None:
            problem = (
                "must be left out: the server holds outputs to a form if llguidance is installed, its model "
                "has a tokenizer and computes on a CPU, or the server has --structured-outputs, and its "
                "search has no shortlist"
            )
            raise APIError(400, f"`{field}` {problem}", field)
        if len(wish.text) > LARGEST:
            problem = f"must have at most {LARGEST} characters, but has {len(wish.text)}"
            raise APIError(400, f"`{field}` {problem}", field)
        try:
            async with asyncio.timeout(None if seconds is None else seconds - spent):
                vocabulary = await asyncio.to_thread(Vocabulary.of, own.tokenizer)
                if Grammar.is_kept(wish.text, vocabulary):
                    return [await asyncio.to_thread(dataclasses.replace, own, text=wish.text)]
                async with self._readers.one(http, wish):
                    # another request may have had it read meanwhile
                    if not Grammar.is_kept(wish.text, vocabulary):
                        await _read(wish.text)
                    return [await asyncio.to_thread(dataclasses.replace, own, text=wish.text)]
        except TimeoutError as error:
            problem = f"`{field}` was not read within {seconds:g} seconds; send it again later"
            raise APIError(504, problem, "timeout") from error
        except GrammarError as error:
            # the first line has no part of the grammar
            [problem, *_] = str(error).splitlines()
            raise APIError(
                400, f"`{field}` must be one that llguidance knows: {problem}", field
            ) from error
        except ValueError as error:
            raise APIError(400, f"`{field}` needs another tokenizer: {error}", field) from error


async def _read(text: str) -> None:
    """Read a grammar in a process of its own. Raises GrammarError if it is wrong or takes too long."""
    pipe = asyncio.subprocess.PIPE
    # -P: a llguidance.py in the working directory is none of ours
    command, errors = (sys.executable, "-P", "-c", READER), asyncio.subprocess.DEVNULL
    reader = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=errors)
    try:
        found, _ = await asyncio.wait_for(reader.communicate(text.encode()), WALL_SECONDS)
    except TimeoutError:
        found = b""
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()
    if found:
        raise GrammarError(found.decode())
    if reader.returncode:
        raise GrammarError(f"the grammar is too complex to be read in {CPU_SECONDS} seconds")
