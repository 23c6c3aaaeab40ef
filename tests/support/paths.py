"""Paths of the checkout, its examples and the data beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
# Spanish to English
MODEL = ROOT / "examples" / "models" / "bible-es-en"
# not part of the checkout
DATA = ROOT.parent / "shared" / "data"
