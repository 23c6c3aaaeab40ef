"""`pybeam.ray.translate` on a real cluster says what the decoder says in one process."""

import os
import signal

import pytest

from support.example_lines import LINES
from support.paths import MODEL
from support.ray_cluster import MARKS, workers
from support.ray_cluster import cluster as cluster_of

data = pytest.importorskip("ray.data", reason="needs pip install 'pybeam-search[ray]'")

import pyarrow as pa  # noqa: E402

import pybeam  # noqa: E402
import pybeam.ray  # noqa: E402
import ray  # noqa: E402

pytestmark = MARKS
SEARCH = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))


@pytest.fixture
def cluster():
    with cluster_of(2) as found:
        yield found


def expected(texts, search=SEARCH):
    """The hypotheses of each text by a decoder in this process."""
    tokenizer = pybeam.load_tokenizer(MODEL)
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), search)
    results = decoder.decode([tokenizer.encode(text) if text else [] for text in texts])
    return [
        [(tokenizer.decode(one.tokens), one.final_score) for one in result.hypotheses]
        for result in results
    ]


def rows(dataset):
    return sorted(dataset.take_all(), key=lambda row: row["number"])


def numbered(texts, num_blocks):
    items = [{"number": i, "text": text} for i, text in enumerate(texts)]
    return data.from_items(items, override_num_blocks=num_blocks)


@pytest.mark.parametrize("is_shared", [False, True])
def test_rows_get_what_the_decoder_finds(cluster, is_shared):
    texts = [*LINES, "", *LINES]
    model = pybeam.ray.share_model(MODEL) if is_shared else str(MODEL)
    dataset = pybeam.ray.translate(
        numbered(texts, 3), model=model, algorithm=SEARCH, batch_size=2, concurrency=2
    )
    found = rows(dataset)
    assert [row["text"] for row in found] == texts
    best = [found[0] if found else ("", None) for found in expected(texts)]
    assert [(row["translation"], row["score"]) for row in found] == best
    assert all(row["error"] is None for row in found)


def test_a_bad_row_fails_alone(cluster):
    texts = [LINES[0], None, "la " * 3000, LINES[1]]
    dataset = pybeam.ray.translate(
        numbered(texts, 1), model=str(MODEL), algorithm=SEARCH, schedule=pybeam.Fifo(tokens=64)
    )
    found = rows(dataset)
    good = [expected([LINES[i]])[0][0] for i in (0, 1)]
    assert [(found[i]["translation"], found[i]["score"]) for i in (0, 3)] == good
    assert "must hold strings, but holds None" in found[1]["error"]
    assert "3" in found[2]["error"]
    for i in (1, 2):
        assert found[i]["translation"] is None and found[i]["score"] is None


def test_dtypes_order_and_all_hypotheses(cluster):
    search = pybeam.fixed_beam(5, n_best=3)
    texts = LINES * 5
    dataset = pybeam.ray.translate(
        numbered(texts, 10), model=str(MODEL), algorithm=search, keep_order=True, concurrency=2
    )
    [table] = [pa.concat_tables(ray.get(dataset.to_arrow_refs()))]
    assert table.column("number").to_pylist() == list(range(len(texts)))
    assert table.schema.field("translation").type == pa.string()
    assert table.schema.field("score").type == pa.float64()
    assert table.schema.field("scores").type == pa.list_(pa.float64())
    for row, hypotheses in zip(table.to_pylist(), expected(texts, search), strict=True):
        assert list(zip(row["translations"], row["scores"], strict=True)) == hypotheses


def test_wrong_arguments_are_named(cluster):
    columns = {"text": ["a"], "score": [1.0]}
    for arguments, message in [
        ({"column": "source"}, "`column` must be one of text, score, but is 'source'"),
        ({}, "`dataset` must not have the columns score"),
        ({"algorithm": 5}, "`algorithm` must be one such as"),
        ({"model": 5}, "`model` must be a directory or"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            pybeam.ray.translate(
                data.from_arrow(pa.table(columns)),
                **{"model": str(MODEL), "algorithm": SEARCH, **arguments},
            )


@pytest.mark.parametrize("loss", ["worker", "node"])
def test_a_loss_in_the_middle_changes_nothing(loss):
    texts = LINES * 200
    with cluster_of(3) as cluster:
        model = pybeam.ray.share_model(MODEL)
        dataset = pybeam.ray.translate(
            numbered(texts, 40), model=model, algorithm=SEARCH, batch_size=20, concurrency=3
        )
        found = []
        for batch in dataset.iter_batches(batch_size=20, batch_format="pyarrow"):
            found += batch.to_pylist()
            if len(found) == 100:
                nodes = list(cluster.worker_nodes)
                lose(cluster, nodes, loss)
        assert len(cluster.worker_nodes) == (2 if loss == "node" else 3)
    found.sort(key=lambda row: row["number"])
    assert [row["number"] for row in found] == list(range(len(texts)))
    best = [hypotheses[0] for hypotheses in expected(LINES)] * 200
    assert [(row["translation"], row["score"]) for row in found] == best


def lose(cluster, nodes, loss):
    """Kill a process that decodes, or all processes of a node that has one."""
    [node, *_] = [node for node in nodes if workers(node, "MapWorker")]
    if loss == "node":
        cluster.remove_node(node, allow_graceful=False)
    else:
        os.kill(workers(node, "MapWorker")[0], signal.SIGKILL)
