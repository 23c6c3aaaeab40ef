"""Put what the pages of the documentation read into the current folder: `python -m pybeam_examples`.

Two recordings of digits, two lines in Spanish, and their translations. A file that is there stays.
"""

import shutil
from pathlib import Path

RECORDINGS = Path(__file__).parent / "recordings"
LINES = {
    "in.es": "Yo soy la luz del mundo.\nY vió Dios que era bueno.\n",
    "out.en": "I am the light of the world.\nAnd God saw that it was good.\n",
}


def save(folder: Path) -> None:
    for path in sorted(RECORDINGS.glob("*.wav")):
        if not (folder / path.name).exists():
            shutil.copy(path, folder)
    for name, text in LINES.items():
        if not (folder / name).exists():
            (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    save(Path.cwd())
    print("first.wav", "second.wav", *LINES)
