"""A corpus of three lines in two languages."""

from pathlib import Path

LINES = {
    "es": ["Jesús lloró.", "Y dijo Dios: Sea la luz: y fué la luz.", "Estad siempre gozosos."],
    "en": ["Jesus wept.", "And God said, Let there be light: and there was light.", "Rejoice."],
}


def write(folder: Path, *splits: str) -> None:
    for split in splits:
        for language, lines in LINES.items():
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", "utf-8")
