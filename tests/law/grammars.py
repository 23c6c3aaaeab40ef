"""Grammars and JSON schemas of the law, with all of their outputs."""

from __future__ import annotations

from pybeam.processors.grammars import schema_grammar

# more tokens than an output has room for
LENGTH = 6


class Texts:
    """A tokenizer that has these texts. A model's EOS ends an output, whatever its text is."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def vocab(self) -> list[str]:
        return self.texts


LETTERS, DIGITS = Texts([*"abcdefghijkl"]), Texts([*"0123456789-"])
# grammars, and their outputs as far as there is room
NESTED, REPEATED = 'start: "d" | "i" start "g"', 'start: "g"+ "d"?'
OUTPUTS = {
    NESTED: [[8] * n + [3] + [6] * n for n in range(LENGTH + 1)],
    REPEATED: [[6] * (n + 1) + [3] * i for n in range(LENGTH + 1) for i in range(2)],
}
SMALL, LARGE = (dict(type="integer", minimum=n, maximum=399) for n in (0, 5))
OUTPUTS |= {
    schema_grammar(one): [
        [*map(int, str(n))] for n in range(one["minimum"], 400) if "1" not in str(n)
    ]
    for one in (SMALL, LARGE)
}
