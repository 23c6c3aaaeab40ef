"""The table that says how every generative class of transformers fares; run it to write the table anew.

``python -m support.published_table`` in `tests/` tries all classes, which takes twenty minutes on one core.
With names of classes it tries these alone, and with ``pending`` those that the table lacks.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.paths import ROOT

TABLE = ROOT / "tests" / "models" / "huggingface" / "published_classes.json"


def read_table() -> dict[str, Any]:
    """Return the version of transformers, what became of each class by name, and earlier totals."""
    return json.loads(TABLE.read_text("utf-8"))


def main(names: list[str]) -> None:
    """Try these classes, or all, and write what became of them."""
    import transformers

    from support.published_cases import loads_natively, outcome
    from support.published_classes import generative_classes

    known, table = generative_classes(), read_table()
    classes, table["transformers"] = table["classes"], transformers.__version__
    pending = [name for name in known if name not in classes]
    for name in pending if names == ["pending"] else names or known:
        classes[name] = outcome(name)
        if classes[name]["how"] != "not tried":
            with tempfile.TemporaryDirectory() as directory:
                if loads_natively(name, Path(directory)):
                    classes[name]["native"] = True
        print(name, classes[name], flush=True)
        write_table(table | {"classes": {name: classes[name] for name in known if name in classes}})


def write_table(table: dict[str, Any]) -> None:
    """Write it, one class a line, the classes last."""
    *facts, (_, classes) = table.items()
    head = [f"{json.dumps(name)}: {json.dumps(fact)},\n" for name, fact in facts]
    lines = [f"  {json.dumps(name)}: {json.dumps(own)}" for name, own in classes.items()]
    text = "".join(head) + '"classes": {\n' + ",\n".join(lines) + "\n}"
    TABLE.write_text(f"{{{text}}}\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
