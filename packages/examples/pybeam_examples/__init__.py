"""Small models with which the first programs of pybeam run, without a download.

`pybeam.load("bible-es-en")` finds them by name if `pip install "pybeam-search[examples]"` has brought them.
"""

from pathlib import Path

_HERE = Path(__file__).parent

# from Spanish to the English of the King James Bible; spoken digits, English
MODELS = {name: _HERE / name for name in ("bible-es-en", "spoken-numbers-en")}
# of digits: 4 0 7, and 9 2
RECORDINGS = (_HERE / "recordings" / "first.wav", _HERE / "recordings" / "second.wav")
