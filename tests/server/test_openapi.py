"""The OpenAPI document, as clients see it, and the bodies beside what the library takes."""

import json
from dataclasses import fields
from pathlib import Path

import pybeam
from pybeam.limits import SourceLimit
from pybeam.server import schemas
from support.golden import assert_golden
from support.server_app import run


def test_document():
    async def ask(client):
        return (await client.get("/openapi.json")).json()

    document = run(ask, warm=False)
    del document["info"]["version"]
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
    assert_golden(Path(__file__).with_name("openapi.json"), text + "\n")


def test_bodies_have_all_that_the_library_has():
    own = {"source_id", "start"}  # of programs that have the model
    names = {field.name for field in fields(pybeam.Request)} - own
    assert names <= schemas.DecodeBody.model_fields.keys()
    for body, kind in ((schemas.Scoring, pybeam.Scoring), (schemas.SourceLimit, SourceLimit)):
        defaults = {field.name: field.default for field in fields(kind)}
        assert defaults.keys() == body.model_fields.keys()
        for name, field in body.model_fields.items():
            assert field.is_required() or field.default == defaults[name], name
