"""A few verses in the form of the corpus that the benchmarks translate."""

from __future__ import annotations

from pathlib import Path

LINES = {
    "es": ["Jesús lloró.", "Y dijo Dios: Sea la luz: y fué la luz.", "Estad siempre gozosos."],
    "en": ["Jesus wept.", "And God said, Let there be light: and there was light.", "Rejoice."],
}


def write_corpus(folder: Path, *splits: str, repeats: int = 1) -> None:
    """Write the lines, so many times, as every split of a data folder."""
    (folder / "bible-es-en").mkdir(exist_ok=True)
    for split in splits:
        for language, lines in LINES.items():
            path = folder / "bible-es-en" / f"{split}.{language}"
            path.write_text("\n".join(lines * repeats) + "\n", "utf-8")
