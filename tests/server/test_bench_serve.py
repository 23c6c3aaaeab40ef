"""`pybeam bench-serve` asks a running server in each of the shapes that the server has."""

import json

import pytest

from pybeam.cli import main
from support.example_lines import LINES

# the example is no model for chats, and refuses them
SHAPES = {
    "translations": ["--stream"],
    "decode": ["--field", "width=2"],
    "completions": ["--stream"],
    "libretranslate": ["--field", "source=es"],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow
def test_a_server_takes_the_shape(server, tmp_path, capsys, shape):
    path = tmp_path / "in.es"
    path.write_text("\n".join(LINES[:2]), "utf-8")
    load = ["--input", str(path), "--clients", "2", "--warm-up", "0", "--requests", "4"]
    assert main(["bench-serve", server.url, "--shape", shape, *load, "--json", *SHAPES[shape]]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["statuses"] == {"200": 4} and not found["problems"]
    assert (found["first_text_ms"] is not None) == ("--stream" in SHAPES[shape])
