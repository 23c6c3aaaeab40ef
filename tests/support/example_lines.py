"""Lines for the example model, and their translations by the command line's defaults."""

from functools import cache

import pybeam
from support.paths import MODEL

LINES = [
    "Y dijo Dios: Sea la luz; y fué la luz.",
    "Jehová es mi pastor; nada me faltará.",
    "Y el rey dijo.",
    "Entonces el rey mandó llamar á todos los sabios de Babilonia, y les contó su sueño.",
]


@cache
def translations() -> list[str]:
    """Translate `LINES` with the library itself."""
    tokenizer = pybeam.load_tokenizer(MODEL)
    search = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), search)
    results = decoder.decode(tokenizer.encode(LINES))
    return [tokenizer.decode(result.hypotheses[0].tokens) for result in results]
