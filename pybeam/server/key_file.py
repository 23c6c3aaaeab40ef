"""The file of keys with limits: a table of TOML for each, which has the key's hash and no key."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from pybeam.server.settings import KeyLimits

# of a key; a name stands in logs
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
DIGEST = re.compile(r"[0-9a-f]{64}")
LIMITS = {one.name.replace("_", "-"): one.name for one in fields(KeyLimits)}


def digest_of(key: str | bytes) -> bytes:
    """Return the SHA-256 of a key, which says nothing of a key that is random."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def table_of(name: str, key: str, limits: KeyLimits) -> str:
    """Return the table of a key."""
    values = {field: getattr(limits, name) for field, name in LIMITS.items()}
    given = {field: one for field, one in values.items() if one is not None and one is not False}
    lines = [f"{field} = {str(one).lower()}" for field, one in given.items()]
    return "\n".join([f"[{name}]", f'sha256 = "{digest_of(key).hex()}"', *lines, ""])


def read_keys(path: str) -> Iterator[tuple[str, bytes, KeyLimits]]:
    """Yield names, digests and limits of a TOML file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is wrong.
    """
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a TOML file: {error}") from error
    if not tables:
        raise ValueError(
            f"{path} must have a table for each key, but has none; `pybeam key` makes one"
        )
    for name, table in tables.items():
        where = f"{path}: [{name}]"
        if not NAME.fullmatch(name) or not isinstance(table, dict):
            raise ValueError(
                f"{where} must be a table, named by at most 64 letters, digits, - and _"
            )
        digest = table.pop("sha256", None)
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise ValueError(f"{where} must have a `sha256` of 64 hexadecimal digits")
        if unknown := table.keys() - LIMITS.keys():
            raise ValueError(
                f"{where}: {min(unknown)!r} is no limit of a key; there are {', '.join(LIMITS)}"
            )
        try:
            limits = KeyLimits(**{LIMITS[field]: value for field, value in table.items()})
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        yield name, bytes.fromhex(digest), limits
