"""A model that fails is an answer of its own, and the server goes on."""

import asyncio

import pytest
import torch

import pybeam
from pybeam.models import FunctionModel
from pybeam.server.models import ServedModel
from support.server_app import run

TABLE = torch.randn(20, 9, generator=torch.Generator().manual_seed(1))


def logits(prefixes, lengths, source_ids):
    found = TABLE[lengths].clone()
    if (source_ids == 666).any():
        raise RuntimeError("the model is broken")
    found[source_ids == 777] = float("nan")
    return found


@pytest.fixture
def broken(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    model = FunctionModel(logits, 9, 0, 2)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=6))
    return ServedModel("broken", str(tmp_path), decoder, None)


@pytest.fixture(autouse=True)
def numbered(monkeypatch):
    """The function knows a source by its first id."""

    def request(source, *arguments, **options):
        return pybeam.Request(source, *arguments, source_id=source[0], **options)

    monkeypatch.setattr("pybeam.server.endpoints.decode.Request", request)


@pytest.mark.parametrize("kind", [666, 777])
def test_one_request_fails_and_its_neighbours_do_not(broken, kind):
    async def test(client):
        sources = [[1, 4], [kind, 4], [3, 4]]
        answers = await asyncio.gather(
            *(client.post("/v1/decode", json={"source": source}) for source in sources)
        )
        again = await client.post("/v1/decode", json={"source": [1, 4]})
        assert again.json()["hypotheses"] == answers[0].json()["hypotheses"]
        return answers, (await client.get("/metrics")).text

    answers, metrics = run(test, model=broken)
    first, second, third = (answer.status_code for answer in answers)
    assert (first, third) == (200, 200)
    assert second == 500
    [line] = [one for one in metrics.splitlines() if 'finished_reason="error"' in one]
    assert line.startswith("pybeam:request_success_total") and line.endswith(" 1.0")


def test_a_stream_that_fails_in_the_middle_says_so(broken, monkeypatch):
    steps = []

    def fails_later(prefixes, lengths, source_ids):
        steps.append(len(prefixes))
        if len(steps) > 3:
            raise RuntimeError("the model is broken")
        found = torch.full((len(prefixes), 9), -5.0)
        found[:, 4] = 5.0
        return found

    monkeypatch.setattr(broken.decoder.model, "fn", fails_later)

    async def test(client):
        body = {"source": [1, 4], "width": 1, "stream": True}
        return await client.post("/v1/decode", json=body)

    answer = run(test, model=broken)
    *before, last = answer.text.strip().split("\n\n")
    assert before and all(one.startswith("event: certain\n") for one in before)
    assert last.startswith("event: error\ndata: ") and "RuntimeError" in last
