"""The default of every public parameter is a promise: `defaults.toml` lists all of them."""

import inspect
import re
import tomllib
from pathlib import Path

from support.public_names import PUBLIC

PROMISED = tomllib.loads(Path(__file__).with_name("defaults.toml").read_text("utf-8"))


def defaults_of(value: object) -> str:
    """Parameters that can be left out, as they are written in a call."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    given = [f"{one.name}={one.default!r}" for one in parameters if one.default is not one.empty]
    return re.sub(r" at 0x[0-9a-f]+", "", ", ".join(given))


def test_defaults_are_those_that_were_promised():
    found = {name: defaults_of(value) for name, value in PUBLIC.items() if callable(value)}
    found = {name: defaults for name, defaults in found.items() if defaults}
    lines = "\n".join(f"'{name}' = '''{found[name]}'''" for name in sorted(found))
    assert found == PROMISED, (
        "a public default is not the one of tests/project/defaults.toml; if that is meant, say so in "
        f"CHANGELOG.md and replace the lines of the file by\n{lines}"
    )
