"""The examples of docs/howto/cluster.md that need Ray, Spark or datatrove."""

import gzip
import json
import os
import shutil
import subprocess
import sys

import pytest

from support.example_lines import LINES
from support.pages import blocks_of
from support.paths import MODEL, ROOT
from support.ray_cluster import MARKS

pytestmark = MARKS
PAGE = ROOT / "docs" / "howto" / "cluster.md"
BLOCKS = [block for block in blocks_of(PAGE) if "make test-ray" in block.not_run]


@pytest.fixture
def folder(tmp_path):
    """The files that the examples read, as in other pages."""
    (tmp_path / "DIR").symlink_to(MODEL)
    (tmp_path / "in.es").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "documents").mkdir()
    documents = [{"text": line, "id": str(i)} for i, line in enumerate(LINES)]
    content = "".join(json.dumps(document) + "\n" for document in documents)
    (tmp_path / "documents" / "a.jsonl").write_text(content)
    return tmp_path


def run(code, folder):
    """Run a block in a process of its own; returns what it prints."""
    (folder / "page.py").write_text(code)
    local = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=folder,
        env={**os.environ, **local, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def block_with(text):
    [found] = [block for block in BLOCKS if text in block.code]
    return found


def expected(search=None):
    import pybeam

    tokenizer = pybeam.load_tokenizer(MODEL)
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), search or pybeam.fixed_beam(5))
    results = decoder.decode(tokenizer.encode(LINES))
    return [tokenizer.decode(result.hypotheses[0].tokens) for result in results]


def test_every_block_has_a_test():
    assert len(BLOCKS) == 4


def test_the_command(folder):
    pytest.importorskip("ray.data", reason="needs pip install 'pybeam-search[ray]'")
    command = block_with("--ray").code.replace("pybeam ", f"{sys.executable} -m pybeam ", 1)
    code = f"import subprocess; subprocess.run({command!r}, shell=True, check=True)"
    from support.example_lines import translations

    assert run(code, folder).splitlines() == translations()


def test_the_dataset(folder):
    pytest.importorskip("ray.data", reason="needs pip install 'pybeam-search[ray]'")
    block = block_with("import pybeam.ray")
    ends = "\nfor row in dataset.take_all(): print(row['translation'])"
    printed, *found = [
        line for line in run(block.code + ends, folder).splitlines() if not line.startswith("2")
    ]
    assert printed == block.printed.strip()
    assert found == expected()


def test_spark(folder):
    pytest.importorskip("pyspark", reason="needs pip install pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    run(block_with("pyspark").code, folder)
    import pyarrow.parquet

    found = pyarrow.parquet.read_table(folder / "out.parquet").to_pylist()
    assert sorted((row["text"], row["translation"]) for row in found) == sorted(
        zip(LINES, expected(), strict=True)
    )


def test_datatrove(folder):
    pytest.importorskip("datatrove", reason="needs pip install datatrove orjson")
    run(block_with("datatrove").code, folder)
    found = {}
    for path in (folder / "translated").glob("*.gz"):
        for line in gzip.open(path, "rt"):
            record = json.loads(line)
            found[record["text"]] = record["metadata"]["translation"]
    assert found == dict(zip(LINES, expected(), strict=True))
