"""Odd variants of sound files, made at random from a seed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

# what may stand where a file has another value
ODD = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**40, 0.5, -1.5, 1e400, "", "x", "..", "/etc/passwd", "a\0b",
    [], [[]], [1, 2], ["x"], [None], [-1], {}, {"a": 1}, {"1": {}}, {"content": 5},
)  # fmt: skip


def mutated(name: str, content: bytes, seed: int) -> bytes:
    """Return an odd variant of a file. JSON stays JSON in three of four, so that its values are looked at."""
    rng = random.Random(f"{name} {seed}")
    if name.endswith(".json") and rng.random() < 0.75:
        return json.dumps(_other_json(json.loads(content), rng)).encode()
    return _other_bytes(content, rng)


def _other_json(value: Any, rng: random.Random) -> Any:
    """Replace, remove or repeat a value somewhere inside."""
    if not value or not isinstance(value, dict | list) or rng.random() < 0.1:
        return rng.choice(ODD)
    # neither copies nor draws from millions of entries
    place = rng.choice(sorted(value)) if isinstance(value, dict) else rng.randrange(len(value))
    odd = value.copy()
    kind = rng.random()
    if kind < 0.15:
        del odd[place]
    elif kind < 0.25 and isinstance(odd, dict):
        odd["odd"] = rng.choice(ODD)
    else:
        odd[place] = _other_json(value[place], rng)
    return odd


def _other_bytes(content: bytes, rng: random.Random) -> bytes:
    kind, size = rng.randrange(5), len(content)
    place = rng.randrange(size + 1)
    # most of what a format says of itself stands at the beginning
    early = rng.randrange(min(size, 256) + 1)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:early]
    if kind == 2:
        return content[:early] + rng.randbytes(rng.randint(1, 8)) + content[early:]
    if kind == 3:
        return content[:early] + bytes([rng.randrange(256)]) + content[early + 1 :]
    return (
        content[:place] + rng.randbytes(rng.randint(1, 64)) + content[place + rng.randint(0, 64) :]
    )


def check_mutations(
    original: Path, directory: Path, load: Callable[[Path], object], seeds: range
) -> None:
    """Change one file of a copy after another. The copy must load, or an error must name it."""
    shutil.copytree(original, directory)
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    for seed in seeds:
        path = files[seed % len(files)]
        content = path.read_bytes()
        path.write_bytes(mutated(path.name, content, seed))
        try:
            load(directory)
        except (OSError, ValueError, ImportError) as error:
            assert str(directory) in str(error), f"{path.name}, seed {seed}: {error}"
        path.write_bytes(content)
