"""Extract JSON from Spanish verses with the example model: who speaks, and of what.

    python examples/extraction/extract.py < verses.es

Each line of the input gives a line of JSON that the schema allows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pybeam

MODEL = Path(__file__).parents[1] / "models" / "bible-es-en"
FIELDS = {"speaker": {"enum": ["God", "Moses", "Jesus"]}, "about": {"enum": ["light", "water"]}}
SCHEMA = {
    "type": "object",
    "properties": FIELDS,
    "required": [*FIELDS],
    "additionalProperties": False,
}


def extract(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the record of each line."""
    tokenizer = pybeam.load_tokenizer(MODEL)
    valid = pybeam.processors.json_schema(SCHEMA, tokenizer)
    # a long name is no less probable than a short one
    search = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0), processors=[valid])
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), search)
    for result in decoder.decode([tokenizer.encode(line) for line in lines]):
        yield json.loads(tokenizer.decode(result.hypotheses[0].tokens))


def main() -> None:
    for record in extract(sys.stdin):
        print(json.dumps(record))


if __name__ == "__main__":
    main()
