"""The OpenAPI document, as clients see it."""

import json
from pathlib import Path

from support.golden import assert_golden
from support.server_app import run


def test_document():
    async def ask(client):
        return (await client.get("/openapi.json")).json()

    document = run(ask, warm=False)
    del document["info"]["version"]
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
    assert_golden(Path(__file__).with_name("openapi.json"), text + "\n")
